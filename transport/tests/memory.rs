//! The mesh inside one process, and the communicator's rules that no grid shows.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/grid.rs"]
mod grid;
#[path = "common/loss.rs"]
mod loss;

use std::time::{Duration, Instant};

use bytes::Bytes;
use gradwire_transport::memory::{self, MemoryMesh};
use gradwire_transport::{
    Abort, Communicator, Event, ExchangeError, Frame, Header, Limits, Loss, Mesh, Rank, Stats,
};

use grid::{operation, small_pieces};

fn boxed(mesh: MemoryMesh) -> Box<dyn Mesh> {
    Box::new(mesh)
}

fn in_memory(size: u32) -> Vec<Box<dyn Mesh>> {
    memory::mesh(size, 7).into_iter().map(boxed).collect()
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn frame(from: u32, payload: &'static [u8]) -> Frame {
    let length = u32::try_from(payload.len()).unwrap();
    let (total, operation) = (u64::from(length), operation(1, 0));
    let header = Header { operation, epoch: 7, from: Rank(from), total, offset: 0, length };
    Frame { header, payload: Bytes::from_static(payload) }
}

#[test]
fn memory_names_a_rank_that_leaves() {
    loss::a_rank_that_leaves_is_named_by_all_others(in_memory);
}

#[test]
fn frames_come_in_order_unchanged_and_before_the_loss() {
    let mut meshes = memory::mesh(2, 7);
    let mut one = meshes.pop().unwrap();
    let mut zero = meshes.pop().unwrap();
    one.send(Rank(0), frame(1, b"first"));
    one.send(Rank(0), frame(1, b"second"));
    drop(one);
    assert_eq!(zero.receive(soon()), Event::Frame(Rank(1), frame(1, b"first")));
    assert_eq!(zero.receive(soon()), Event::Frame(Rank(1), frame(1, b"second")));
    assert_eq!(zero.receive(soon()), Event::Lost(Rank(1), Loss::Closed));
    zero.send(Rank(1), frame(0, b"to nobody"));
    let before = Instant::now();
    let until = before + Duration::from_millis(20);
    assert_eq!(zero.receive(until), Event::Timeout, "a loss is said once");
    assert!(
        Instant::now() >= until,
        "the wait takes as long as it was asked to, with nobody left to wake it"
    );
}

#[test]
fn what_is_there_comes_before_a_deadline_that_has_passed() {
    let mut meshes = memory::mesh(2, 7);
    meshes[1].send(Rank(0), frame(1, b"late?"));
    let past = Instant::now();
    assert_eq!(meshes[0].receive(past), Event::Frame(Rank(1), frame(1, b"late?")));
    assert_eq!(meshes[0].receive(past), Event::Timeout);
}

#[test]
fn a_closed_endpoint_sends_nothing_and_its_first_reason_stays() {
    let mut meshes = memory::mesh(3, 7);
    let abort = Abort { culprit: None, reason: "interrupted".to_owned() };
    meshes[1].close(Some(&abort));
    meshes[1].close(None);
    meshes[1].send(Rank(0), frame(1, b"after the end"));
    for rank in [0, 2] {
        assert_eq!(meshes[rank].receive(soon()), Event::Lost(Rank(1), Loss::Aborted(abort.clone())));
        assert_eq!(meshes[rank].receive(Instant::now()), Event::Timeout);
    }
    assert_eq!(meshes[1].stats().total().frames_sent, 0);
}

#[test]
fn frames_to_the_own_rank_or_outside_the_world_go_nowhere() {
    let mut meshes = memory::mesh(2, 7);
    meshes[0].send(Rank(0), frame(0, b"self"));
    meshes[0].send(Rank(2), frame(0, b"outside"));
    assert_eq!(meshes[0].receive(Instant::now()), Event::Timeout);
    assert_eq!(meshes[0].stats(), Stats { peers: vec![Default::default(); 2] });
}

#[test]
#[should_panic(expected = "caller: world size 0 is not in 1..=4096")]
fn a_mesh_without_ranks_is_refused() {
    let _ = memory::mesh(0, 0);
}

#[test]
fn a_rank_that_panics_says_so() {
    let mut meshes = in_memory(2);
    let mut communicator = Communicator::new(meshes.remove(0), small_pieces());
    let mesh = meshes.remove(0);
    let thread = std::thread::spawn(move || {
        let _communicator = Communicator::new(mesh, Limits::default());
        panic!("on purpose");
    });
    assert!(thread.join().is_err(), "the thread panics on purpose");
    let error = communicator.barrier(operation(1, 0)).unwrap_err();
    assert_eq!(error.culprit(), Some(Rank(1)));
    let text = error.to_string();
    assert_eq!(text, "rank 1 panicked (before the first collective) (step 1)");
}

#[test]
fn a_lost_rank_fails_the_next_collective_before_anything_is_sent() {
    let mut meshes = memory::mesh(2, 7);
    let mut one = Communicator::new(boxed(meshes.pop().unwrap()), small_pieces());
    let mut zero = Communicator::new(boxed(meshes.pop().unwrap()), small_pieces());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            one.barrier(operation(1, 0)).unwrap();
            one.close();
        });
        zero.barrier(operation(1, 0)).unwrap();
    });
    // The loss is noticed in the first of these at the latest; only then is it known to the second.
    let error = zero.barrier(operation(2, 0)).unwrap_err();
    assert!(
        matches!(error, ExchangeError::Lost { rank: Rank(1), loss: Loss::Closed, step: 2, .. }),
        "{error}"
    );
    let sent = zero.stats().total().frames_sent;
    assert_eq!(zero.barrier(operation(3, 0)), Err(error));
    assert_eq!(zero.stats().total().frames_sent, sent);
}

#[test]
fn an_abort_ends_the_collective_also_when_only_another_rank_is_waited_for_and_is_remembered() {
    let mut meshes = memory::mesh(3, 7);
    let mut two = meshes.pop().unwrap();
    let mut one = meshes.pop().unwrap();
    let mut zero = Communicator::new(boxed(meshes.pop().unwrap()), small_pieces());
    // Rank 1 leaves after its message.
    one.send(Rank(0), frame(1, b""));
    one.close(Some(&Abort { culprit: Some(Rank(2)), reason: "sent nonsense".to_owned() }));
    // Rank 2, which it blames, may never send anything.
    let error = zero.barrier(operation(1, 0)).unwrap_err();
    assert_eq!(error.to_string(), "rank 2 sent nonsense (rank 1 says so, step 1)");
    let sent = zero.stats().total().frames_sent;
    assert_eq!(zero.barrier(operation(2, 0)), Err(error));
    assert_eq!(zero.stats().total().frames_sent, sent, "a lost rank fails the collective at once");
    // And rank 2 hears the culprit and the reason that rank 1 gave, not that rank 0 left.
    let heard = std::iter::from_fn(|| Some(two.receive(soon()))).find_map(|event| match event {
        Event::Lost(Rank(0), loss) => Some(loss),
        _ => None,
    });
    let due = Abort { culprit: Some(Rank(2)), reason: "sent nonsense".to_owned() };
    assert_eq!(heard, Some(Loss::Aborted(due)));
}

#[test]
fn operations_must_ascend_and_the_others_are_told_who_did_not() {
    let mut meshes = memory::mesh(2, 7);
    let mut one = meshes.pop().unwrap();
    one.send(Rank(0), frame(1, b""));
    let mut zero = Communicator::new(boxed(meshes.pop().unwrap()), small_pieces());
    zero.barrier(operation(1, 0)).unwrap();
    let error = zero.barrier(operation(1, 0)).unwrap_err();
    assert_eq!(error.to_string(), "caller: step 1, tag 0 is not later than step 1, tag 0 before it");
    assert_eq!(one.receive(soon()), Event::Frame(Rank(0), frame(0, b"")));
    let Event::Lost(Rank(0), Loss::Aborted(abort)) = one.receive(soon()) else { panic!("rank 0 must abort") };
    assert_eq!(
        abort.to_string(),
        "rank 0 gave up: caller: step 1, tag 0 is not later than step 1, tag 0 before it"
    );
}

#[test]
fn a_world_of_one_runs_without_a_frame() {
    let mut communicator = Communicator::new(in_memory(1).remove(0), Limits::default());
    let own = || Bytes::from_static(b"alone");
    assert_eq!(communicator.all_to_all(operation(1, 0), vec![own()], &[5]).unwrap(), [own()]);
    assert_eq!(communicator.all_gather(operation(1, 1), own(), &[5]).unwrap(), [own()]);
    communicator.barrier(operation(1, 2)).unwrap();
    assert_eq!(communicator.stats().total(), Default::default());
}

#[test]
fn messages_of_several_whole_frames_arrive() {
    let length = 3 * gradwire_transport::frame::MAX_PAYLOAD + 5;
    grid::on_every_rank(in_memory(2), Limits::default(), |communicator| {
        let own = communicator.world().rank();
        let outgoing = communicator.world().ranks().map(|to| grid::painted(own, to, 1, length)).collect();
        let incoming = communicator.all_to_all(operation(1, 0), outgoing, &[length as u64; 2]).unwrap();
        for from in communicator.world().ranks() {
            assert!(incoming[from.index()] == grid::painted(from, own, 1, length), "from rank {from}");
        }
    });
}

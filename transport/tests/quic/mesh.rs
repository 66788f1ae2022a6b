//! What a mesh carries, and how it ends.

use std::thread;
use std::time::{Duration, Instant};

use gradwire_transport::quic::{Config, QuicMesh};
use gradwire_transport::{Abort, Communicator, Event, Limits, Loss, Mesh, Operation, Rank, Tag};

use crate::support::{event, frame, world};
use crate::{grid, loss};

#[test]
fn every_frame_reaches_its_rank_whole_and_once_and_closing_loses_none() {
    const FRAMES: u64 = 40;
    const LENGTHS: [usize; 5] = [0, 1, 55, 4096, 1 << 20];
    let length = |step: u64| LENGTHS[usize::try_from(step).unwrap() % LENGTHS.len()];
    let run = move |mut mesh: QuicMesh| {
        let own = mesh.world().rank();
        for step in 0..FRAMES {
            for to in mesh.world().peers() {
                mesh.send(to, frame(own.0, step, length(step)));
            }
        }
        // The last rank reads late, when the others have long sent everything and started to close.
        if own == Rank(2) {
            thread::sleep(Duration::from_millis(500));
        }
        let mut steps: Vec<Vec<u64>> = vec![Vec::new(); 3];
        let mut lost = 0;
        while steps.iter().map(Vec::len).sum::<usize>() < 2 * usize::try_from(FRAMES).unwrap() {
            match event(&mut mesh) {
                Event::Frame(from, got) => {
                    let step = got.header.operation.step;
                    assert!(got == frame(from.0, step, length(step)), "frame {step} from {from:?} differs");
                    steps[from.index()].push(step);
                }
                Event::Lost(_, loss) => {
                    assert_eq!(loss, Loss::Closed);
                    lost += 1;
                }
                Event::Room(_) | Event::Timeout => unreachable!(),
            }
        }
        for rank in mesh.world().peers() {
            steps[rank.index()].sort_unstable();
            assert_eq!(steps[rank.index()], (0..FRAMES).collect::<Vec<_>>(), "{own:?} from {rank:?}");
        }
        mesh.close(None);
        let stats = mesh.stats().total();
        assert_eq!((stats.frames_sent, stats.frames_received), (2 * FRAMES, 2 * FRAMES));
        assert_eq!(stats.frame_bytes_sent, stats.frame_bytes_received);
        assert!(stats.udp_bytes_sent > stats.frame_bytes_sent, "{stats:?}");
        assert!(stats.udp_bytes_received > stats.frame_bytes_received, "{stats:?}");
        lost
    };
    // In the second world, most of it is still under way when the others start to close.
    for unconsumed in [64 << 20, 2 << 20] {
        let change = |_, config: &mut Config| config.tuning.unconsumed = unconsumed;
        let threads: Vec<_> =
            world(3, change).into_iter().map(|mesh| thread::spawn(move || run(mesh))).collect();
        for thread in threads {
            thread.join().unwrap();
        }
    }
}

#[test]
fn a_peer_that_does_not_read_has_no_room_and_has_it_again_when_it_reads() {
    const LENGTH: usize = 1 << 20;
    let change = |_, config: &mut Config| (config.tuning.streams, config.tuning.unconsumed) = (4, 2 << 20);
    let mut meshes = world(2, change);
    let (mut reader, mut writer) = (meshes.pop().unwrap(), meshes.pop().unwrap());
    let mut sent = 0;
    loop {
        if writer.has_room(Rank(1)) {
            writer.send(Rank(1), frame(0, sent, LENGTH));
            sent += 1;
        } else if writer.receive(Instant::now() + Duration::from_millis(500)) == Event::Timeout {
            break;
        }
    }
    // What waits there, what is in the windows, what is queued here, and one that was let in last.
    assert!((4..=2 + 5 + 2 + 1).contains(&sent), "{sent} frames of 1 MiB were let in");
    for _ in 0..sent {
        assert!(matches!(event(&mut reader), Event::Frame(Rank(0), _)), "nothing is lost");
    }
    assert_eq!(event(&mut writer), Event::Room(Rank(1)));
    assert!(writer.has_room(Rank(1)), "all of it was read");
}

#[test]
fn of_a_peer_that_is_held_up_no_more_comes_than_its_budget_until_it_is_not() {
    const LENGTH: usize = 1 << 20;
    let change = |_, config: &mut Config| (config.tuning.streams, config.tuning.unconsumed) = (24, 4 << 20);
    let mut meshes = world(2, change);
    let (mut reader, mut writer) = (meshes.pop().unwrap(), meshes.pop().unwrap());
    reader.hold(Rank(0), true);
    for step in 0..20 {
        writer.send(Rank(1), frame(0, step, LENGTH));
    }
    let mut came = 0;
    while let Event::Frame(Rank(0), _) = reader.receive(Instant::now() + Duration::from_millis(500)) {
        came += 1;
    }
    // Not four: a frame takes a little more than its bytes.
    assert!(came <= 3, "{came} frames of 1 MiB came");
    reader.hold(Rank(0), false);
    for _ in came..20 {
        assert!(matches!(event(&mut reader), Event::Frame(Rank(0), _)), "nothing is lost");
    }
}

#[test]
fn a_rank_that_gives_up_is_heard_by_all_after_its_frames() {
    let mut meshes = world(3, |_, _| {});
    let mut leaving = meshes.pop().unwrap();
    leaving.send(Rank(0), frame(2, 1, 1000));
    assert_eq!(event(&mut meshes[0]), Event::Frame(Rank(2), frame(2, 1, 1000)));
    let abort = Abort { culprit: Some(Rank(1)), reason: "silent for 2.0s, deadline 2.0s".into() };
    leaving.close(Some(&abort));
    drop(leaving);
    for mesh in &mut meshes {
        assert_eq!(event(mesh), Event::Lost(Rank(2), Loss::Aborted(abort.clone())));
    }
    // The others still reach each other.
    meshes[0].send(Rank(1), frame(0, 2, 10));
    assert_eq!(event(&mut meshes[1]), Event::Frame(Rank(0), frame(0, 2, 10)));
}

#[test]
fn a_rank_that_ends_without_closing_has_failed() {
    let mut meshes = world(2, |_, _| {});
    drop(meshes.pop());
    let Event::Lost(Rank(1), Loss::Aborted(abort)) = event(&mut meshes[0]) else { panic!("not an abort") };
    assert_eq!(abort.to_string(), "rank 1 ended without closing");
    let until = Instant::now() + Duration::from_millis(50);
    assert_eq!(meshes[0].receive(until), Event::Timeout);
}

fn boxed(size: u32) -> Vec<Box<dyn Mesh>> {
    world(size, |_, _| {}).into_iter().map(|mesh| Box::new(mesh) as Box<dyn Mesh>).collect()
}

#[test]
fn quic_carries_the_whole_grid() {
    grid::carries_the_whole_grid(boxed);
}

#[test]
fn quic_names_rank_and_numbers_of_a_length_mismatch_on_both_sides() {
    grid::a_length_mismatch_names_the_rank_and_both_numbers_on_both_sides(boxed);
}

#[test]
fn a_rank_that_leaves_a_quic_mesh_is_named_by_all_others() {
    loss::a_rank_that_leaves_is_named_by_all_others(boxed);
}

#[test]
fn a_mesh_whose_thread_waits_in_a_collective_is_ended_from_another_one_and_its_peer_hears_why() {
    let mut meshes = world(2, |_, _| {});
    let mesh = meshes.pop().unwrap();
    // It answers, and never comes.
    let mut absent = meshes.pop().unwrap();
    let quitter = mesh.quitter();
    let waiting = thread::spawn(move || {
        let mut communicator = Communicator::new(Box::new(mesh), Limits::default());
        communicator.barrier(Operation { step: 1, tag: Tag(0) }).unwrap_err()
    });
    // It waits already, most of the time; the error is the same if not.
    assert!(matches!(event(&mut absent), Event::Frame(Rank(1), _)), "its part of the barrier");
    let due = Abort { culprit: Some(Rank(1)), reason: "was interrupted".into() };
    quitter.quit(&due.reason);
    assert_eq!(event(&mut absent), Event::Lost(Rank(1), Loss::Aborted(due)));
    let error = waiting.join().unwrap();
    assert_eq!(error.culprit(), Some(Rank(1)), "{error}");
    assert!(error.to_string().contains("rank 1 was interrupted"), "{error}");
}

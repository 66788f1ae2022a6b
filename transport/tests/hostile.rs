//! A peer can send what it likes: it gets a typed error that names it, and never a panic, a hang or memory
//! without bound.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/grid.rs"]
mod grid;

use std::time::{Duration, Instant};

use bytes::Bytes;
use gradwire_transport::collective::{self, Exchange};
use gradwire_transport::memory::{self, MemoryMesh};
use gradwire_transport::{
    Abort, Communicator, Event, ExchangeError, Frame, FrameError, Header, Limits, Loss, Mesh, Operation,
    Rank, Tag, World,
};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use grid::{PIECE, operation, painted, small_pieces};

const EPOCH: u32 = 9;
const NOW: Operation = Operation { step: 5, tag: Tag(1) };

/// Rank 0 of 3, which expects 40 bytes from each peer, in pieces of 16, 16 and 8.
fn exchange() -> Exchange {
    let world = World::new(0, 3, EPOCH).unwrap();
    let outgoing = vec![Bytes::from_static(b"own"); 3];
    collective::all_to_all(Instant::now(), world, NOW, outgoing, &[0, 40, 40], &small_pieces()).unwrap()
}

/// A frame of rank 1's message as it should be, if `offset` and `length` are.
fn frame(offset: u64, length: usize) -> Frame {
    let payload = painted(Rank(1), Rank(0), 5, length);
    let length = u32::try_from(length).unwrap();
    Frame {
        header: Header { operation: NOW, epoch: EPOCH, from: Rank(1), total: 40, offset, length },
        payload,
    }
}

fn with(change: impl FnOnce(&mut Header)) -> Frame {
    let mut frame = frame(0, 16);
    change(&mut frame.header);
    frame
}

fn refused(exchange: &mut Exchange, from: u32, frame: Frame) -> FrameError {
    match exchange.handle_frame(Instant::now(), Rank(from), frame) {
        Err(ExchangeError::Frame { rank, step: 5, source }) => {
            assert_eq!(rank, Rank(from), "{source}");
            source
        }
        other => panic!("expected a frame error, got {other:?}"),
    }
}

#[test]
fn frames_of_another_epoch_sender_or_operation_are_refused() {
    let mut exchange = exchange();
    let error = refused(&mut exchange, 1, with(|header| header.epoch = 8));
    assert_eq!(error, FrameError::Epoch { theirs: 8, ours: EPOCH });
    let error = refused(&mut exchange, 2, frame(0, 16));
    assert_eq!(error, FrameError::Sender { claimed: Rank(1), actual: Rank(2) });
    for theirs in [operation(5, 0), operation(5, 2), operation(4, 1), operation(6, 1)] {
        let error = refused(&mut exchange, 1, with(|header| header.operation = theirs));
        assert_eq!(error, FrameError::OutOfOrder { theirs, ours: NOW });
    }
}

#[test]
fn frames_from_the_own_rank_or_from_outside_the_world_are_refused() {
    let mut exchange = exchange();
    for from in [0, 3, u32::MAX] {
        let error = refused(&mut exchange, from, with(|header| header.from = Rank(from)));
        assert_eq!(error, FrameError::Stranger { own: Rank(0), size: 3 });
    }
    assert_eq!(
        ExchangeError::Frame {
            rank: Rank(3),
            step: 5,
            source: FrameError::Stranger { own: Rank(0), size: 3 }
        }
        .to_string(),
        "rank 3 sent a bad frame in step 5: not a peer of rank 0 in a world of 3 ranks"
    );
}

#[test]
fn another_total_than_expected_is_a_length_error_with_both_numbers() {
    for sent in [0, 39, 41, u64::MAX] {
        let error =
            exchange().handle_frame(Instant::now(), Rank(1), with(|header| header.total = sent)).unwrap_err();
        let due = ExchangeError::Length { rank: Rank(1), sent, expected: 40, step: 5, tag: Tag(1) };
        assert_eq!(error, due);
    }
}

#[test]
fn what_is_not_a_piece_is_refused() {
    let mut exchange = exchange();
    // Off the grid, short, long, the last one short or long, and nothing at all.
    for (offset, length) in
        [(1, 16), (8, 16), (0, 8), (0, 1), (0, 32), (0, 40), (16, 24), (32, 7), (16, 0), (0, 0)]
    {
        let error = refused(&mut exchange, 1, frame(offset, length));
        assert_eq!(error, FrameError::Piece { offset, length: length as u64, piece: 16 });
    }
    for (offset, length) in [(32, 16), (32, 9), (40, 1), (48, 16), (u64::MAX, 16), (u64::MAX - 15, 16)] {
        let error = refused(&mut exchange, 1, frame(offset, length));
        assert_eq!(error, FrameError::Outside { offset, length: length as u64, total: 40 });
    }
    // A mesh in memory does not compare a payload with its header.
    let error = refused(&mut exchange, 1, with(|header| header.length = 17));
    assert_eq!(error, FrameError::Truncated { have: 16, need: 17 });
    let error = refused(&mut exchange, 1, with(|header| header.length = 8));
    assert_eq!(error, FrameError::Oversized { length: 16, limit: 8 });
}

#[test]
fn nothing_at_the_end_of_a_message_of_whole_pieces_is_not_a_piece() {
    let world = World::new(0, 2, EPOCH).unwrap();
    for pieces in [1, 4] {
        let total = pieces * 16;
        let outgoing = vec![Bytes::new(); 2];
        let mut exchange =
            collective::all_to_all(Instant::now(), world, NOW, outgoing, &[0, total], &small_pieces())
                .unwrap();
        let mut empty = frame(total, 0);
        empty.header.total = total;
        let error = refused(&mut exchange, 1, empty);
        assert_eq!(error, FrameError::Piece { offset: total, length: 0, piece: 16 });
    }
}

#[test]
fn a_piece_that_comes_twice_is_refused_even_after_the_end() {
    let mut exchange = exchange();
    let now = Instant::now();
    for offset in [0, 16, 32] {
        let length = if offset == 32 { 8 } else { 16 };
        exchange.handle_frame(now, Rank(1), frame(offset, length)).unwrap();
        let error = refused(&mut exchange, 1, frame(offset, length));
        assert_eq!(error, FrameError::Repeated { offset, end: offset + length as u64 });
    }
    let error = refused(&mut exchange, 1, frame(16, 16));
    assert_eq!(error, FrameError::Repeated { offset: 16, end: 32 });
}

#[test]
fn an_empty_message_that_comes_twice_is_refused() {
    let world = World::new(0, 2, EPOCH).unwrap();
    let mut exchange = collective::barrier(Instant::now(), world, NOW, &small_pieces()).unwrap();
    let mut empty = frame(0, 0);
    empty.header.total = 0;
    exchange.handle_frame(Instant::now(), Rank(1), empty.clone()).unwrap();
    assert_eq!(refused(&mut exchange, 1, empty), FrameError::Repeated { offset: 0, end: 0 });
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(56), failure_persistence: None, cases: 1000, ..ProptestConfig::default() })]

    /// Small ranges, so that most fields are right most of the time and the rest is reached.
    #[test]
    fn no_frames_make_an_exchange_panic_or_end_with_other_lengths(
        frames in prop::collection::vec((0..4_u32, 0..4_u32, 0..20_u64, 0..20_u64, 0..20_usize, 0..40_usize), 0..40),
    ) {
        let mut exchange = exchange();
        while exchange.poll_transmit().is_some() {}
        for (from, claimed, odd, at, header_length, length) in frames {
            let mut frame = frame((at % 4) * 16, if at % 4 == 2 { 8 } else { 16 });
            frame.header.from = Rank(from);
            match odd {
                0 => frame.header.from = Rank(claimed),
                1 => frame.header.offset = at,
                2 => frame.header.total = at,
                3 => frame.payload = Bytes::from(vec![1; length]),
                4 => frame.header.length = u32::try_from(header_length).unwrap(),
                5 => frame.header.offset = u64::MAX - at,
                _ => {}
            }
            let result = exchange.handle_frame(Instant::now(), Rank(from), frame);
            if let Err(error) = result {
                prop_assert_eq!(error.culprit(), Some(Rank(from)));
            }
            if let Some(messages) = exchange.poll() {
                let lengths: Vec<_> = messages.iter().map(Bytes::len).collect();
                prop_assert_eq!(lengths, [3, 40, 40]);
            }
        }
    }
}

/// Rank 0's communicator, and rank 1's bare end of the mesh, which can send anything.
fn facing() -> (Communicator, MemoryMesh) {
    let mut meshes = memory::mesh(2, EPOCH);
    let peer = meshes.pop().unwrap();
    (Communicator::new(Box::new(meshes.pop().unwrap()), small_pieces()), peer)
}

/// What rank 0 tells `peer` at its end, past its frames and what others do.
fn told(peer: &mut MemoryMesh) -> Abort {
    loop {
        match peer.receive(Instant::now() + Duration::from_secs(60)) {
            Event::Lost(Rank(0), Loss::Aborted(abort)) => return abort,
            Event::Frame(..) | Event::Lost(Rank(1..), _) => {}
            other => panic!("expected an abort, got {other:?}"),
        }
    }
}

fn gather(communicator: &mut Communicator, operation: Operation) -> Result<Vec<Bytes>, ExchangeError> {
    communicator.all_gather(operation, painted(Rank(0), Rank(0), 5, 40), &[40; 2])
}

fn send_message(peer: &mut MemoryMesh, operation: Operation) {
    for (offset, length) in [(32, 8), (0, 16), (16, 16)] {
        let mut frame = frame(offset, length);
        frame.header.operation = operation;
        peer.send(Rank(0), frame);
    }
}

#[test]
fn a_peer_may_be_one_operation_ahead() {
    let (mut communicator, mut peer) = facing();
    send_message(&mut peer, operation(6, 0));
    send_message(&mut peer, NOW);
    let first = gather(&mut communicator, NOW).unwrap();
    let second = gather(&mut communicator, operation(6, 0)).unwrap();
    assert_eq!(first, second);
}

#[test]
fn a_message_sent_ahead_counts_even_if_its_sender_is_gone() {
    let (mut communicator, mut peer) = facing();
    send_message(&mut peer, NOW);
    send_message(&mut peer, operation(6, 0));
    peer.close(None);
    gather(&mut communicator, NOW).unwrap();
    gather(&mut communicator, operation(6, 0)).unwrap();
    let error = gather(&mut communicator, operation(7, 0)).unwrap_err();
    let due = ExchangeError::Lost { rank: Rank(1), loss: Loss::Closed, step: 7, missing: 40, total: 40 };
    assert_eq!(error, due);
}

/// Sends `frames` during an operation that can't end, and returns rank 0's error.
fn ahead(frames: impl IntoIterator<Item = Frame>) -> FrameError {
    let (mut communicator, mut peer) = facing();
    for frame in frames {
        peer.send(Rank(0), frame);
    }
    let error = gather(&mut communicator, NOW).unwrap_err();
    let ExchangeError::Frame { rank: Rank(1), step: 5, source } = error.clone() else {
        panic!("expected a frame error, got {error:?}")
    };
    let abort = told(&mut peer);
    assert_eq!(abort.culprit, Some(Rank(1)), "{abort}");
    assert_eq!(abort.to_string(), error.to_string(), "the abort says the same as the error");
    assert_eq!(gather(&mut communicator, operation(8, 0)), Err(error), "the first error is the last");
    source
}

#[test]
fn what_is_sent_ahead_is_held_to_the_rules_at_once() {
    let next = operation(6, 0);
    let early = |change: fn(&mut Header)| {
        let mut frame = frame(0, 16);
        frame.header.operation = next;
        change(&mut frame.header);
        frame
    };
    let error = ahead([early(|header| header.epoch = 3)]);
    assert_eq!(error, FrameError::Epoch { theirs: 3, ours: EPOCH });
    let error = ahead([early(|header| header.from = Rank(0))]);
    assert_eq!(error, FrameError::Sender { claimed: Rank(0), actual: Rank(1) });
    let error = ahead([early(|_| {}), early(|_| {})]);
    assert_eq!(error, FrameError::Repeated { offset: 0, end: 16 });
    let error = ahead([early(|header| header.offset = 25)]);
    assert_eq!(error, FrameError::Outside { offset: 25, length: 16, total: 40 });
    let error = ahead([early(|header| header.length = 17)]);
    assert_eq!(error, FrameError::Truncated { have: 16, need: 17 });
    let error = ahead([early(|_| {}), early(|header| (header.offset, header.total) = (16, 48))]);
    assert_eq!(error, FrameError::Total { before: 40, now: 48 });
    let longest = small_pieces().message_bytes;
    let error = ahead([early(|header| header.total = u64::MAX)]);
    assert_eq!(error, FrameError::Oversized { length: u64::MAX, limit: longest });
}

/// How messages are cut is the operation's own, so that is when it is known what is a piece.
#[test]
fn what_was_sent_ahead_and_is_no_piece_is_refused_when_its_operation_begins() {
    for offset in [3, 8, 24] {
        let (mut communicator, mut peer) = facing();
        let next = operation(6, 0);
        let mut odd = frame(offset, 16);
        odd.header.operation = next;
        peer.send(Rank(0), odd);
        send_message(&mut peer, NOW);
        gather(&mut communicator, NOW).unwrap();
        let error = gather(&mut communicator, next).unwrap_err();
        let source = FrameError::Piece { offset, length: 16, piece: 16 };
        assert_eq!(error, ExchangeError::Frame { rank: Rank(1), step: 6, source });
    }
}

#[test]
fn more_ahead_than_a_peer_may_send_is_refused() {
    // The least share: one whole frame, and what it costs to keep it.
    let limits = Limits { ahead_bytes: 0, ..small_pieces() };
    let limit = (1 << 20) + 568;
    let (length, cost) = (1000, 1568);
    let mut meshes = memory::mesh(2, EPOCH);
    let mut peer = meshes.pop().unwrap();
    let mut communicator = Communicator::new(Box::new(meshes.pop().unwrap()), limits);
    let total = 2 << 20;
    for offset in (0..).step_by(length).take(limit / cost + 1) {
        let mut early = frame(offset, length);
        (early.header.operation, early.header.total) = (operation(6, 0), total);
        peer.send(Rank(0), early);
    }
    let error = gather(&mut communicator, NOW).unwrap_err();
    let kept = (limit / cost + 1) as u64 * cost as u64;
    let source = FrameError::Ahead { kept, limit: limit as u64 };
    assert_eq!(error, ExchangeError::Frame { rank: Rank(1), step: 5, source });
}

#[test]
fn a_peer_two_operations_ahead_is_refused() {
    let later = operation(7, 0);
    for order in [[operation(6, 0), later], [later, operation(6, 0)]] {
        let error = ahead(order.map(|operation| {
            let mut frame = frame(0, 16);
            frame.header.operation = operation;
            frame
        }));
        assert_eq!(error, FrameError::OutOfOrder { theirs: later, ours: NOW });
    }
}

#[test]
fn a_peer_that_skips_an_operation_is_noticed_when_it_begins() {
    for theirs in [operation(5, 7), operation(7, 0)] {
        let (mut communicator, mut peer) = facing();
        send_message(&mut peer, theirs);
        send_message(&mut peer, NOW);
        gather(&mut communicator, NOW).unwrap();
        let ours = operation(6, 0);
        let error = gather(&mut communicator, ours).unwrap_err();
        let source = FrameError::OutOfOrder { theirs, ours };
        assert_eq!(error, ExchangeError::Frame { rank: Rank(1), step: 6, source });
    }
}

#[test]
fn a_frame_of_an_operation_that_is_over_is_refused() {
    let (mut communicator, mut peer) = facing();
    send_message(&mut peer, NOW);
    gather(&mut communicator, NOW).unwrap();
    peer.send(Rank(0), frame(0, 16));
    let ours = operation(6, 0);
    let error = gather(&mut communicator, ours).unwrap_err();
    let source = FrameError::OutOfOrder { theirs: NOW, ours };
    assert_eq!(error, ExchangeError::Frame { rank: Rank(1), step: 6, source });
}

#[test]
fn a_length_mismatch_in_a_message_sent_ahead_is_noticed_when_it_begins() {
    let (mut communicator, mut peer) = facing();
    send_message(&mut peer, operation(6, 4));
    send_message(&mut peer, NOW);
    gather(&mut communicator, NOW).unwrap();
    let error = communicator.all_gather(operation(6, 4), Bytes::new(), &[0, 48]).unwrap_err();
    let due = ExchangeError::Length { rank: Rank(1), sent: 40, expected: 48, step: 6, tag: Tag(4) };
    assert_eq!(error, due);
    assert_eq!(told(&mut peer).to_string(), "rank 1 sends 40 bytes in step 6, where 48 are expected");
}

#[test]
fn a_peer_that_keeps_sending_does_not_hide_one_that_does_not() {
    let mut meshes = memory::mesh(3, EPOCH);
    let mut chatty = meshes.remove(1);
    let mut idle = meshes.remove(1);
    let limits = Limits { stall: Duration::from_millis(50), ..small_pieces() };
    let mut communicator = Communicator::new(Box::new(meshes.remove(0)), limits);
    // A piece every 10 ms, the first before the clock starts, until rank 0 gives up.
    let total = 1_000_000 * PIECE as u64;
    let piece = move |offset| {
        let mut frame = frame(offset, PIECE);
        frame.header.total = total;
        frame
    };
    chatty.send(Rank(0), piece(0));
    let chatter = std::thread::spawn(move || {
        for offset in (0..total).step_by(PIECE).skip(1) {
            if let Event::Lost(_, loss) = chatty.receive(Instant::now() + Duration::from_millis(10)) {
                return loss;
            }
            chatty.send(Rank(0), piece(offset));
        }
        panic!("rank 0 waits for ever")
    });
    let expected = [0, total, 40];
    let error = communicator.all_to_all(NOW, vec![Bytes::new(); 3], &expected).unwrap_err();
    assert!(matches!(error, ExchangeError::Stalled { rank: Rank(2), missing: 40, total: 40, .. }), "{error}");
    let Loss::Aborted(abort) = chatter.join().unwrap() else { panic!("rank 0 left without a reason") };
    assert_eq!(abort.culprit, Some(Rank(2)));
    assert_eq!(told(&mut idle).culprit, Some(Rank(2)), "the one that is waited for is told too");
}

//! Collectives piece by piece: the state machine on its own, and what a caller may and may not do.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/grid.rs"]
mod grid;
#[path = "common/shuffle.rs"]
mod shuffle;

use std::ops::Range;
use std::time::{Duration, Instant};

use bytes::Bytes;
use gradwire_transport::collective::{Flow, Part};
use gradwire_transport::memory::{self, MemoryMesh};
use gradwire_transport::{
    Communicator, Cut, Event, ExchangeError, Frame, FrameError, Limits, Loss, Mesh, Pieces, Rank, World,
};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use gradwire_transport::sim::Random;
use grid::{CUT, Painted, operation, painted, small_pieces};
use shuffle::below;

const EPOCH: u32 = 9;

fn world(rank: u32, size: u32) -> World {
    World::new(rank, size, EPOCH).unwrap()
}

fn wide(lengths: &[usize]) -> Vec<u64> {
    lengths.iter().map(|&length| length as u64).collect()
}

/// Drives an exchange of `length(from, to)` bytes to its end in a random order, with random refusals for want of room.
fn shuffled(seed: u64, size: u32, cut: Cut, length: impl Fn(Rank, Rank) -> usize) {
    let (now, mut random) = (Instant::now(), Random::new(seed));
    let mut ranks: Vec<(Flow, Painted)> = (0..size)
        .map(|own| {
            let world = world(own, size);
            let lengths: Vec<_> = world.ranks().map(|to| length(world.rank(), to)).collect();
            let expected: Vec<_> = world.ranks().map(|from| length(from, world.rank())).collect();
            let (sent, due) = (wide(&lengths), wide(&expected));
            let flow = Flow::new(now, world, operation(3, 1), &sent, &due, cut, &small_pieces()).unwrap();
            (flow, Painted::new(world.rank(), 3, lengths, &expected))
        })
        .collect();
    let mut under_way: Vec<(Rank, Rank, Frame)> = Vec::new();
    let mut crowded: Vec<(usize, Rank)> = Vec::new();
    while ranks.iter().any(|(flow, _)| !flow.is_done()) {
        match below(&mut random, 3) {
            0 => {
                let from = below(&mut random, ranks.len());
                let (flow, pieces) = &mut ranks[from];
                let room = |to| {
                    let room = below(&mut random, 3) > 0;
                    if !room {
                        crowded.push((from, to));
                    }
                    room
                };
                if let Some(part) = flow.poll_transmit(room) {
                    let payload = pieces.make(part.to, part.range.clone()).unwrap();
                    let from = Rank(u32::try_from(from).unwrap());
                    under_way.push((from, part.to, flow.frame(&part, payload)));
                }
            }
            1 if !crowded.is_empty() => {
                let (from, to) = crowded.swap_remove(below(&mut random, crowded.len()));
                ranks[from].0.handle_room(now, to);
            }
            2 if !under_way.is_empty() => {
                let (from, to, frame) = under_way.swap_remove(below(&mut random, under_way.len()));
                let (flow, pieces) = &mut ranks[to.index()];
                let (offset, bytes) = flow.handle_frame(now, from, frame).unwrap();
                pieces.take(from, offset, bytes).unwrap();
            }
            _ => {}
        }
    }
    assert!(under_way.is_empty(), "seed {seed}: ended with frames under way");
    ranks.iter().for_each(|(_, pieces)| pieces.check());
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(1_024), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_lengths_in_any_cut_in_any_order_arrive(
        size in 1..6_u32, head in 0..40_usize, piece in 1..40_usize, tail in 0..40_usize, seed: u64,
        lengths in prop::collection::vec(0..150_usize, 25),
    ) {
        let cut = Cut { head, piece, tail };
        shuffled(seed, size, cut, |from, to| head + tail + lengths[from.index() * 5 + to.index()]);
    }

    #[test]
    fn the_pieces_of_a_message_are_all_of_it_its_body_is_cut_at_multiples_and_its_tail_is_apart(
        head in 0..40_u64, piece in 1..40_u64, tail in 0..40_u64, body in 0..200_u64,
    ) {
        let small = |length: u64| usize::try_from(length).unwrap();
        let cut = Cut { head: small(head), piece: small(piece), tail: small(tail) };
        let total = head + body + tail;
        let pieces: Vec<_> = (0..cut.count(total)).map(|index| cut.range(total, index)).collect();
        let (bodies, tails) = pieces.split_at(pieces.len() - usize::from(tail > 0));
        prop_assert!(tails.iter().all(|range| *range == (head + body..total)), "{tails:?}");
        match (bodies.first(), bodies.last()) {
            (Some(first), Some(last)) => prop_assert_eq!((first.start, last.end), (0, head + body)),
            _ => prop_assert_eq!((head, body), (0, 0), "only a tail comes alone"),
        }
        for (index, pair) in (1..).zip(bodies.windows(2)) {
            prop_assert_eq!(pair[0].end, head + index * piece);
            prop_assert_eq!(pair[1].start, pair[0].end);
        }
    }

    /// Small ranges, so that most fields are right most of the time and the rest is reached.
    #[test]
    fn no_frames_make_a_stream_give_a_byte_twice_or_outside(
        frames in prop::collection::vec((0..3_u32, 0..4_u64, 0..12_u64, 0..60_u64, 0..40_usize), 0..40),
    ) {
        // 5 in front and 16, 16, 8, 3 behind.
        let total = 5 + 40 + 3;
        let due = |index| CUT.range(total, index);
        let (now, world) = (Instant::now(), world(0, 2));
        let mut flow = Flow::new(now, world, operation(3, 1), &[total; 2], &[total; 2], CUT, &small_pieces()).unwrap();
        let mut pieces = Painted::new(Rank(0), 3, vec![48; 2], &[48; 2]);
        let mut came = Vec::new();
        for (from, index, odd, at, length) in frames {
            let range = due(index);
            let part = Part { to: Rank(0), range: range.clone(), total };
            let message = painted(Rank(1), Rank(0), 3, 48);
            let bounds = |range: Range<u64>| usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap();
            let mut frame = flow.frame(&part, message.slice(bounds(range.clone())));
            frame.header.from = Rank(1);
            match odd {
                0 => frame.header.from = Rank(from),
                1 => frame.header.offset = at,
                2 => frame.header.total = at,
                3 => frame.payload = Bytes::from(vec![1; length]),
                4 => frame.header.length = u32::try_from(length).unwrap(),
                5 => frame.header.offset = u64::MAX - at,
                _ => {}
            }
            let from = if odd == 6 { Rank(from) } else { Rank(1) };
            let claims = (frame.header.offset, u64::from(frame.header.length));
            match flow.handle_frame(now, from, frame) {
                Err(error) => prop_assert_eq!(error.culprit(), Some(from)),
                Ok((offset, bytes)) => {
                    prop_assert_eq!(claims, (offset, bytes.len() as u64));
                    prop_assert!((0..4).any(|index| due(index) == (offset..offset + claims.1)), "{claims:?}");
                    prop_assert!(!came.contains(&offset), "{claims:?} came twice");
                    came.push(offset);
                    // Panics if a byte comes twice or lies outside.
                    pieces.take(Rank(1), offset, bytes).unwrap();
                }
            }
        }
    }
}

#[test]
fn pieces_of_another_cut_are_refused() {
    // 5 in front and 16, 16, 3 behind.
    let (now, total) = (Instant::now(), 40);
    for cut in [
        Cut::every(16),
        Cut { head: 4, ..CUT },
        Cut { tail: 2, ..CUT },
        Cut { piece: 15, ..CUT },
        Cut { piece: 17, ..CUT },
        Cut { head: 5, piece: 40, tail: 3 },
    ] {
        let flow = |rank, cut| {
            Flow::new(now, world(rank, 2), operation(3, 1), &[total; 2], &[total; 2], cut, &small_pieces())
                .unwrap()
        };
        let (mut ours, mut theirs) = (flow(0, CUT), flow(1, cut));
        let mut pieces = Painted::new(Rank(1), 3, vec![40; 2], &[40; 2]);
        let refused = std::iter::from_fn(|| theirs.poll_transmit(|_| true)).collect::<Vec<_>>();
        let refused: Vec<_> = refused
            .into_iter()
            .filter_map(|part| {
                let frame = theirs.frame(&part, pieces.make(part.to, part.range.clone()).unwrap());
                ours.handle_frame(now, Rank(1), frame).err()
            })
            .collect();
        assert!(!refused.is_empty(), "{cut:?}");
        for error in refused {
            let ExchangeError::Frame { rank: Rank(1), step: 3, source } = error else { panic!("{error:?}") };
            assert!(matches!(source, FrameError::Piece { piece: 16, .. }), "{cut:?}: {source}");
        }
        assert!(!ours.is_done(), "{cut:?}");
    }
}

#[test]
fn a_cut_or_a_length_that_cannot_be_is_the_callers_fault() {
    let begin = |cut, length| {
        let limits = small_pieces();
        match Flow::new(Instant::now(), world(0, 2), operation(1, 0), &[length; 2], &[9; 2], cut, &limits) {
            Ok(_) => "no error".to_owned(),
            Err(error) => error.to_string(),
        }
    };
    assert_eq!(begin(CUT, 8), "no error");
    assert_eq!(begin(CUT, 7), "caller: a message of 7 bytes with rank 1, head and tail have 8");
    let text = begin(Cut { piece: 0, ..CUT }, 8);
    assert_eq!(text, "caller: pieces of 0 bytes are not in 1..=1048576");
    let text = begin(Cut { piece: 1 << 20, ..CUT }, 8);
    assert_eq!(text, "caller: pieces of 1048581 bytes are not in 1..=1048576");
    let text = begin(Cut { tail: (1 << 20) + 1, ..CUT }, 2 << 20);
    assert_eq!(text, "caller: pieces of 1048577 bytes are not in 1..=1048576");
    assert!(begin(Cut { head: usize::MAX, ..CUT }, 8).starts_with("caller: pieces of"));
}

#[test]
fn a_peer_that_has_not_begun_gets_its_share_and_no_more_until_it_has() {
    let limits = Limits { ahead_bytes: 3 << 20, ..Limits::default() };
    let (now, total, piece) = (Instant::now(), 4 << 20, 64 << 10);
    for (size, pieces_ahead) in [(2, (3 << 20) / (piece + 568)), (4, ((1 << 20) + 568) / (piece + 568))] {
        let lengths = vec![total as u64; size as usize];
        let cut = Cut::every(piece);
        let flow = |rank| {
            Flow::new(now, world(rank, size), operation(1, 0), &lengths, &lengths, cut, &limits).unwrap()
        };
        let (mut flow, mut peer) = (flow(0), flow(1));
        let drain = |flow: &mut Flow, to| {
            let all: Vec<_> = std::iter::from_fn(|| flow.poll_transmit(|_| true)).collect();
            all.iter().filter(|part| part.to == to).count()
        };
        assert_eq!(drain(&mut flow, Rank(1)), pieces_ahead, "world of {size}");
        assert_eq!(drain(&mut flow, Rank(1)), 0, "world of {size}");
        let to_us =
            std::iter::from_fn(|| peer.poll_transmit(|_| true)).find(|part| part.to == Rank(0)).unwrap();
        let frame = peer.frame(&to_us, Bytes::from(vec![0; piece]));
        flow.handle_frame(now, Rank(1), frame).unwrap();
        assert_eq!(drain(&mut flow, Rank(1)), total / piece - pieces_ahead, "world of {size}");
        assert_eq!(drain(&mut flow, Rank(2)), 0, "another peer has not begun");
    }
}

#[test]
fn a_peer_that_takes_nothing_is_named_at_the_deadline_and_one_that_is_lost_is_not_waited_for() {
    let start = Instant::now();
    let second = Duration::from_secs(1);
    let limits = Limits { stall: 10 * second, ..small_pieces() };
    let flow =
        |rank| Flow::new(start, world(rank, 2), operation(4, 0), &[40; 2], &[40; 2], Cut::every(16), &limits);
    for lost in [false, true] {
        let (mut ours, mut theirs) = (flow(0).unwrap(), flow(1).unwrap());
        let mut pieces = Painted::new(Rank(1), 4, vec![40; 2], &[40; 2]);
        while let Some(part) = theirs.poll_transmit(|_| true) {
            let frame = theirs.frame(&part, pieces.make(part.to, part.range.clone()).unwrap());
            ours.handle_frame(start, Rank(1), frame).unwrap();
        }
        assert_eq!(ours.poll_timeout(), None, "nothing is waited for");
        assert!(ours.poll_transmit(|_| true).is_some());
        assert_eq!(ours.poll_transmit(|_| false), None);
        ours.handle_room(start + 5 * second, Rank(1));
        assert_eq!(ours.poll_timeout(), None, "there is room");
        assert_eq!(ours.poll_transmit(|_| false), None);
        ours.handle_timeout(start + 14 * second).unwrap();
        assert_eq!(ours.poll_timeout(), Some(start + 15 * second));
        if lost {
            ours.handle_loss(Rank(1), Loss::Closed).unwrap();
            assert!(ours.is_done(), "its message is here, and nobody takes ours");
            assert_eq!(ours.poll_timeout(), None);
            continue;
        }
        let error = ours.handle_timeout(start + 15 * second).unwrap_err();
        assert_eq!(error.culprit(), Some(Rank(1)));
        assert_eq!(
            error.to_string(),
            "rank 1 took nothing of step 4 for 10.0s, deadline 10.0s (24 of 40 bytes wait)"
        );
    }
}

#[test]
fn tails_are_made_after_all_bodies_and_of_nobody_that_is_gone() {
    let (now, lengths) = (Instant::now(), [8, 8, 8 + 5 * 16, 8 + 2 * 16]);
    let flow = || {
        let limits = small_pieces();
        Flow::new(now, world(0, 4), operation(3, 1), &lengths, &[8; 4], CUT, &limits).unwrap()
    };
    let is_tail = |part: &Part| part.range.end == part.total;
    let mut all = flow();
    let parts: Vec<_> = std::iter::from_fn(|| all.poll_transmit(|_| true)).collect();
    let tails: Vec<_> = parts.iter().map(is_tail).collect();
    // A peer without a body has its head at once.
    assert_eq!(tails, [[false; 8].as_slice(), &[true; 3]].concat(), "{parts:?}");

    let mut crowded = flow();
    let parts: Vec<_> = std::iter::from_fn(|| crowded.poll_transmit(|to| to != Rank(2))).collect();
    assert_eq!(parts.iter().map(is_tail).collect::<Vec<_>>(), [false; 3], "{parts:?}");
    crowded.handle_room(now, Rank(2));
    assert!(crowded.poll_transmit(|to| to != Rank(2)).is_none(), "nothing but what waits for room");
    // Rank 2 has said all, and leaves.
    let mut peer =
        Flow::new(now, world(2, 4), operation(3, 1), &[8; 4], &lengths, CUT, &small_pieces()).unwrap();
    while let Some(part) = peer.poll_transmit(|_| true) {
        let length = usize::try_from(part.range.end - part.range.start).unwrap();
        let frame = peer.frame(&part, Bytes::from(vec![0; length]));
        if part.to == Rank(0) {
            crowded.handle_frame(now, Rank(2), frame).unwrap();
        }
    }
    crowded.handle_loss(Rank(2), Loss::Closed).unwrap();
    let parts: Vec<_> = std::iter::from_fn(|| crowded.poll_transmit(|_| true)).collect();
    assert_eq!(parts.iter().map(|part| part.to).collect::<Vec<_>>(), [Rank(1), Rank(3)]);
    assert!(parts.iter().all(is_tail), "{parts:?}");
}

#[test]
fn a_peer_that_is_held_up_is_not_late_and_the_one_that_is_waited_for_is() {
    let start = Instant::now();
    let second = Duration::from_secs(1);
    let limits = Limits { stall: 10 * second, ..small_pieces() };
    let mut flow =
        Flow::new(start, world(0, 3), operation(4, 0), &[40; 3], &[40; 3], Cut::every(16), &limits).unwrap();
    let mut theirs =
        Flow::new(start, world(2, 3), operation(4, 0), &[40; 3], &[40; 3], Cut::every(16), &limits).unwrap();
    flow.handle_hold(start, Rank(1), true);
    let part = std::iter::from_fn(|| theirs.poll_transmit(|_| true)).find(|part| part.to == Rank(0)).unwrap();
    let frame = theirs.frame(&part, Bytes::from(vec![0; 16]));
    flow.handle_frame(start + 5 * second, Rank(2), frame).unwrap();
    flow.handle_timeout(start + 14 * second).unwrap();
    assert_eq!(flow.poll_timeout(), Some(start + 15 * second), "rank 1 is not waited for");
    assert_eq!(flow.handle_timeout(start + 15 * second).unwrap_err().culprit(), Some(Rank(2)));

    flow.handle_hold(start + 15 * second, Rank(2), true);
    flow.handle_timeout(start + 40 * second).unwrap();
    assert!(flow.poll_timeout() > Some(start + 40 * second), "nobody is waited for");
    flow.handle_hold(start + 41 * second, Rank(1), false);
    let waits = [Rank(1), Rank(2)].map(|peer| flow.longest_wait(peer));
    assert_eq!(waits, [Duration::ZERO, 10 * second], "what a peer is held up for is no wait for it");
    flow.handle_timeout(start + 50 * second).unwrap();
    assert_eq!(flow.handle_timeout(start + 51 * second).unwrap_err().culprit(), Some(Rank(1)));
}

/// Rank 0's communicator, and rank 1's bare end of the mesh.
fn facing() -> (Communicator, MemoryMesh) {
    let mut meshes = memory::mesh(2, EPOCH);
    let peer = meshes.pop().unwrap();
    (Communicator::new(Box::new(meshes.pop().unwrap()), small_pieces()), peer)
}

/// Makes pieces that are a byte short, or none.
struct Faulty {
    short: bool,
}

#[derive(Debug, PartialEq)]
enum Fault {
    Exchange(ExchangeError),
    Device,
}

impl From<ExchangeError> for Fault {
    fn from(error: ExchangeError) -> Self {
        Self::Exchange(error)
    }
}

impl Pieces for Faulty {
    type Error = Fault;

    fn make(&mut self, _to: Rank, range: Range<u64>) -> Result<Bytes, Fault> {
        let length = usize::try_from(range.end - range.start).unwrap();
        if self.short { Ok(Bytes::from(vec![0; length - 1])) } else { Err(Fault::Device) }
    }

    fn take(&mut self, _from: Rank, _offset: u64, _bytes: Bytes) -> Result<(), Fault> {
        Ok(())
    }
}

#[test]
fn a_piece_of_another_length_than_asked_for_is_the_callers_fault() {
    let (mut communicator, _peer) = facing();
    let error =
        communicator.stream(operation(1, 0), &[40; 2], &[40; 2], Cut::every(16), &mut Faulty { short: true });
    let reason = "a piece of 15 bytes for rank 1, where 16 are asked for".to_owned();
    assert_eq!(error, Err(Fault::Exchange(ExchangeError::Caller { reason })));
}

#[test]
fn a_caller_that_breaks_off_gets_its_own_error_and_says_why_itself() {
    let (mut communicator, mut peer) = facing();
    let fault = communicator.stream(
        operation(1, 0),
        &[40; 2],
        &[40; 2],
        Cut::every(16),
        &mut Faulty { short: false },
    );
    assert_eq!(fault, Err(Fault::Device));
    let error = communicator.barrier(operation(2, 0)).unwrap_err();
    assert_eq!(error.to_string(), "caller: a collective after one that the caller broke off");
    drop(communicator);
    let Event::Lost(Rank(0), Loss::Aborted(abort)) = peer.receive(Instant::now() + Duration::from_secs(60))
    else {
        panic!("not told")
    };
    assert_eq!(abort.culprit, Some(Rank(0)), "{abort}");
}

#[test]
fn the_reason_of_a_caller_that_breaks_off_is_what_others_hear() {
    let (mut communicator, mut peer) = facing();
    let _ = communicator.stream(
        operation(1, 0),
        &[40; 2],
        &[40; 2],
        Cut::every(16),
        &mut Faulty { short: false },
    );
    let abort = gradwire_transport::Abort { culprit: Some(Rank(0)), reason: "lost its device".into() };
    communicator.abort(&abort);
    let heard = peer.receive(Instant::now() + Duration::from_secs(60));
    assert_eq!(heard, Event::Lost(Rank(0), Loss::Aborted(abort)));
}

//! The exchange on its own: any order of events, a virtual clock, a world of 64 on one thread.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/grid.rs"]
mod grid;
#[path = "common/shuffle.rs"]
mod shuffle;

use std::time::{Duration, Instant};

use bytes::Bytes;
use gradwire_transport::collective::{self, Exchange};
use gradwire_transport::{Abort, ExchangeError, Frame, Limits, Loss, Rank, World};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use grid::{LENGTHS, PIECE, WORLDS, operation, painted, small_pieces};
use shuffle::shuffled;

const EPOCH: u32 = 9;

fn world(rank: u32, size: u32) -> World {
    World::new(rank, size, EPOCH).unwrap()
}

/// An all-to-all of `size` ranks, with painted blocks of `length(from, to)` bytes.
fn all_to_all(size: u32, limits: &Limits, length: impl Fn(Rank, Rank) -> usize) -> Vec<Exchange> {
    let now = Instant::now();
    (0..size)
        .map(|own| {
            let world = world(own, size);
            let own = world.rank();
            let outgoing = world.ranks().map(|to| painted(own, to, 3, length(own, to))).collect();
            let expected: Vec<_> = world.ranks().map(|from| length(from, own) as u64).collect();
            collective::all_to_all(now, world, operation(3, 1), outgoing, &expected, limits).unwrap()
        })
        .collect()
}

fn due(size: u32, length: impl Fn(Rank, Rank) -> usize) -> Vec<Vec<Bytes>> {
    let ranks = || world(0, size).ranks();
    ranks().map(|to| ranks().map(|from| painted(from, to, 3, length(from, to))).collect()).collect()
}

#[test]
fn the_result_does_not_depend_on_the_order_of_arrival() {
    for size in WORLDS {
        let length = |from: Rank, to: Rank| LENGTHS[(from.index() * 3 + to.index()) % LENGTHS.len()];
        for seed in 0..20 {
            println!("world {size}, seed {seed}");
            let got = shuffled(seed, &mut all_to_all(size, &small_pieces(), length));
            assert_eq!(got, due(size, length), "world {size}, seed {seed}");
        }
    }
}

#[test]
fn a_world_of_64_exchanges_every_block() {
    let length = |from: Rank, to: Rank| (from.index() + to.index() * 5) % 40;
    println!("seed 64");
    let got = shuffled(64, &mut all_to_all(64, &small_pieces(), length));
    assert_eq!(got, due(64, length));
}

#[test]
fn an_all_gather_and_a_barrier_end_in_any_order_too() {
    let now = Instant::now();
    let size = 5;
    for seed in 0..20 {
        println!("seed {seed}");
        let message = |rank: Rank| painted(rank, Rank(0), 3, LENGTHS[rank.index() + 5]);
        let lengths: Vec<_> = world(0, size).ranks().map(|rank| message(rank).len() as u64).collect();
        let mut exchanges: Vec<_> = (0..size)
            .map(|own| {
                let own = world(own, size);
                collective::all_gather(
                    now,
                    own,
                    operation(3, 1),
                    message(own.rank()),
                    &lengths,
                    &small_pieces(),
                )
                .unwrap()
            })
            .collect();
        let all: Vec<_> = world(0, size).ranks().map(message).collect();
        assert_eq!(shuffled(seed, &mut exchanges), vec![all; size as usize], "seed {seed}");

        let mut exchanges: Vec<_> = (0..size)
            .map(|own| collective::barrier(now, world(own, size), operation(3, 2), &small_pieces()).unwrap())
            .collect();
        assert_eq!(shuffled(seed, &mut exchanges), vec![vec![Bytes::new(); 5]; 5], "seed {seed}");
    }
}

#[test]
fn peers_take_turns_beginning_after_the_own_rank() {
    let mut exchange = all_to_all(4, &small_pieces(), |_, to| [40, 17, 0, 0][to.index()]).swap_remove(2);
    let sent: Vec<_> = std::iter::from_fn(|| exchange.poll_transmit())
        .map(|(to, frame)| (to.0, frame.header.offset))
        .collect();
    assert_eq!(sent, [(3, 0), (0, 0), (1, 0), (0, 16), (1, 16), (0, 32)]);
}

#[test]
fn a_message_of_one_piece_is_not_copied() {
    let mut exchanges = all_to_all(2, &small_pieces(), |_, _| PIECE);
    let (_, frame) = exchanges[1].poll_transmit().unwrap();
    let sent = frame.payload.as_ptr();
    exchanges[0].handle_frame(Instant::now(), Rank(1), frame).unwrap();
    while exchanges[0].poll_transmit().is_some() {}
    assert_eq!(exchanges[0].poll().unwrap()[1].as_ptr(), sent);
}

#[test]
fn the_result_waits_for_the_own_frames_to_be_handed_out_and_comes_once() {
    let mut exchanges = all_to_all(2, &small_pieces(), |_, _| PIECE + 1);
    let frames: Vec<_> = std::iter::from_fn(|| exchanges[1].poll_transmit()).collect();
    for (_, frame) in frames {
        exchanges[0].handle_frame(Instant::now(), Rank(1), frame).unwrap();
    }
    assert_eq!(exchanges[0].poll_timeout(), None, "nothing is awaited any more");
    assert_eq!(exchanges[0].poll(), None, "the peer still needs these frames");
    while exchanges[0].poll_transmit().is_some() {}
    assert!(exchanges[0].poll().is_some());
    assert_eq!(exchanges[0].poll(), None);
}

/// Rank 0 of 3 on a virtual clock, and the frames that ranks 1 and 2 have for it: three pieces each.
fn waiting(now: Instant, stall: Duration) -> (Exchange, Vec<Frame>, Vec<Frame>) {
    let limits = Limits { stall, ..small_pieces() };
    let mut exchanges: Vec<_> = (0..3)
        .map(|own| {
            let own = world(own, 3);
            let message = painted(own.rank(), Rank(0), 3, 40);
            collective::all_gather(now, own, operation(3, 1), message, &[40; 3], &limits).unwrap()
        })
        .collect();
    let mut frames = |from: usize| -> Vec<Frame> {
        std::iter::from_fn(|| exchanges[from].poll_transmit())
            .filter_map(|(to, frame)| (to == Rank(0)).then_some(frame))
            .collect()
    };
    let (one, two) = (frames(1), frames(2));
    (exchanges.swap_remove(0), one, two)
}

#[test]
fn a_peer_that_makes_no_progress_stalls_at_its_deadline_and_not_before() {
    let start = Instant::now();
    let second = Duration::from_secs(1);
    let (mut exchange, one, two) = waiting(start, 10 * second);
    // Rank 1 sends a piece every 9 seconds; rank 2 sends one after 5, then nothing.
    exchange.handle_frame(start + 5 * second, Rank(2), two[0].clone()).unwrap();
    exchange.handle_frame(start + 9 * second, Rank(1), one[0].clone()).unwrap();
    exchange.handle_timeout(start + 10 * second).unwrap();
    assert_eq!(exchange.poll_timeout(), Some(start + 15 * second));
    let just_before = start + 15 * second - Duration::from_nanos(1);
    exchange.handle_timeout(just_before).unwrap();
    let error = exchange.handle_timeout(start + 15 * second).unwrap_err();
    let due = ExchangeError::Stalled {
        rank: Rank(2),
        waited: 10 * second,
        deadline: 10 * second,
        step: 3,
        missing: 24,
        total: 40,
    };
    assert_eq!(error, due);
    assert_eq!(
        error.to_string(),
        "rank 2 sent nothing of step 3 for 10.0s, deadline 10.0s (24 of 40 bytes missing)"
    );
}

#[test]
fn a_complete_message_has_no_deadline() {
    let start = Instant::now();
    let second = Duration::from_secs(1);
    let (mut exchange, one, two) = waiting(start, 10 * second);
    for frame in two {
        exchange.handle_frame(start, Rank(2), frame).unwrap();
    }
    exchange.handle_frame(start + 9 * second, Rank(1), one[2].clone()).unwrap();
    exchange.handle_timeout(start + 18 * second).unwrap();
    let error = exchange.handle_timeout(start + 30 * second).unwrap_err();
    assert_eq!(error.culprit(), Some(Rank(1)), "{error}");
}

#[test]
fn the_loss_of_the_own_rank_changes_nothing() {
    let now = Instant::now();
    let mut exchanges = all_to_all(3, &small_pieces(), |_, _| PIECE + 1);
    let mut exchange = exchanges.swap_remove(0);
    let mut sent = 0;
    loop {
        assert_eq!(exchange.handle_loss(Rank(0), Loss::Closed), Ok(()), "after {sent} frames");
        assert_eq!(exchange.poll(), None, "after {sent} frames");
        if exchange.poll_transmit().is_none() {
            break;
        }
        sent += 1;
    }
    assert_eq!(sent, 4, "two pieces for each of two peers");
    for mut peer in exchanges {
        while let Some((to, frame)) = peer.poll_transmit() {
            if to == Rank(0) {
                exchange.handle_frame(now, frame.header.from, frame).unwrap();
            }
        }
    }
    assert!(exchange.poll().is_some(), "every message is there");
}

#[test]
fn a_loss_matters_only_while_the_message_is_incomplete() {
    let now = Instant::now();
    let (mut exchange, one, two) = waiting(now, Duration::from_secs(1));
    for frame in one {
        exchange.handle_frame(now, Rank(1), frame).unwrap();
    }
    exchange.handle_frame(now, Rank(2), two[1].clone()).unwrap();
    exchange.handle_loss(Rank(1), Loss::Closed).unwrap();
    exchange.handle_loss(Rank(0), Loss::Closed).unwrap();
    exchange.handle_loss(Rank(77), Loss::Closed).unwrap();

    let (rank, step, missing, total) = (Rank(2), 3, 24, 40);
    let second = Duration::from_secs(1);
    let abort = Abort { culprit: Some(Rank(1)), reason: "caught fire".to_owned() };
    let frame_error = gradwire_transport::FrameError::Reserved { found: 7 };
    let protocol = Loss::Protocol { reason: "flow control".to_owned() };
    let cases = [
        (
            Loss::Silent { silent: 4 * second, deadline: 3 * second },
            ExchangeError::Silent { rank, silent: 4 * second, deadline: 3 * second, step, missing, total },
        ),
        (Loss::Closed, ExchangeError::Lost { rank, loss: Loss::Closed, step, missing, total }),
        (Loss::Aborted(abort.clone()), ExchangeError::Aborted { by: rank, abort, step }),
        (Loss::Malformed(frame_error.clone()), ExchangeError::Frame { rank, step, source: frame_error }),
        (protocol.clone(), ExchangeError::Lost { rank, loss: protocol, step, missing, total }),
    ];
    for (loss, due) in cases {
        assert_eq!(exchange.handle_loss(rank, loss.clone()), Err(due), "{loss:?}");
    }
}

#[test]
fn a_caller_that_breaks_the_rules_is_told_both_numbers() {
    let now = Instant::now();
    let good = small_pieces();
    let begin = |messages: usize, expected: &[u64], limits: &Limits| {
        let outgoing = vec![Bytes::from_static(b"12345"); messages];
        match collective::all_to_all(now, world(0, 3), operation(1, 0), outgoing, expected, limits) {
            Ok(_) => "no error".to_owned(),
            Err(error) => error.to_string(),
        }
    };
    assert_eq!(begin(3, &[5, 5, 5], &good), "no error");
    let text = begin(2, &[5, 5, 5], &good);
    assert_eq!(text, "caller: 2 messages and 3 expected lengths in a world of 3 ranks");
    let text = begin(3, &[5; 4], &good);
    assert_eq!(text, "caller: 3 messages and 4 expected lengths in a world of 3 ranks");
    let text = begin(3, &[0, 0, 9], &Limits { message_bytes: 8, ..good });
    assert_eq!(text, "caller: a message of 9 bytes with rank 2, limit 8");
    let text = begin(3, &[0, 0, 0], &Limits { message_bytes: 4, ..good });
    assert_eq!(text, "caller: a message of 5 bytes with rank 1, limit 4");
    let text = begin(3, &[0, u64::MAX, 0], &good);
    assert_eq!(text, "caller: a message of 18446744073709551615 bytes with rank 1, limit 4294967296");
    for piece_bytes in [0, 1_048_577] {
        let text = begin(3, &[5; 3], &Limits { piece_bytes, ..good });
        assert_eq!(text, format!("caller: pieces of {piece_bytes} bytes are not in 1..=1048576"));
    }
    for stall in [Duration::ZERO, Duration::MAX] {
        let text = begin(3, &[5; 3], &Limits { stall, ..good });
        assert!(text.starts_with("caller: a stall deadline of"), "{text}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(2_407), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_lengths_in_any_pieces_in_any_order_arrive(
        size in 1..7_u32, piece_bytes in 1..40_usize, seed: u64,
        lengths in prop::collection::vec(0..150_usize, 36),
    ) {
        let limits = Limits { piece_bytes, ..Limits::default() };
        let length = |from: Rank, to: Rank| lengths[from.index() * 6 + to.index()];
        let got = shuffled(seed, &mut all_to_all(size, &limits, length));
        prop_assert_eq!(got, due(size, length));
    }
}

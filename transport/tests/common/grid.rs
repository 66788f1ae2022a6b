//! What every mesh must carry: the grid of world size x message length, for any way to make a mesh.
//!
//! Each function takes `make`, which connects n ranks and gives their endpoints by rank. Bytes are painted with a
//! cycle of 251, so that a swapped, shifted or repeated block shows. Nothing here looks at a clock.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "shared by several test files, none of which uses all of it")]

use std::ops::Range;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use gradwire_transport::{Communicator, Cut, ExchangeError, Limits, Mesh, Operation, Pieces, Rank, Tag};

/// World sizes of the grid.
pub(crate) const WORLDS: [u32; 5] = [1, 2, 3, 5, 7];

/// Small, so that a message of 1000 bytes is 63 pieces.
pub(crate) const PIECE: usize = 16;

/// Message lengths of the grid in bytes, around every boundary of a piece.
pub(crate) const LENGTHS: [usize; 10] = [0, 1, 7, 8, 9, 1000, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 5];

/// Small pieces, and a deadline at which a fault fails the test instead of holding it up for 10 minutes.
pub(crate) fn small_pieces() -> Limits {
    Limits { piece_bytes: PIECE, stall: Duration::from_secs(30), ..Limits::default() }
}

/// Collective `tag` of `step`.
pub(crate) fn operation(step: u64, tag: u16) -> Operation {
    Operation { step, tag: Tag(tag) }
}

/// The message of `length` bytes from one rank to another in a step. Two different (from, to) in a world of at
/// most 7, or two steps in a row, never start with the same byte.
pub(crate) fn painted(from: Rank, to: Rank, step: u64, length: usize) -> Bytes {
    let start = u64::from(from.0) * 31 + u64::from(to.0) * 17 + step * 7;
    (start..).take(length).map(|at| u8::try_from(at % 251).unwrap()).collect()
}

/// Runs `body` for every rank at once, each on a thread, and returns what they returned, by rank.
pub(crate) fn on_every_rank<T: Send>(
    meshes: Vec<Box<dyn Mesh>>,
    limits: Limits,
    body: impl Fn(&mut Communicator) -> T + Sync,
) -> Vec<T> {
    let body = &body;
    thread::scope(|scope| {
        let ranks: Vec<_> = meshes
            .into_iter()
            .map(|mesh| {
                scope.spawn(move || {
                    let mut communicator = Communicator::new(mesh, limits);
                    let result = body(&mut communicator);
                    communicator.close();
                    result
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Runs every collective test of this file.
pub(crate) fn carries_the_whole_grid(make: impl Fn(u32) -> Vec<Box<dyn Mesh>>) {
    all_to_all_delivers_every_block(&make);
    all_to_all_takes_a_different_length_from_every_peer(&make);
    all_gather_gives_every_rank_every_message(&make);
    streams_deliver_every_piece_once(&make);
    collectives_of_all_kinds_follow_each_other_without_a_pause(&make);
    counted_frames_are_those_of_the_price_list(&make);
}

pub(crate) fn all_to_all_delivers_every_block(make: impl Fn(u32) -> Vec<Box<dyn Mesh>>) {
    for size in WORLDS {
        on_every_rank(make(size), small_pieces(), |communicator| {
            let own = communicator.world().rank();
            for (step, length) in (1..).zip(LENGTHS) {
                let outgoing =
                    communicator.world().ranks().map(|to| painted(own, to, step, length)).collect();
                let expected = vec![length as u64; size as usize];
                let incoming = communicator.all_to_all(operation(step, 0), outgoing, &expected).unwrap();
                let due: Vec<_> =
                    communicator.world().ranks().map(|from| painted(from, own, step, length)).collect();
                assert_eq!(incoming, due, "rank {own} of {size}, {length} bytes");
            }
        });
    }
}

pub(crate) fn all_to_all_takes_a_different_length_from_every_peer(make: impl Fn(u32) -> Vec<Box<dyn Mesh>>) {
    let length = |from: Rank, to: Rank, step: u64| {
        let at = u64::from(from.0) * 3 + u64::from(to.0) + step;
        LENGTHS[usize::try_from(at).unwrap() % LENGTHS.len()]
    };
    for size in WORLDS {
        on_every_rank(make(size), small_pieces(), |communicator| {
            let world = communicator.world();
            let own = world.rank();
            for step in 1..=10 {
                let outgoing =
                    world.ranks().map(|to| painted(own, to, step, length(own, to, step))).collect();
                let expected: Vec<_> = world.ranks().map(|from| length(from, own, step) as u64).collect();
                let incoming = communicator.all_to_all(operation(step, 3), outgoing, &expected).unwrap();
                let due: Vec<_> =
                    world.ranks().map(|from| painted(from, own, step, length(from, own, step))).collect();
                assert_eq!(incoming, due, "rank {own} of {size}, step {step}");
            }
        });
    }
}

/// With a head and a tail, so that no piece starts where those of whole messages do.
pub(crate) const CUT: Cut = Cut { head: 5, piece: PIECE, tail: 3 };

/// One rank's painted messages of a step, made piece by piece, and those that came.
pub(crate) struct Painted {
    own: Rank,
    step: u64,
    /// Where the next piece for each rank starts.
    pub(crate) made: Vec<u64>,
    /// By rank, with what no paint is where nothing came.
    pub(crate) received: Vec<Vec<Option<u8>>>,
    lengths: Vec<usize>,
}

impl Painted {
    /// `lengths[r]` bytes go to rank r, and `expected[r]` come from it.
    pub(crate) fn new(own: Rank, step: u64, lengths: Vec<usize>, expected: &[usize]) -> Self {
        let received = expected.iter().map(|&length| vec![None; length]).collect();
        Self { own, step, made: vec![0; lengths.len()], received, lengths }
    }

    /// Everything was made, and everything that came is as it was painted.
    pub(crate) fn check(&self) {
        for (rank, received) in (0..).map(Rank).zip(&self.received) {
            if rank != self.own {
                let due = painted(rank, self.own, self.step, received.len());
                let due: Vec<_> = due.into_iter().map(Some).collect();
                assert_eq!(received, &due, "rank {} from {rank}, step {}", self.own, self.step);
                assert_eq!(self.made[rank.index()], self.lengths[rank.index()] as u64, "made for {rank}");
            }
        }
    }
}

impl Pieces for Painted {
    type Error = ExchangeError;

    fn make(&mut self, to: Rank, range: Range<u64>) -> Result<Bytes, ExchangeError> {
        assert_ne!(to, self.own, "nothing travels to the own rank");
        assert_eq!(range.start, self.made[to.index()], "pieces are made once and in order");
        self.made[to.index()] = range.end;
        let range = usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap();
        Ok(painted(self.own, to, self.step, self.lengths[to.index()]).slice(range))
    }

    fn take(&mut self, from: Rank, offset: u64, bytes: Bytes) -> Result<(), ExchangeError> {
        let start = usize::try_from(offset).unwrap();
        for (place, byte) in self.received[from.index()][start..start + bytes.len()].iter_mut().zip(bytes) {
            assert_eq!(place.replace(byte), None, "a byte came twice");
        }
        Ok(())
    }
}

/// Lengths that differ by pair and step, none shorter than head and tail.
pub(crate) fn streamed_length(from: Rank, to: Rank, step: u64) -> usize {
    let at = u64::from(from.0) * 3 + u64::from(to.0) + step;
    CUT.head + CUT.tail + LENGTHS[usize::try_from(at).unwrap() % LENGTHS.len()]
}

pub(crate) fn streams_deliver_every_piece_once(make: impl Fn(u32) -> Vec<Box<dyn Mesh>>) {
    for size in WORLDS {
        on_every_rank(make(size), small_pieces(), |communicator| {
            let world = communicator.world();
            let own = world.rank();
            for step in 1..=10 {
                let lengths: Vec<_> = world.ranks().map(|to| streamed_length(own, to, step)).collect();
                let expected: Vec<_> = world.ranks().map(|from| streamed_length(from, own, step)).collect();
                let wide =
                    |lengths: &[usize]| lengths.iter().map(|&length| length as u64).collect::<Vec<_>>();
                let (sent, due) = (wide(&lengths), wide(&expected));
                let mut pieces = Painted::new(own, step, lengths, &expected);
                communicator.stream(operation(step, 0), &sent, &due, CUT, &mut pieces).unwrap();
                pieces.check();
                // Whole messages right behind, so that some of them come before the stream has ended everywhere.
                communicator
                    .all_gather(operation(step, 1), Bytes::from(vec![1; 40]), &vec![40; size as usize])
                    .unwrap();
            }
        });
    }
}

pub(crate) fn all_gather_gives_every_rank_every_message(make: impl Fn(u32) -> Vec<Box<dyn Mesh>>) {
    // Everybody gets the same, so the receiver has no part in the paint.
    let message = |from: Rank, step, length| painted(from, Rank(0), step, length);
    for size in WORLDS {
        on_every_rank(make(size), small_pieces(), |communicator| {
            let world = communicator.world();
            for (step, length) in (1..).zip(LENGTHS) {
                let own = message(world.rank(), step, length);
                let expected = vec![length as u64; size as usize];
                let incoming = communicator.all_gather(operation(step, 1), own, &expected).unwrap();
                let due: Vec<_> = world.ranks().map(|from| message(from, step, length)).collect();
                assert_eq!(incoming, due, "rank {} of {size}, {length} bytes", world.rank());
            }
        });
    }
}

/// Nothing keeps the ranks together but the collectives, so some are one operation ahead of others most of the
/// time.
pub(crate) fn collectives_of_all_kinds_follow_each_other_without_a_pause(
    make: impl Fn(u32) -> Vec<Box<dyn Mesh>>,
) {
    for size in WORLDS {
        on_every_rank(make(size), small_pieces(), |communicator| {
            let world = communicator.world();
            let own = world.rank();
            let expected = vec![40; size as usize];
            for step in 1..=30 {
                let outgoing = world.ranks().map(|to| painted(own, to, step, 40)).collect();
                let blocks = communicator.all_to_all(operation(step, 0), outgoing, &expected).unwrap();
                let mine: Bytes = blocks.into_iter().nth(own.index()).unwrap();
                let gathered = communicator.all_gather(operation(step, 1), mine, &expected).unwrap();
                let due: Vec<_> = world.ranks().map(|rank| painted(rank, rank, step, 40)).collect();
                assert_eq!(gathered, due, "rank {own} of {size}, step {step}");
                communicator.barrier(operation(step, 2)).unwrap();
            }
        });
    }
}

pub(crate) fn counted_frames_are_those_of_the_price_list(make: impl Fn(u32) -> Vec<Box<dyn Mesh>>) {
    let size = 3;
    let stats = on_every_rank(make(size), small_pieces(), |communicator| {
        let message = painted(communicator.world().rank(), Rank(0), 1, 3 * PIECE + 5);
        communicator.all_gather(operation(1, 0), message, &[(3 * PIECE + 5) as u64; 3]).unwrap();
        communicator.barrier(operation(1, 1)).unwrap();
        communicator.stats()
    });
    let header = gradwire_transport::frame::HEADER_BYTES as u64;
    for (rank, stats) in stats.iter().enumerate() {
        for (peer, peer_stats) in stats.peers.iter().enumerate() {
            // Four pieces and the barrier's empty frame.
            let frames = if peer == rank { 0 } else { 5 };
            let bytes = if peer == rank { 0 } else { 5 * header + 3 * PIECE as u64 + 5 };
            assert_eq!(peer_stats.frames_sent, frames, "frames from {rank} to {peer}");
            assert_eq!(peer_stats.frames_received, frames, "frames at {rank} from {peer}");
            assert_eq!(peer_stats.frame_bytes_sent, bytes, "bytes from {rank} to {peer}");
            assert_eq!(peer_stats.frame_bytes_received, bytes, "bytes at {rank} from {peer}");
        }
    }
}

/// Both sides expect another length: both errors name a rank, and the two numbers.
pub(crate) fn a_length_mismatch_names_the_rank_and_both_numbers_on_both_sides(
    make: impl Fn(u32) -> Vec<Box<dyn Mesh>>,
) {
    let errors = on_every_rank(make(2), small_pieces(), |communicator| {
        let own = communicator.world().rank();
        // Rank 0 is one element short of what rank 1 believes.
        let length = [36, 40][own.index()];
        communicator
            .all_gather(operation(4, 2), painted(own, Rank(0), 4, length), &[length as u64; 2])
            .unwrap_err()
    });
    for (own, error) in errors.iter().enumerate() {
        let text = error.to_string();
        assert!(
            matches!(error, ExchangeError::Length { .. } | ExchangeError::Aborted { .. }),
            "rank {own}: {error:?}"
        );
        for number in ["36", "40", "step 4"] {
            assert!(text.contains(number), "rank {own}: {text:?} lacks {number:?}");
        }
        assert!(text.starts_with("rank 0 ") || text.starts_with("rank 1 "), "rank {own}: {text:?}");
    }
}

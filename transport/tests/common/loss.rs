//! What every mesh must do when a rank leaves: all others name that rank, and soon.
//!
//! As `grid.rs`, for any way to make a mesh.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "shared by several test files, none of which uses all of it")]

use std::thread;

use bytes::Bytes;
use gradwire_transport::{Abort, Communicator, ExchangeError, Mesh, Rank};

use super::grid::{operation, small_pieces};

/// Runs two steps on `size` ranks, then `leave` on rank 2 while the others go on; returns the others' errors.
fn survivors(meshes: Vec<Box<dyn Mesh>>, leave: impl Fn(Communicator) + Sync) -> Vec<(u32, ExchangeError)> {
    let leave = &leave;
    let size = meshes.len();
    thread::scope(|scope| {
        let ranks: Vec<_> = meshes
            .into_iter()
            .map(|mesh| {
                scope.spawn(move || {
                    let mut communicator = Communicator::new(mesh, small_pieces());
                    let own = communicator.world().rank();
                    for step in 1.. {
                        if step == 3 && own == Rank(2) {
                            leave(communicator);
                            return None;
                        }
                        let message = Bytes::from(vec![1; 100]);
                        let lengths = vec![100; size];
                        if let Err(error) = communicator.all_gather(operation(step, 0), message, &lengths) {
                            let again = communicator.barrier(operation(step + 1, 0)).unwrap_err();
                            assert_eq!(again, error, "rank {own}: the first error is the last");
                            return Some((own.0, error));
                        }
                    }
                    None
                })
            })
            .collect();
        ranks.into_iter().filter_map(|rank| rank.join().unwrap()).collect()
    })
}

fn assert_all_name_rank_2(errors: &[(u32, ExchangeError)], survivors: usize, words: &str) {
    assert_eq!(errors.len(), survivors, "{errors:?}");
    for (rank, error) in errors {
        assert_eq!(error.culprit(), Some(Rank(2)), "rank {rank}: {error}");
        let text = error.to_string();
        assert!(text.starts_with("rank 2 ") && text.contains(words), "rank {rank}: {text:?} lacks {words:?}");
    }
}

/// Runs every test of this file.
pub(crate) fn a_rank_that_leaves_is_named_by_all_others(make: impl Fn(u32) -> Vec<Box<dyn Mesh>>) {
    a_rank_that_closes_in_the_middle_is_named_by_all_others(&make);
    a_rank_that_aborts_is_named_with_its_reason(&make);
    an_early_return_does_not_look_like_a_normal_end(&make);
    a_culprit_named_in_an_abort_is_named_by_all(&make);
    the_last_collective_ends_though_others_have_left(&make);
}

pub(crate) fn a_rank_that_closes_in_the_middle_is_named_by_all_others(
    make: impl Fn(u32) -> Vec<Box<dyn Mesh>>,
) {
    let errors = survivors(make(4), |mut communicator| communicator.close());
    assert_all_name_rank_2(&errors, 3, "closed its connection");
}

pub(crate) fn a_rank_that_aborts_is_named_with_its_reason(make: impl Fn(u32) -> Vec<Box<dyn Mesh>>) {
    let errors = survivors(make(4), |mut communicator| {
        let reason = "lost its device at step 3".to_owned();
        communicator.abort(&Abort { culprit: Some(Rank(2)), reason });
        let reason = "and this comes too late".to_owned();
        communicator.abort(&Abort { culprit: Some(Rank(0)), reason });
        let error = communicator.barrier(operation(3, 0)).unwrap_err();
        assert_eq!(error.to_string(), "rank 2 lost its device at step 3 (step 2)", "the first reason");
    });
    assert_all_name_rank_2(&errors, 3, "lost its device at step 3 (");
    for (_, error) in errors {
        let ExchangeError::Aborted { by, step, .. } = error else { panic!("{error:?}") };
        // One line, in which who speaks of itself is not named twice.
        let source = if by == Rank(2) { String::new() } else { format!("rank {by} says so, ") };
        let due = format!("rank 2 lost its device at step 3 ({source}step {step})");
        assert_eq!(error.to_string(), due, "as told by rank {by}");
    }
}

pub(crate) fn an_early_return_does_not_look_like_a_normal_end(make: impl Fn(u32) -> Vec<Box<dyn Mesh>>) {
    let errors = survivors(make(4), drop);
    assert_all_name_rank_2(&errors, 3, "left without closing its communicator (after step 2)");
}

/// Rank 1 gives up because of rank 2, which has done nothing yet: rank 0 and rank 2 blame whom rank 1 blames.
pub(crate) fn a_culprit_named_in_an_abort_is_named_by_all(make: impl Fn(u32) -> Vec<Box<dyn Mesh>>) {
    let errors = super::grid::on_every_rank(make(3), small_pieces(), |communicator| {
        if communicator.world().rank() == Rank(1) {
            communicator.abort(&Abort { culprit: Some(Rank(2)), reason: "r\u{e9}".repeat(200) });
        }
        communicator.barrier(operation(1, 0)).unwrap_err()
    });
    for error in errors {
        let ExchangeError::Aborted { abort, .. } = error else { panic!("{error:?}") };
        assert_eq!(abort.culprit, Some(Rank(2)), "the culprit that rank 1 named");
        // 256 would be the middle of a character.
        assert_eq!(abort.reason, "r\u{e9}".repeat(85) + "r", "cut to {} bytes", Abort::MAX_REASON);
    }
}

/// Ranks leave one after the other; nobody's last collective fails for it.
pub(crate) fn the_last_collective_ends_though_others_have_left(make: impl Fn(u32) -> Vec<Box<dyn Mesh>>) {
    for _ in 0..10 {
        super::grid::on_every_rank(make(4), small_pieces(), |communicator| {
            for step in 1..4 {
                communicator.all_gather(operation(step, 0), Bytes::from(vec![2; 100]), &[100; 4]).unwrap();
            }
            communicator.close();
            communicator.close();
            let error = communicator.barrier(operation(9, 0)).unwrap_err();
            assert_eq!(error.to_string(), "caller: a collective after close", "closed is closed");
        });
    }
}

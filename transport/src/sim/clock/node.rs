//! One rank, and one way between two, as the clock sees them.

use std::collections::VecDeque;
use std::time::Instant;

use super::packet::Item;
use crate::world::Rank;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    /// Wants to run, or runs.
    #[default]
    Ready,
    /// Waits in `receive` until then or for an event.
    Waiting(Instant),
    /// Pretends to compute until then.
    Computing(Instant),
    /// Waits until then for the last of its frames to arrive.
    Draining(Instant),
    Gone,
}

#[derive(Default)]
pub(super) struct Node {
    pub(super) phase: Phase,
    pub(super) inbox: VecDeque<(Rank, Item)>,
    /// Killed: runs no more code.
    pub(super) dead: bool,
    /// Since when, and by how many stops that are not over.
    pub(super) stopped: Option<(Instant, u32)>,
    /// Has told its peers that it leaves, or can't any more.
    pub(super) left: bool,
    /// Sent by this rank and not yet arrived.
    pub(super) under_way: u64,
    pub(super) corrupt: bool,
    pub(super) repeat: bool,
}

impl Node {
    /// When it wakes at the latest, if it sleeps and is not stopped.
    pub(super) fn until(&self) -> Option<Instant> {
        match self.phase {
            Phase::Waiting(until) | Phase::Computing(until) | Phase::Draining(until) => {
                Some(until).filter(|_| self.stopped.is_none())
            }
            Phase::Ready | Phase::Gone => None,
        }
    }

    /// Whether it sleeps and has a reason to wake.
    pub(super) fn wakes(&self, now: Instant) -> bool {
        let early = match self.phase {
            Phase::Waiting(_) => !self.inbox.is_empty(),
            Phase::Draining(_) => self.under_way == 0,
            _ => false,
        };
        self.until().is_some_and(|until| early || until <= now)
    }
}

/// One way between two ranks, as the receiver sees it.
#[derive(Clone, Copy, Default)]
pub(super) struct Way {
    /// By how many partitions that are not over.
    pub(super) cuts: u32,
    /// Since when no keep-alive can pass.
    pub(super) quiet: Option<Instant>,
    /// The receiver knows that the sender is gone: nothing passes any more.
    pub(super) lost: bool,
    /// Because of a frame that was none.
    pub(super) bad: bool,
}

//! What carries frames, and the [`Communicator`] that drives collectives over it.

mod communicator;
mod early;

use std::time::Instant;

use crate::error::{Abort, Loss};
use crate::frame::Frame;
use crate::stats::Stats;
use crate::world::{Rank, World};

pub use communicator::Communicator;

/// What [`Mesh::receive`] came back with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A frame from a peer; its checksum is right, nothing else is checked.
    Frame(Rank, Frame),
    /// A peer is gone for good; said once per peer, after every frame that came from it.
    Lost(Rank, Loss),
    /// [`Mesh::has_room`] said no for this peer, and would now say yes.
    Room(Rank),
    /// Nothing came until the given instant.
    Timeout,
}

/// Carries frames between the ranks of one world, whole or not at all, in any order.
///
/// A mesh notices by itself when a peer goes silent, and bounds what a peer can make it store.
pub trait Mesh: Send {
    /// The membership that this mesh connects.
    fn world(&self) -> World;

    /// The time by the clock that [`receive`](Self::receive) waits by. Default: the system's.
    fn now(&self) -> Instant {
        Instant::now()
    }

    /// Whether a frame for `to` would be on its way soon, and not wait behind many others. After a no, an
    /// [`Event::Room`] comes when there is room again, or an [`Event::Lost`]. Whoever makes frames as they are sent asks
    /// first; [`send`](Self::send) takes a frame in any case. Default: always.
    fn has_room(&mut self, to: Rank) -> bool {
        let _ = to;
        true
    }

    /// Asks that no more than has come already is taken from the peer, so that it has to wait (true), or that this ends.
    /// Some frames may still come; all of them are to be taken. Default: nothing, they all come.
    fn hold(&mut self, from: Rank, hold: bool) {
        let _ = (from, hold);
    }

    /// Queues `frame` for `to` and returns at once; the payload is shared, not copied. A peer that can't be
    /// reached shows as [`Event::Lost`], not here.
    fn send(&mut self, to: Rank, frame: Frame);

    /// The next event, waiting for one until `until`.
    fn receive(&mut self, until: Instant) -> Event;

    /// Leaves: without an `abort`, what was sent is first delivered, as far as the mesh's deadline allows; with
    /// one, every peer that still listens is told it, and nothing waits. Idempotent.
    fn close(&mut self, abort: Option<&Abort>);

    /// What was carried so far.
    fn stats(&self) -> Stats;
}

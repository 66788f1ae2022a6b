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
    /// Nothing came until the given instant.
    Timeout,
}

/// Carries frames between the ranks of one world, whole or not at all, in any order.
///
/// A mesh notices by itself when a peer goes silent, and bounds what a peer can make it store.
pub trait Mesh: Send {
    /// The membership that this mesh connects.
    fn world(&self) -> World;

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

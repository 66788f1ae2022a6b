//! A collective of whole messages.

use std::time::Instant;

use bytes::Bytes;

use super::assembly::Assembly;
use super::{Cut, Flow, Limits, Pieces};
use crate::error::{ExchangeError, Loss};
use crate::frame::{Frame, Operation};
use crate::world::{Rank, World};

/// One collective of whole messages in progress, seen from one rank, without socket, clock or thread: a [`Flow`] and
/// the messages.
///
/// A driver hands out what [`poll_transmit`](Self::poll_transmit) gives, feeds what comes in, and asks
/// [`poll`](Self::poll) for the result. Pieces may come in any order. After an error the exchange is over: what
/// it answers from then on has no meaning, but it never panics.
///
/// **Cost**: one copy of every byte received, none for messages of a single piece, none for bytes sent. The buffer
/// of a longer message is new each time: on 2 cores of a cloud machine the first touch of 64 MiB took 24 ms, the
/// copy into it 4 ms.
pub struct Exchange {
    flow: Flow,
    assembly: Assembly,
    taken: bool,
}

impl Exchange {
    /// Sends `outgoing[r]` to each peer r and expects exactly `expected[r]` bytes from it. `outgoing` and
    /// `expected` have one entry per rank; `outgoing[own]` becomes the own entry of the result as it is, and
    /// `expected[own]` is not looked at.
    ///
    /// # Errors
    ///
    /// As [`Flow::new`], with messages cut every [`Limits::piece_bytes`].
    pub fn new(
        now: Instant,
        world: World,
        operation: Operation,
        outgoing: Vec<Bytes>,
        expected: &[u64],
        limits: &Limits,
    ) -> Result<Self, ExchangeError> {
        let lengths: Vec<_> = outgoing.iter().map(|message| message.len() as u64).collect();
        let cut = Cut::every(limits.piece_bytes);
        let flow = Flow::new(now, world, operation, &lengths, expected, cut, limits)?;
        Ok(Self { flow, assembly: Assembly::new(&world, outgoing, expected), taken: false })
    }

    /// Which collective this is.
    #[must_use]
    pub fn operation(&self) -> Operation {
        self.flow.operation()
    }

    /// The next frame to send and its receiver, or `None` when there is none before something has come: from a peer that
    /// has not begun, see [`Limits::ahead_bytes`]. Peers take turns, beginning with the own rank + 1.
    pub fn poll_transmit(&mut self) -> Option<(Rank, Frame)> {
        let part = self.flow.poll_transmit(|_| true)?;
        let payload = self.assembly.make(part.to, part.range.clone()).ok()?;
        Some((part.to, self.flow.frame(&part, payload)))
    }

    /// Takes a frame that came from `from`.
    ///
    /// # Errors
    ///
    /// As [`Flow::handle_frame`].
    pub fn handle_frame(&mut self, now: Instant, from: Rank, frame: Frame) -> Result<(), ExchangeError> {
        let (offset, bytes) = self.flow.handle_frame(now, from, frame)?;
        self.assembly.take(from, offset, bytes)
    }

    /// Takes note of the time.
    ///
    /// # Errors
    ///
    /// As [`Flow::handle_timeout`].
    pub fn handle_timeout(&mut self, now: Instant) -> Result<(), ExchangeError> {
        self.flow.handle_timeout(now)
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) at the latest; `None` once every message is there.
    /// It may be earlier than the first deadline that can pass, never later.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.flow.poll_timeout()
    }

    /// Takes note that `from` can't be reached any more; every frame that came from it was handed in before.
    ///
    /// # Errors
    ///
    /// As [`Flow::handle_loss`].
    pub fn handle_loss(&mut self, from: Rank, loss: Loss) -> Result<(), ExchangeError> {
        self.flow.handle_loss(from, loss)
    }

    /// The messages by rank, the own one included: once, when all are there and all frames are handed out.
    pub fn poll(&mut self) -> Option<Vec<Bytes>> {
        if self.taken || !self.flow.is_done() {
            return None;
        }
        self.taken = true;
        Some(self.assembly.take_messages())
    }

    /// For a driver that asks its mesh for room.
    pub(crate) fn into_parts(self) -> (Flow, Assembly) {
        (self.flow, self.assembly)
    }
}

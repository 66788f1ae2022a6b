//! The state machine behind every collective: one message to and one from each peer.

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::Limits;
use super::incoming::Incoming;
use super::outgoing::Outgoing;
use crate::error::{ExchangeError, FrameError, Loss};
use crate::frame::{Frame, Header, MAX_PAYLOAD, Operation};
use crate::world::{Rank, World};

/// One collective in progress, seen from one rank, without socket, clock or thread.
///
/// A driver hands out what [`poll_transmit`](Self::poll_transmit) gives, feeds what comes in, and asks
/// [`poll`](Self::poll) for the result. Pieces may come in any order. After an error the exchange is over: what
/// it answers from then on has no meaning, but it never panics.
///
/// **Cost**: one copy of every byte received, none for messages of a single piece, none for bytes sent. The buffer
/// of a longer message is new each time: on 2 cores of a cloud machine the first touch of 64 MiB took 24 ms, the
/// copy into it 4 ms.
pub struct Exchange {
    world: World,
    operation: Operation,
    piece: u64,
    stall: Duration,
    outgoing: Outgoing,
    /// By rank, the own one complete from the start.
    incoming: Vec<Incoming>,
    incomplete: usize,
    taken: bool,
    /// No peer's stall deadline lies before this, so that most calls need not look at all of them.
    next_deadline: Instant,
}

impl Exchange {
    /// Sends `outgoing[r]` to each peer r and expects exactly `expected[r]` bytes from it. `outgoing` and
    /// `expected` have one entry per rank; `outgoing[own]` becomes the own entry of the result as it is, and
    /// `expected[own]` is not looked at.
    ///
    /// # Errors
    ///
    /// [`ExchangeError::Caller`] if the number of entries is not the world size, a message is longer than
    /// `limits.message_bytes` or than the address space, or `limits` are out of their ranges.
    pub fn new(
        now: Instant,
        world: World,
        operation: Operation,
        outgoing: Vec<Bytes>,
        expected: &[u64],
        limits: &Limits,
    ) -> Result<Self, ExchangeError> {
        let size = world.size() as usize;
        if outgoing.len() != size || expected.len() != size {
            return Err(caller(format!(
                "{} messages and {} expected lengths in a world of {size} ranks",
                outgoing.len(),
                expected.len()
            )));
        }
        if limits.piece_bytes == 0 || limits.piece_bytes > MAX_PAYLOAD {
            return Err(caller(format!(
                "pieces of {} bytes are not in 1..={MAX_PAYLOAD}",
                limits.piece_bytes
            )));
        }
        let piece = limits.piece_bytes as u64;
        let Some(next_deadline) = now.checked_add(limits.stall).filter(|_| !limits.stall.is_zero()) else {
            return Err(caller(format!(
                "a stall deadline of {:?} is not above 0 and on the clock",
                limits.stall
            )));
        };
        let mut incoming = Vec::with_capacity(size);
        for rank in world.ranks() {
            let (message, expected) = (&outgoing[rank.index()], expected[rank.index()]);
            if rank == world.rank() {
                incoming.push(Incoming::complete(now, message.clone()));
                continue;
            }
            let longest = expected.max(message.len() as u64);
            let length = usize::try_from(expected).ok().filter(|_| longest <= limits.message_bytes);
            let Some(length) = length else {
                let limit = limits.message_bytes.min(usize::MAX as u64);
                return Err(caller(format!("a message of {longest} bytes with rank {rank}, limit {limit}")));
            };
            incoming.push(Incoming::new(now, length, piece));
        }
        Ok(Self {
            world,
            operation,
            piece,
            stall: limits.stall,
            outgoing: Outgoing::new(&world, &outgoing, limits.piece_bytes),
            incoming,
            incomplete: size - 1,
            taken: false,
            next_deadline,
        })
    }

    /// Which collective this is.
    #[must_use]
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// The next frame to send and its receiver, or `None` when all are handed out. Peers take turns, beginning
    /// with the own rank + 1.
    pub fn poll_transmit(&mut self) -> Option<(Rank, Frame)> {
        let next = self.outgoing.next()?;
        let header = Header {
            operation: self.operation,
            epoch: self.world.epoch(),
            from: self.world.rank(),
            total: next.total as u64,
            offset: next.offset as u64,
            // A piece is at most MAX_PAYLOAD.
            length: u32::try_from(next.payload.len()).unwrap_or(u32::MAX),
        };
        Some((next.to, Frame { header, payload: next.payload }))
    }

    /// Takes a frame that came from `from`.
    ///
    /// # Errors
    ///
    /// [`ExchangeError::Length`] if the peer's message is not as long as expected; [`ExchangeError::Frame`] if
    /// the frame is not from a peer, of another epoch, sender or operation, not a piece, or came before.
    pub fn handle_frame(&mut self, now: Instant, from: Rank, frame: Frame) -> Result<(), ExchangeError> {
        let step = self.operation.step;
        let bad = |source| ExchangeError::Frame { rank: from, step, source };
        check(&self.world, from, &frame).map_err(bad)?;
        let theirs = frame.header.operation;
        if theirs != self.operation {
            return Err(bad(FrameError::OutOfOrder { theirs, ours: self.operation }));
        }
        let incoming = &mut self.incoming[from.index()];
        let (_, expected) = incoming.missing();
        if frame.header.total != expected {
            let (sent, tag) = (frame.header.total, self.operation.tag);
            return Err(ExchangeError::Length { rank: from, sent, expected, step, tag });
        }
        incoming.take(now, frame, self.piece).map_err(bad)?;
        if incoming.is_complete() {
            self.incomplete -= 1;
        }
        Ok(())
    }

    /// Takes note of the time.
    ///
    /// # Errors
    ///
    /// [`ExchangeError::Stalled`] for the peer that made no progress for longest, if that is
    /// [`Limits::stall`] or more.
    pub fn handle_timeout(&mut self, now: Instant) -> Result<(), ExchangeError> {
        if self.incomplete == 0 || now < self.next_deadline {
            return Ok(());
        }
        let slowest = self
            .world
            .peers()
            .map(|rank| (rank, &self.incoming[rank.index()]))
            .filter(|(_, incoming)| !incoming.is_complete())
            .min_by_key(|(_, incoming)| incoming.progress);
        let Some((rank, incoming)) = slowest else { return Ok(()) };
        let waited = now.saturating_duration_since(incoming.progress);
        if waited >= self.stall {
            let (missing, total) = incoming.missing();
            let (deadline, step) = (self.stall, self.operation.step);
            return Err(ExchangeError::Stalled { rank, waited, deadline, step, missing, total });
        }
        self.next_deadline = incoming.progress.checked_add(self.stall).unwrap_or(now);
        Ok(())
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) at the latest; `None` once every message is there.
    /// It may be earlier than the first deadline that can pass, never later.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        (self.incomplete > 0).then_some(self.next_deadline)
    }

    /// Takes note that `from` can't be reached any more; every frame that came from it was handed in before.
    ///
    /// # Errors
    ///
    /// If its message is still incomplete: [`ExchangeError::Silent`], [`ExchangeError::Aborted`],
    /// [`ExchangeError::Frame`] or [`ExchangeError::Lost`], by the kind of loss.
    pub fn handle_loss(&mut self, from: Rank, loss: Loss) -> Result<(), ExchangeError> {
        let Some(incoming) = self.incoming.get(from.index()) else { return Ok(()) };
        if incoming.is_complete() {
            return Ok(());
        }
        let (missing, total) = incoming.missing();
        let (rank, step) = (from, self.operation.step);
        Err(match loss {
            Loss::Silent { silent, deadline } => {
                ExchangeError::Silent { rank, silent, deadline, step, missing, total }
            }
            Loss::Aborted(abort) => ExchangeError::Aborted { by: rank, abort, step },
            Loss::Malformed(source) => ExchangeError::Frame { rank, step, source },
            Loss::Closed | Loss::Paused { .. } | Loss::Protocol { .. } => {
                ExchangeError::Lost { rank, loss, step, missing, total }
            }
        })
    }

    /// The messages by rank, the own one included: once, when all are there and all frames are handed out.
    pub fn poll(&mut self) -> Option<Vec<Bytes>> {
        if self.incomplete > 0 || self.taken || !self.outgoing.is_empty() {
            return None;
        }
        self.taken = true;
        Some(self.incoming.iter_mut().map(Incoming::take_message).collect())
    }
}

/// Whether `frame` comes from a peer of `world`, in its epoch, under the peer's own name.
pub(crate) fn check(world: &World, from: Rank, frame: &Frame) -> Result<(), FrameError> {
    if from == world.rank() || !world.contains(from) {
        return Err(FrameError::Stranger { own: world.rank(), size: world.size() });
    }
    frame.check(world, from)
}

fn caller(reason: String) -> ExchangeError {
    ExchangeError::Caller { reason }
}

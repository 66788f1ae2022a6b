//! The state machine behind every collective: one message to and one from each peer, piece by piece.

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::incoming::Incoming;
use super::outgoing::{Outgoing, Part};
use super::{Cut, Limits, Pace};
use crate::error::{ExchangeError, FrameError, Loss};
use crate::frame::{Frame, Header, Operation};
use crate::world::{Rank, World};

/// One collective in progress, seen from one rank, without socket, clock, thread or buffer.
///
/// Messages are known by their lengths only: a driver makes the bytes of each [`Part`] that
/// [`poll_transmit`](Self::poll_transmit) asks for, and gets each piece that came, in any order, from
/// [`handle_frame`](Self::handle_frame). [`super::Exchange`] is the same with whole messages. After an error the
/// collective is over: what this answers from then on has no meaning, but it never panics.
///
/// **Cost**: a bit per piece. What waits elsewhere is bounded: on the way out by the mesh, which is asked for room before a
/// piece is made; at a peer that has not begun by its share of [`Limits::ahead_bytes`].
pub struct Flow {
    world: World,
    operation: Operation,
    cut: Cut,
    outgoing: Outgoing,
    /// By rank, the own one complete from the start.
    incoming: Vec<Incoming>,
    incomplete: usize,
    /// No peer's stall deadline lies before this, so that most calls need not look at all of them.
    next_deadline: Instant,
}

impl Flow {
    /// Sends `lengths[r]` bytes to each peer r and expects exactly `expected[r]` bytes from it, both cut by `cut`.
    /// `lengths` and `expected` have one entry per rank; those of the own rank are not looked at.
    ///
    /// # Errors
    ///
    /// [`ExchangeError::Caller`] if the number of entries is not the world size, a message is longer than
    /// `limits.message_bytes` or than the address space or shorter than head and tail of `cut`, or `cut` or `limits` are
    /// out of their ranges.
    pub fn new(
        now: Instant,
        world: World,
        operation: Operation,
        lengths: &[u64],
        expected: &[u64],
        cut: Cut,
        limits: &Limits,
    ) -> Result<Self, ExchangeError> {
        let size = world.size() as usize;
        if lengths.len() != size || expected.len() != size {
            return Err(caller(format!(
                "{} messages and {} expected lengths in a world of {size} ranks",
                lengths.len(),
                expected.len()
            )));
        }
        cut.validate()?;
        // Twice, because it counts anew from every piece.
        let on_the_clock = now.checked_add(limits.stall.saturating_mul(2)).is_some();
        let Some(next_deadline) = now.checked_add(limits.stall).filter(|at| on_the_clock && *at > now) else {
            return Err(caller(format!(
                "a stall deadline of {:?} is not above 0 and on the clock",
                limits.stall
            )));
        };
        let limit = limits.message_bytes.min(usize::MAX as u64);
        let mut incoming = Vec::with_capacity(size);
        for rank in world.ranks() {
            if rank == world.rank() {
                incoming.push(Incoming::complete(now));
                continue;
            }
            let (length, expected) = (lengths[rank.index()], expected[rank.index()]);
            let longest = expected.max(length);
            if longest > limit {
                return Err(caller(format!("a message of {longest} bytes with rank {rank}, limit {limit}")));
            }
            let shortest = expected.min(length);
            if shortest < cut.ends() as u64 {
                return Err(caller(format!(
                    "a message of {shortest} bytes with rank {rank}, head and tail have {}",
                    cut.ends()
                )));
            }
            incoming.push(Incoming::new(now, expected, cut, limits.stall));
        }
        Ok(Self {
            world,
            operation,
            cut,
            outgoing: Outgoing::new(now, &world, lengths, cut, limits.ahead(&world)),
            incoming,
            incomplete: size - 1,
            next_deadline,
        })
    }

    /// With the deadline that `pace` knows for each peer, instead of [`Limits::stall`] for all. Before anything else.
    #[must_use]
    pub fn paced(mut self, pace: &Pace) -> Self {
        for peer in self.world.peers() {
            let incoming = &mut self.incoming[peer.index()];
            incoming.deadline = pace.deadline(peer);
            self.next_deadline = self.next_deadline.min(incoming.expires(incoming.progress));
        }
        self
    }

    /// The membership in which this runs.
    #[must_use]
    pub fn world(&self) -> World {
        self.world
    }

    /// The longest time so far in which `peer` made no progress: neither with its message nor in taking this rank's.
    #[must_use]
    pub fn longest_wait(&self, peer: Rank) -> Duration {
        let incoming = self.incoming.get(peer.index()).map_or(Duration::ZERO, |incoming| incoming.waited);
        incoming.max(self.outgoing.waited(peer))
    }

    /// Which collective this is.
    #[must_use]
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// The next piece to make and send, or `None` when nothing can be sent now: ask again after anything else was
    /// handled. Peers take turns, beginning with the own rank + 1. `room` is asked for a peer at most once until
    /// [`handle_room`](Self::handle_room) comes after its no.
    pub fn poll_transmit(&mut self, room: impl FnMut(Rank) -> bool) -> Option<Part> {
        self.outgoing.next(room)
    }

    /// The frame of `part`, whose bytes are `payload`.
    #[must_use]
    pub fn frame(&self, part: &Part, payload: Bytes) -> Frame {
        let header = Header {
            operation: self.operation,
            epoch: self.world.epoch(),
            from: self.world.rank(),
            total: part.total,
            offset: part.range.start,
            // A piece is at most MAX_PAYLOAD.
            length: u32::try_from(payload.len()).unwrap_or(u32::MAX),
        };
        Frame { header, payload }
    }

    /// Takes note that the mesh has room for `peer` again.
    pub fn handle_room(&mut self, now: Instant, peer: Rank) {
        self.outgoing.room(now, peer);
    }

    /// Takes note that this rank keeps `peer` from sending more (true), which is then not late, or no longer does.
    pub fn handle_hold(&mut self, now: Instant, peer: Rank, hold: bool) {
        if let Some(incoming) = self.incoming.get_mut(peer.index()) {
            incoming.hold(now, hold);
        }
    }

    /// Peers that this rank keeps from sending more.
    pub(crate) fn held(&self) -> impl Iterator<Item = Rank> + '_ {
        self.world.peers().filter(|rank| self.incoming[rank.index()].held)
    }

    /// Takes a frame that came from `from`: gives a piece of its message, and where it starts.
    ///
    /// # Errors
    ///
    /// [`ExchangeError::Length`] if the peer's message is not as long as expected; [`ExchangeError::Frame`] if
    /// the frame is not from a peer, of another epoch, sender or operation, not a piece, or came before.
    pub fn handle_frame(
        &mut self,
        now: Instant,
        from: Rank,
        frame: Frame,
    ) -> Result<(u64, Bytes), ExchangeError> {
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
        incoming.take(now, &frame, self.cut).map_err(bad)?;
        if incoming.is_complete() {
            self.incomplete -= 1;
        }
        self.outgoing.begun(from);
        Ok((frame.header.offset, frame.payload))
    }

    /// Takes note of the time.
    ///
    /// # Errors
    ///
    /// For the peer whose deadline passed first: [`ExchangeError::Stalled`] while its message is incomplete, else
    /// [`ExchangeError::Unread`].
    pub fn handle_timeout(&mut self, now: Instant) -> Result<(), ExchangeError> {
        if self.poll_timeout().is_none_or(|deadline| now < deadline) {
            return Ok(());
        }
        let waits = |rank: Rank| {
            let since = self.waits_since(rank)?;
            Some((self.incoming[rank.index()].expires(since), rank, since))
        };
        let Some((expires, rank, since)) = self.world.peers().filter_map(waits).min() else {
            // All that is missing is held up here, until something else comes.
            let shortest = self.incoming.iter().map(|incoming| incoming.deadline).min().unwrap_or_default();
            self.next_deadline = now.checked_add(shortest).unwrap_or(now);
            return Ok(());
        };
        if now < expires {
            self.next_deadline = expires;
            return Ok(());
        }
        let incoming = &self.incoming[rank.index()];
        let (deadline, waited) = (incoming.deadline, now.saturating_duration_since(since));
        let step = self.operation.step;
        if incoming.is_complete() {
            let (_, missing, total) = self.outgoing.waiting(rank).unwrap_or((since, 0, 0));
            return Err(ExchangeError::Unread { rank, waited, deadline, step, missing, total });
        }
        let (missing, total) = incoming.missing();
        Err(ExchangeError::Stalled { rank, waited, deadline, step, missing, total })
    }

    /// Since when this rank waits for `peer`, if it does.
    fn waits_since(&self, peer: Rank) -> Option<Instant> {
        let incoming = &self.incoming[peer.index()];
        if incoming.is_complete() {
            return self.outgoing.waiting(peer).map(|(since, ..)| since.max(incoming.progress));
        }
        (!incoming.held).then_some(incoming.progress)
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) at the latest; `None` while no peer is waited for.
    /// It may be earlier than the first deadline that can pass, never later.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        (self.incomplete > 0 || self.outgoing.is_crowded()).then_some(self.next_deadline)
    }

    /// Takes note that `from` can't be reached any more; every frame that came from it was handed in before.
    ///
    /// # Errors
    ///
    /// If its message is still incomplete: [`ExchangeError::Silent`], [`ExchangeError::Aborted`],
    /// [`ExchangeError::Frame`] or [`ExchangeError::Lost`], by the kind of loss. `Aborted` also if it blames another rank whose
    /// message is.
    pub fn handle_loss(&mut self, from: Rank, loss: Loss) -> Result<(), ExchangeError> {
        let Some(incoming) = self.incoming.get(from.index()) else { return Ok(()) };
        // Who is blamed may never be heard of again.
        let blamed = match &loss {
            Loss::Aborted(abort) => abort.culprit.filter(|culprit| *culprit != self.world.rank()),
            _ => None,
        };
        let waits = |rank: Rank| self.incoming.get(rank.index()).is_some_and(|it| !it.is_complete());
        if incoming.is_complete() && !blamed.is_some_and(waits) {
            self.outgoing.forget(from);
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

    /// Whether every message came and every piece was handed out.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.incomplete == 0 && self.outgoing.is_empty()
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

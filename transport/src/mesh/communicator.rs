//! Drives one collective after the other over a mesh.

use std::time::Instant;

use bytes::Bytes;

use super::early::Early;
use super::{Event, Mesh};
use crate::collective::{self, Cut, Exchange, Flow, Limits, Pace, Pieces};
use crate::error::{Abort, ExchangeError, Loss, clip};
use crate::frame::{Frame, Operation};
use crate::stats::Stats;
use crate::world::{Rank, World};

/// One rank's end of a world: runs collectives over a [`Mesh`], one at a time.
///
/// All ranks must run the same collectives with the same operations, in ascending order. Every wait ends: the
/// mesh notices a peer that is silent, and the deadline that its [`Pace`] has taught ends the wait for one that answers but
/// does not send, after [`Limits::stall`] at the latest.
///
/// The first error is the last: this rank then tells the others whose fault it was ([`Abort`]), so that all name
/// the same rank, and every later call answers the same error. An error that came from another rank's abort is
/// passed on as it came. Those that are left can form a world of the next epoch: see [`crate::faults`].
///
/// **Call [`close`](Self::close) at the end.** Dropping a communicator without it aborts, because an early return
/// or a panic must not look like a normal end to the other ranks.
pub struct Communicator {
    mesh: Box<dyn Mesh>,
    world: World,
    limits: Limits,
    /// What the collectives so far have taught about the peers.
    pace: Pace,
    /// The latest operation begun.
    last: Option<Operation>,
    /// By rank.
    early: Vec<Early>,
    /// In the order in which they were noticed, at most one per rank.
    losses: Vec<(Rank, Loss)>,
    /// Why no further collective can run.
    failure: Option<ExchangeError>,
    /// The caller broke off a collective in its middle.
    broken: bool,
    closed: bool,
}

/// What ends a collective early.
enum Stop<E> {
    Exchange(ExchangeError),
    /// Not the exchange: what made or took its pieces.
    Pieces(E),
}

impl<E> From<ExchangeError> for Stop<E> {
    fn from(error: ExchangeError) -> Self {
        Self::Exchange(error)
    }
}

impl Communicator {
    /// Takes over `mesh`. What is wrong with `limits` shows as [`ExchangeError::Caller`] at the first collective.
    #[must_use]
    pub fn new(mesh: Box<dyn Mesh>, limits: Limits) -> Self {
        let world = mesh.world();
        let early = world.ranks().map(|_| Early::default()).collect();
        Self {
            mesh,
            world,
            limits,
            pace: Pace::new(&world, &limits),
            last: None,
            early,
            losses: Vec::new(),
            failure: None,
            broken: false,
            closed: false,
        }
    }

    /// The membership, seen from this rank.
    #[must_use]
    pub fn world(&self) -> World {
        self.world
    }

    /// Sends `outgoing[r]` to every rank r and returns what came from each, by rank: `expected[r]` bytes from r.
    /// `outgoing[own]` is returned as it is, and `expected[own]` is not looked at.
    ///
    /// **Price**: see [`collective::all_to_all`].
    ///
    /// # Errors
    ///
    /// [`ExchangeError::Caller`] if the lengths of `outgoing` or `expected` are not the world size, a message is
    /// longer than [`Limits::message_bytes`], `operation` is not later than the one before, or the communicator
    /// is closed; else what a peer did, see [`ExchangeError`].
    pub fn all_to_all(
        &mut self,
        operation: Operation,
        outgoing: Vec<Bytes>,
        expected: &[u64],
    ) -> Result<Vec<Bytes>, ExchangeError> {
        self.exchange(operation, |now, world, limits| {
            collective::all_to_all(now, world, operation, outgoing, expected, limits)
        })
    }

    /// Sends `own` to every peer and returns the message of every rank, by rank: `expected[r]` bytes from r.
    /// `expected[own]` is not looked at.
    ///
    /// **Price**: see [`collective::all_gather`].
    ///
    /// # Errors
    ///
    /// As [`all_to_all`](Self::all_to_all).
    pub fn all_gather(
        &mut self,
        operation: Operation,
        own: Bytes,
        expected: &[u64],
    ) -> Result<Vec<Bytes>, ExchangeError> {
        self.exchange(operation, |now, world, limits| {
            collective::all_gather(now, world, operation, own, expected, limits)
        })
    }

    /// Sends `lengths[r]` bytes to every peer r and takes `expected[r]` bytes from it, piece by piece: `pieces` makes each
    /// piece when there is room for it on the way, and gets each one that has come, while others travel. Entries of the
    /// own rank are not looked at, and nothing is made for it. `cut` must be the same on all ranks.
    ///
    /// **Price**: as [`collective::all_to_all`]; nothing is stored here. What waits in the mesh is bounded there, and what
    /// peers send before this call begins, by [`Limits::ahead_bytes`].
    ///
    /// # Errors
    ///
    /// As [`all_to_all`](Self::all_to_all); besides, a message shorter than head and tail of `cut`, a `cut` out of its range,
    /// a piece of another length than asked for, and whatever `pieces` answers. That ends the exchange too: the caller
    /// says why by [`abort`](Self::abort), and no other collective can follow.
    pub fn stream<P: Pieces>(
        &mut self,
        operation: Operation,
        lengths: &[u64],
        expected: &[u64],
        cut: Cut,
        pieces: &mut P,
    ) -> Result<(), P::Error> {
        let ended = self.run(operation, |this| {
            let flow =
                Flow::new(this.mesh.now(), this.world, operation, lengths, expected, cut, &this.limits)?;
            match this.drive(flow, pieces) {
                Ok(()) => Ok(None),
                Err(Stop::Pieces(error)) => Ok(Some(error)),
                Err(Stop::Exchange(error)) => Err(error),
            }
        })?;
        ended.map_or(Ok(()), |error| {
            self.broken = true;
            Err(error)
        })
    }

    /// Returns after every rank has called it.
    ///
    /// **Price**: see [`collective::barrier`].
    ///
    /// # Errors
    ///
    /// As [`all_to_all`](Self::all_to_all).
    pub fn barrier(&mut self, operation: Operation) -> Result<(), ExchangeError> {
        self.exchange(operation, |now, world, limits| collective::barrier(now, world, operation, limits))?;
        Ok(())
    }

    /// What the mesh carried so far, and the deadline of each peer in the next collective.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut stats = self.mesh.stats();
        for peer in self.world.peers() {
            if let Some(entry) = stats.peers.get_mut(peer.index()) {
                entry.deadline = self.pace.deadline(peer);
            }
        }
        stats
    }

    /// Gives up: tells every peer that still listens `abort`, its reason cut to [`Abort::MAX_REASON`] bytes. Every
    /// later collective answers [`ExchangeError::Aborted`]. Nothing happens if the communicator has failed or
    /// was closed before: the first reason wins.
    pub fn abort(&mut self, abort: &Abort) {
        if self.failure.is_none() && !self.closed {
            let abort = Abort { culprit: abort.culprit, reason: cut(&abort.reason) };
            let step = self.last.map_or(0, |operation| operation.step);
            self.failure = Some(ExchangeError::Aborted { by: self.world.rank(), abort: abort.clone(), step });
            self.mesh.close(Some(&abort));
        }
    }

    /// Leaves in good order: what was sent is delivered first, as far as the mesh's deadline allows. Idempotent;
    /// does nothing after a failure, which has closed the mesh already.
    pub fn close(&mut self) {
        if self.failure.is_none() && !self.closed {
            self.closed = true;
            self.mesh.close(None);
        }
    }

    /// A collective of whole messages.
    fn exchange(
        &mut self,
        operation: Operation,
        begin: impl FnOnce(Instant, World, &Limits) -> Result<Exchange, ExchangeError>,
    ) -> Result<Vec<Bytes>, ExchangeError> {
        self.run(operation, |this| {
            let (flow, mut assembly) = begin(this.mesh.now(), this.world, &this.limits)?.into_parts();
            match this.drive(flow, &mut assembly) {
                Ok(()) => Ok(assembly.take_messages()),
                Err(Stop::Exchange(error) | Stop::Pieces(error)) => Err(error),
            }
        })
    }

    /// Runs a collective if one can follow, and makes its error final.
    fn run<T>(
        &mut self,
        operation: Operation,
        collective: impl FnOnce(&mut Self) -> Result<T, ExchangeError>,
    ) -> Result<T, ExchangeError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        if self.closed || self.broken {
            let before = if self.closed { "close" } else { "one that the caller broke off" };
            return Err(ExchangeError::Caller { reason: format!("a collective after {before}") });
        }
        let span = tracing::debug_span!("collective", step = operation.step, tag = operation.tag.0);
        let _entered = span.enter();
        let result = self.ascend(operation).and_then(|()| collective(self));
        if let Err(error) = &result {
            let abort = told(error, self.world.rank());
            tracing::warn!(rank = self.world.rank().0, step = operation.step, %error, "collective failed");
            self.failure = Some(error.clone());
            self.mesh.close(Some(&abort));
        }
        result
    }

    fn ascend(&mut self, operation: Operation) -> Result<(), ExchangeError> {
        if let Some(last) = self.last.filter(|last| operation <= *last) {
            return Err(ExchangeError::Caller {
                reason: format!(
                    "step {}, tag {} is not later than step {}, tag {} before it",
                    operation.step, operation.tag.0, last.step, last.tag.0
                ),
            });
        }
        self.last = Some(operation);
        Ok(())
    }

    fn drive<P: Pieces>(&mut self, flow: Flow, pieces: &mut P) -> Result<(), Stop<P::Error>> {
        let mut flow = flow.paced(&self.pace);
        let now = self.mesh.now();
        for rank in self.world.peers() {
            for frame in self.early[rank.index()].take() {
                let (offset, bytes) = flow.handle_frame(now, rank, frame)?;
                self.hand_on(&mut flow, pieces, rank, offset, bytes)?;
            }
        }
        // Before anything is sent: a rank that is gone won't answer, however long we wait.
        for (rank, loss) in &self.losses {
            flow.handle_loss(*rank, loss.clone())?;
        }
        loop {
            // One piece out, one event in: neither holds up the other for longer than that.
            let sent = self.transmit(&mut flow, pieces)?;
            if flow.is_done() {
                for rank in flow.held() {
                    self.mesh.hold(rank, false);
                }
                self.pace.learn(&flow);
                return Ok(());
            }
            let now = self.mesh.now();
            let until = if sent { now } else { flow.poll_timeout().unwrap_or(now) };
            match self.mesh.receive(until) {
                Event::Frame(from, frame) => self.take(&mut flow, pieces, from, frame)?,
                Event::Lost(from, loss) => {
                    if self.losses.iter().all(|(rank, _)| *rank != from) {
                        self.losses.push((from, loss.clone()));
                    }
                    flow.handle_loss(from, loss)?;
                }
                // Only when nothing waits in the mesh: a rank that was itself stopped for longer than the deadline
                // finds what came meanwhile, and must not blame its senders. What does wait is bounded, so one
                // peer can't hide another for long.
                Event::Timeout => flow.handle_timeout(self.mesh.now())?,
                Event::Room(rank) => flow.handle_room(self.mesh.now(), rank),
            }
        }
    }

    /// Hands on a piece, and holds up whoever is too far ahead.
    fn hand_on<P: Pieces>(
        &mut self,
        flow: &mut Flow,
        pieces: &mut P,
        from: Rank,
        offset: u64,
        bytes: Bytes,
    ) -> Result<(), Stop<P::Error>> {
        pieces.take(from, offset, bytes).map_err(Stop::Pieces)?;
        while let Some((rank, hold)) = pieces.poll_hold() {
            flow.handle_hold(self.mesh.now(), rank, hold);
            self.mesh.hold(rank, hold);
        }
        Ok(())
    }

    /// Makes and sends the next piece; false if nothing can be sent now.
    fn transmit<P: Pieces>(&mut self, flow: &mut Flow, pieces: &mut P) -> Result<bool, Stop<P::Error>> {
        let Some(part) = flow.poll_transmit(|peer| self.mesh.has_room(peer)) else { return Ok(false) };
        let payload = pieces.make(part.to, part.range.clone()).map_err(Stop::Pieces)?;
        let (made, asked) = (payload.len() as u64, part.range.end - part.range.start);
        if made != asked {
            let reason = format!("a piece of {made} bytes for rank {}, where {asked} are asked for", part.to);
            return Err(ExchangeError::Caller { reason }.into());
        }
        let frame = flow.frame(&part, payload);
        self.mesh.send(part.to, frame);
        Ok(true)
    }

    /// Hands on what is in a frame, or keeps it for the next collective.
    fn take<P: Pieces>(
        &mut self,
        flow: &mut Flow,
        pieces: &mut P,
        from: Rank,
        frame: Frame,
    ) -> Result<(), Stop<P::Error>> {
        let ours = flow.operation();
        if frame.header.operation <= ours {
            let (offset, bytes) = flow.handle_frame(self.mesh.now(), from, frame)?;
            return self.hand_on(flow, pieces, from, offset, bytes);
        }
        collective::check(&self.world, from, &frame)
            .and_then(|()| self.early[from.index()].keep(ours, frame, &self.world, &self.limits))
            .map_err(|source| ExchangeError::Frame { rank: from, step: ours.step, source }.into())
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        let how = if std::thread::panicking() { "panicked" } else { "left without closing its communicator" };
        let reason = match self.last {
            Some(last) => format!("{how} (after step {})", last.step),
            None => format!("{how} (before the first collective)"),
        };
        self.abort(&Abort { culprit: Some(self.world.rank()), reason });
    }
}

/// What the other ranks are told about `error`. An [`Abort`] prints its culprit first, so the reason goes on
/// from there.
fn told(error: &ExchangeError, own: Rank) -> Abort {
    if let ExchangeError::Aborted { abort, .. } = error {
        return Abort { culprit: abort.culprit, reason: cut(&abort.reason) };
    }
    let Some(culprit) = error.culprit() else {
        return Abort { culprit: Some(own), reason: cut(&format!("gave up: {error}")) };
    };
    let text = error.to_string();
    let reason = text.strip_prefix(&format!("rank {culprit} ")).unwrap_or(&text);
    Abort { culprit: Some(culprit), reason: cut(reason) }
}

/// The longest start of `reason` that travels.
fn cut(reason: &str) -> String {
    clip(reason, Abort::MAX_REASON).to_owned()
}

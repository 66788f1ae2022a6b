//! Drives one collective after the other over a mesh.

use std::time::Instant;

use bytes::Bytes;

use super::early::Early;
use super::{Event, Mesh};
use crate::collective::{self, Exchange, Limits};
use crate::error::{Abort, ExchangeError, Loss, clip};
use crate::frame::{Frame, Operation};
use crate::stats::Stats;
use crate::world::{Rank, World};

/// One rank's end of a world: runs collectives over a [`Mesh`], one at a time.
///
/// All ranks must run the same collectives with the same operations, in ascending order. Every wait ends: the
/// mesh notices a peer that is silent, [`Limits::stall`] ends the wait for one that answers but does not send.
///
/// The first error is the last: this rank then tells the others whose fault it was ([`Abort`]), so that all name
/// the same rank, and every later call answers the same error. An error that came from another rank's abort is
/// passed on as it came.
///
/// **Call [`close`](Self::close) at the end.** Dropping a communicator without it aborts, because an early return
/// or a panic must not look like a normal end to the other ranks.
pub struct Communicator {
    mesh: Box<dyn Mesh>,
    world: World,
    limits: Limits,
    /// The latest operation begun.
    last: Option<Operation>,
    /// By rank.
    early: Vec<Early>,
    /// In the order in which they were noticed, at most one per rank.
    losses: Vec<(Rank, Loss)>,
    /// Why no further collective can run.
    failure: Option<ExchangeError>,
    closed: bool,
}

impl Communicator {
    /// Takes over `mesh`. What is wrong with `limits` shows as [`ExchangeError::Caller`] at the first collective.
    #[must_use]
    pub fn new(mesh: Box<dyn Mesh>, limits: Limits) -> Self {
        let world = mesh.world();
        let early = world.ranks().map(|_| Early::default()).collect();
        Self { mesh, world, limits, last: None, early, losses: Vec::new(), failure: None, closed: false }
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
        self.run(operation, |now, world, limits| {
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
        self.run(operation, |now, world, limits| {
            collective::all_gather(now, world, operation, own, expected, limits)
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
        self.run(operation, |now, world, limits| collective::barrier(now, world, operation, limits))?;
        Ok(())
    }

    /// What the mesh carried so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.mesh.stats()
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

    /// Begins a collective, drives it to its end, and makes its error final.
    fn run(
        &mut self,
        operation: Operation,
        begin: impl FnOnce(Instant, World, &Limits) -> Result<Exchange, ExchangeError>,
    ) -> Result<Vec<Bytes>, ExchangeError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        if self.closed {
            return Err(ExchangeError::Caller { reason: "a collective after close".to_owned() });
        }
        let span = tracing::debug_span!("collective", step = operation.step, tag = operation.tag.0);
        let _entered = span.enter();
        let result = self.ascend(operation).and_then(|()| {
            let exchange = begin(self.mesh.now(), self.world, &self.limits)?;
            self.drive(exchange)
        });
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

    fn drive(&mut self, mut exchange: Exchange) -> Result<Vec<Bytes>, ExchangeError> {
        let now = self.mesh.now();
        for (rank, early) in self.world.ranks().zip(&mut self.early) {
            for frame in early.take() {
                exchange.handle_frame(now, rank, frame)?;
            }
        }
        // Before anything is sent: a rank that is gone won't answer, however long we wait.
        for (rank, loss) in &self.losses {
            exchange.handle_loss(*rank, loss.clone())?;
        }
        while let Some((to, frame)) = exchange.poll_transmit() {
            self.mesh.send(to, frame);
        }
        loop {
            if let Some(messages) = exchange.poll() {
                return Ok(messages);
            }
            // Some, because a message is missing.
            let until = exchange.poll_timeout().unwrap_or_else(|| self.mesh.now());
            match self.mesh.receive(until) {
                Event::Frame(from, frame) => self.sort(&mut exchange, from, frame)?,
                Event::Lost(from, loss) => {
                    if self.losses.iter().all(|(rank, _)| *rank != from) {
                        self.losses.push((from, loss.clone()));
                    }
                    exchange.handle_loss(from, loss)?;
                }
                // Only when nothing waits in the mesh: a rank that was itself stopped for longer than the deadline
                // finds what came meanwhile, and must not blame its senders. What does wait is bounded, so one
                // peer can't hide another for long.
                Event::Timeout => exchange.handle_timeout(self.mesh.now())?,
                Event::Room(_) => {}
            }
        }
    }

    /// Hands a frame to the exchange, or keeps it for the next one.
    fn sort(&mut self, exchange: &mut Exchange, from: Rank, frame: Frame) -> Result<(), ExchangeError> {
        let ours = exchange.operation();
        if frame.header.operation <= ours {
            return exchange.handle_frame(self.mesh.now(), from, frame);
        }
        collective::check(&self.world, from, &frame)
            .and_then(|()| self.early[from.index()].keep(ours, frame, &self.limits))
            .map_err(|source| ExchangeError::Frame { rank: from, step: ours.step, source })
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

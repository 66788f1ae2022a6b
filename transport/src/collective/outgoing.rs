//! Messages on their way out, known by their lengths: a piece for every peer in turn, as long as nothing is in its way,
//! and tails after all others.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::Cut;
use super::limits::kept_bytes;
use crate::world::{Rank, World};

/// A piece to make and send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its receiver.
    pub to: Rank,
    /// Which bytes of the message.
    pub range: Range<u64>,
    /// Bytes of the whole message.
    pub total: u64,
}

/// What has not been handed out yet.
pub(super) struct Outgoing {
    cut: Cut,
    /// What a peer that has not begun takes.
    ahead: u64,
    /// Peers with pieces left and nothing in their way, as far as is known.
    ready: VecDeque<Rank>,
    /// By rank.
    messages: Vec<Message>,
    /// Messages that are not handed out in full.
    unsent: usize,
    /// Messages that wait for room.
    crowded: usize,
    /// Pieces that are not handed out and no tails, where there are tails.
    bodies: u64,
    /// Peers of which only the tail is left, while there are pieces to hand out before it.
    tails: Vec<Rank>,
}

struct Message {
    total: u64,
    next: u64,
    pieces: u64,
    /// What was sent to a peer that had not begun.
    kept: u64,
    /// Something of this collective came from the peer.
    begun: bool,
    wait: Wait,
    /// When the last piece found room, or the collective began.
    progress: Instant,
    /// The longest time between two of those.
    waited: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Wait {
    No,
    /// Until the mesh has room for the peer.
    Room,
    /// Until the peer begins.
    Begin,
    /// Until only tails are left.
    Bodies,
}

impl Message {
    /// Pieces before the tail, where there is one.
    fn bodies(&self) -> u64 {
        (self.pieces - self.next).saturating_sub(1)
    }
}

impl Outgoing {
    /// Messages of `lengths` bytes, one for every rank of `world`; the own one stays out.
    pub(super) fn new(now: Instant, world: &World, lengths: &[u64], cut: Cut, ahead: u64) -> Self {
        // Own rank + 1 first: if all began with rank 0, its link would be full while the others idle.
        let own = world.rank();
        let after = world.peers().filter(|rank| *rank > own);
        let before = world.peers().filter(|rank| *rank < own);
        let ready: VecDeque<_> = after.chain(before).collect();
        let message = |(rank, &total)| Message {
            total,
            next: 0,
            // Nothing of the own message is left to hand out: it does not count as unsent either.
            pieces: if rank == own { 0 } else { cut.count(total) },
            kept: 0,
            begun: false,
            wait: Wait::No,
            progress: now,
            waited: Duration::ZERO,
        };
        let unsent = ready.len();
        let messages: Vec<Message> = world.ranks().zip(lengths).map(message).collect();
        // Without tails, nothing has to wait.
        let bodies = if cut.tail == 0 { 0 } else { messages.iter().map(Message::bodies).sum() };
        Self { cut, ahead, ready, messages, unsent, crowded: 0, bodies, tails: Vec::new() }
    }

    /// The next piece, each peer in turn, past those that `room` says no to and those that have not begun and were sent
    /// as much as they take until then.
    ///
    /// No peer waits longer for its tail than for whoever keeps this rank from making the rest, and which it waits for too.
    pub(super) fn next(&mut self, mut room: impl FnMut(Rank) -> bool) -> Option<Part> {
        while let Some(to) = self.ready.pop_front() {
            let message = self.messages.get_mut(to.index())?;
            if message.bodies() == 0 && self.bodies > 0 {
                message.wait = Wait::Bodies;
                self.tails.push(to);
                continue;
            }
            let range = self.cut.range(message.total, message.next);
            let kept = message.kept + kept_bytes(range.end - range.start);
            if !message.begun && kept > self.ahead {
                message.wait = Wait::Begin;
                continue;
            }
            if !room(to) {
                message.wait = Wait::Room;
                self.crowded += 1;
                continue;
            }
            message.kept = kept;
            let (is_body, total) = (message.bodies() > 0, message.total);
            message.next += 1;
            if message.next < message.pieces {
                self.ready.push_back(to);
            } else {
                self.unsent -= 1;
            }
            self.without_bodies(u64::from(is_body));
            return Some(Part { to, range, total });
        }
        None
    }

    /// Something of this collective came from `peer`.
    pub(super) fn begun(&mut self, peer: Rank) {
        if let Some(message) = self.messages.get_mut(peer.index()) {
            message.begun = true;
        }
        self.end_of(Wait::Begin, peer);
    }

    /// The mesh has room for `peer` again.
    pub(super) fn room(&mut self, now: Instant, peer: Rank) {
        if self.end_of(Wait::Room, peer) {
            self.crowded -= 1;
            let message = &mut self.messages[peer.index()];
            message.waited = message.waited.max(now.saturating_duration_since(message.progress));
            message.progress = now;
        }
    }

    /// Nothing can be sent to `peer` any more.
    pub(super) fn forget(&mut self, peer: Rank) {
        let Some(message) = self.messages.get_mut(peer.index()) else { return };
        let bodies = message.bodies();
        self.crowded -= usize::from(message.wait == Wait::Room);
        self.unsent -= usize::from(message.next < message.pieces);
        (message.wait, message.next) = (Wait::No, message.pieces);
        self.ready.retain(|rank| *rank != peer);
        self.tails.retain(|rank| *rank != peer);
        self.without_bodies(bodies);
    }

    /// So many pieces that tails wait for are out of the way.
    fn without_bodies(&mut self, count: u64) {
        self.bodies = self.bodies.saturating_sub(count);
        if self.bodies == 0 {
            // Nothing without tails.
            for rank in self.tails.drain(..) {
                self.messages[rank.index()].wait = Wait::No;
                self.ready.push_back(rank);
            }
        }
    }

    fn end_of(&mut self, wait: Wait, peer: Rank) -> bool {
        let waited = self.messages.get_mut(peer.index()).filter(|message| message.wait == wait);
        let Some(message) = waited else { return false };
        message.wait = Wait::No;
        self.ready.push_back(peer);
        true
    }

    /// Since when the message for `peer` waits for room, the bytes of it that wait, and all of it.
    pub(super) fn waiting(&self, peer: Rank) -> Option<(Instant, u64, u64)> {
        let message = self.messages.get(peer.index()).filter(|message| message.wait == Wait::Room)?;
        let missing = message.total - self.cut.range(message.total, message.next).start;
        Some((message.progress, missing, message.total))
    }

    /// The longest time in which the message for `peer` found no room.
    pub(super) fn waited(&self, peer: Rank) -> Duration {
        self.messages.get(peer.index()).map_or(Duration::ZERO, |message| message.waited)
    }

    /// Whether any message waits for room.
    pub(super) fn is_crowded(&self) -> bool {
        self.crowded > 0
    }

    pub(super) fn is_empty(&self) -> bool {
        self.unsent == 0
    }
}

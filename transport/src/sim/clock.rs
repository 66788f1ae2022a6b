//! Who runs, what time it is, and what is under way: the world behind [`SimMesh`](super::SimMesh), one thread at a time.

mod node;
mod packet;
mod timer;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use super::mesh::{Fault, SimConfig};
use super::network::{Arrival, Network};
use crate::error::Loss;
use crate::frame::Frame;
use crate::mesh::Event;
use crate::world::Rank;

use node::{Node, Phase, Way};
use packet::{Item, Packet, damaged};
use timer::{Due, Timer};

pub(super) struct State {
    pub(super) now: Instant,
    pub(super) running: Option<u32>,
    nodes: Vec<Node>,
    /// `[from * size + to]`.
    ways: Vec<Way>,
    ready: VecDeque<u32>,
    network: Network<Packet>,
    timers: BinaryHeap<Reverse<Due>>,
    numbers: u64,
    /// Numbers of packets that came, where a wire makes copies.
    seen: Option<HashSet<u64>>,
    silence: Duration,
    again: Duration,
}

impl State {
    pub(super) fn new(size: u32, start: Instant, config: &SimConfig) -> Self {
        let mut link = config.link;
        // A sender that controls its congestion keeps frames back instead of losing them in the queue.
        link.queue = u64::MAX;
        let round_trip = 2 * (link.wire.delay + link.wire.jitter);
        let mut state = Self {
            now: start,
            running: None,
            nodes: (0..size).map(|_| Node::default()).collect(),
            ways: vec![Way::default(); size as usize * size as usize],
            ready: (0..size).collect(),
            network: Network::new(size, link, config.seed),
            timers: BinaryHeap::new(),
            numbers: 0,
            seen: (link.wire.duplicate > 0.0).then(HashSet::new),
            silence: config.silence,
            again: round_trip.max(Duration::from_millis(10)),
        };
        for (after, fault) in &config.faults {
            state.timer(start + *after, Timer::Fault(fault.clone()));
        }
        state.running = state.ready.pop_front();
        state
    }

    pub(super) fn is_dead(&self, rank: u32) -> bool {
        self.nodes[rank as usize].dead
    }

    pub(super) fn under_way(&self, rank: u32) -> u64 {
        self.nodes[rank as usize].under_way
    }

    pub(super) fn silence(&self) -> Duration {
        self.silence
    }

    /// Gives the turn away until an event comes or `until`.
    pub(super) fn wait(&mut self, rank: u32, until: Instant) {
        self.nodes[rank as usize].phase = Phase::Waiting(until);
    }

    /// Gives the turn away until nothing of this rank's is under way, or `until`.
    pub(super) fn drain(&mut self, rank: u32, until: Instant) {
        self.nodes[rank as usize].phase = Phase::Draining(until);
    }

    /// Gives the turn away until `until`, whatever comes.
    pub(super) fn compute(&mut self, rank: u32, until: Instant) {
        self.nodes[rank as usize].phase = Phase::Computing(until);
    }

    pub(super) fn leave(&mut self, rank: u32) {
        self.nodes[rank as usize].phase = Phase::Gone;
    }

    /// The next event of `rank`'s inbox.
    pub(super) fn take(&mut self, rank: u32) -> Option<Event> {
        let (from, item) = self.nodes[rank as usize].inbox.pop_front()?;
        Some(match item {
            Item::Frame(frame) => Event::Frame(from, frame),
            Item::Leave(loss) => Event::Lost(from, loss),
            Item::Corrupt(frame) => match damaged(&frame) {
                Ok(frame) => Event::Frame(from, frame),
                Err(loss) => Event::Lost(from, loss),
            },
        })
    }

    /// Sends a frame; what is lost is repeated.
    pub(super) fn send(&mut self, from: u32, to: u32, frame: Frame) {
        let node = &mut self.nodes[from as usize];
        if node.left {
            return;
        }
        let repeat = std::mem::take(&mut node.repeat);
        let item = if std::mem::take(&mut node.corrupt) {
            Item::Corrupt(frame.clone())
        } else {
            Item::Frame(frame.clone())
        };
        self.offer(from, to, item);
        if repeat {
            self.offer(from, to, Item::Frame(frame));
        }
    }

    /// Tells every peer that `rank` leaves; nothing that it sends later travels.
    pub(super) fn tell(&mut self, rank: u32, loss: &Loss) {
        if std::mem::replace(&mut self.nodes[rank as usize].left, true) {
            return;
        }
        for to in self.peers(rank) {
            self.offer(rank, to, Item::Leave(loss.clone()));
        }
    }

    /// Whose turn it is next; `None` if nobody is left. Time passes only here, and only while nobody is ready.
    pub(super) fn next_turn(&mut self) -> Option<u32> {
        loop {
            while let Some(rank) = self.ready.pop_front() {
                if self.nodes[rank as usize].dead {
                    continue;
                }
                self.running = Some(rank);
                return self.running;
            }
            let waits = self.nodes.iter().filter_map(Node::until);
            if self.nodes.iter().all(|node| node.phase == Phase::Gone) {
                self.running = None;
                return None;
            }
            let due = self.timers.peek().map(|Reverse(due)| due.at);
            let next = waits.chain(due).chain(self.network.next()).min()?;
            self.now = self.now.max(next);
            while let Some(arrival) = self.network.poll(self.now) {
                self.arrive(arrival);
            }
            while self.timers.peek().is_some_and(|Reverse(due)| due.at <= self.now) {
                let Some(Reverse(due)) = self.timers.pop() else { break };
                self.fire(due.timer);
            }
            for rank in 0..self.size() {
                let node = &mut self.nodes[rank as usize];
                if node.wakes(self.now) {
                    node.phase = Phase::Ready;
                    self.ready.push_back(rank);
                }
            }
        }
    }

    fn size(&self) -> u32 {
        u32::try_from(self.nodes.len()).unwrap_or(u32::MAX)
    }

    fn peers(&self, rank: u32) -> impl Iterator<Item = u32> + use<> {
        (0..self.size()).filter(move |peer| *peer != rank)
    }

    fn way(&mut self, from: u32, to: u32) -> &mut Way {
        let size = self.nodes.len();
        &mut self.ways[from as usize * size + to as usize]
    }

    fn timer(&mut self, at: Instant, timer: Timer) {
        self.numbers += 1;
        self.timers.push(Reverse(Due { at, number: self.numbers, timer }));
    }

    fn offer(&mut self, from: u32, to: u32, item: Item) {
        self.numbers += 1;
        self.nodes[from as usize].under_way += 1;
        let packet = Packet { number: self.numbers, item };
        let wait = self.again;
        self.transmit(from, to, packet, wait);
    }

    /// Sends once; if the network drops it, again after `wait`, each time twice as long up to a quarter of the silence.
    fn transmit(&mut self, from: u32, to: u32, packet: Packet, wait: Duration) {
        // Who was killed repeats nothing; who is given up by the receiver is not listened to. Who sent a bad
        // frame is still told so, as QUIC's last packet does: else it would wait for an answer.
        let back = *self.way(to, from);
        let given_up = back.lost && !(back.bad && matches!(packet.item, Item::Leave(_)));
        if self.nodes[from as usize].dead || self.way(from, to).lost || given_up {
            self.nodes[from as usize].under_way -= 1;
            return;
        }
        let left = self.nodes[from as usize].left;
        if left && !matches!(packet.item, Item::Leave(_)) {
            self.nodes[from as usize].under_way -= 1;
            return;
        }
        let bytes = match &packet.item {
            Item::Frame(frame) | Item::Corrupt(frame) => frame.wire_bytes(),
            Item::Leave(_) => 64,
        };
        let dropped = |network: &Network<Packet>| network.traffic().lost + network.traffic().cut;
        let before = dropped(&self.network);
        self.network.send(self.now, from, to, bytes, packet.clone());
        if dropped(&self.network) != before {
            let longer = (2 * wait).min((self.silence / 4).max(self.again));
            self.timer(self.now + wait, Timer::Again { from, to, packet, wait: longer });
        }
    }

    fn arrive(&mut self, arrival: Arrival<Packet>) {
        let Arrival { from, to, packet, .. } = arrival;
        if self.seen.as_mut().is_some_and(|seen| !seen.insert(packet.number)) {
            return;
        }
        self.nodes[from as usize].under_way -= 1;
        if self.way(from, to).lost || self.nodes[to as usize].dead {
            return;
        }
        if matches!(packet.item, Item::Leave(_) | Item::Corrupt(_)) {
            let way = self.way(from, to);
            (way.lost, way.bad) = (true, matches!(packet.item, Item::Corrupt(_)));
        }
        self.nodes[to as usize].inbox.push_back((Rank(from), packet.item));
    }

    fn lose(&mut self, from: u32, to: u32, loss: Loss) {
        if !std::mem::replace(&mut self.way(from, to).lost, true) {
            self.nodes[to as usize].inbox.push_back((Rank(from), Item::Leave(loss)));
        }
    }

    /// Notes for every way of `rank` whether keep-alives pass.
    fn listen(&mut self, rank: u32) {
        for peer in self.peers(rank) {
            for (from, to) in [(rank, peer), (peer, rank)] {
                let node = &self.nodes[from as usize];
                let mute = node.dead || node.stopped.is_some();
                let now = self.now;
                let way = self.way(from, to);
                if !mute && way.cuts == 0 {
                    way.quiet = None;
                } else if way.quiet.is_none() {
                    way.quiet = Some(now);
                    self.timer(now + self.silence, Timer::Silence { from, to, since: now });
                }
            }
        }
    }

    fn fire(&mut self, timer: Timer) {
        match timer {
            Timer::Again { from, to, packet, wait } => self.transmit(from, to, packet, wait),
            Timer::Silence { from, to, since } => {
                // Who is stopped looks at its clock when it goes on.
                let deaf = self.nodes[to as usize].dead || self.nodes[to as usize].stopped.is_some();
                if !deaf && self.way(from, to).quiet == Some(since) {
                    let silent = self.now.saturating_duration_since(since);
                    self.lose(from, to, Loss::Silent { silent, deadline: self.silence });
                }
            }
            Timer::Fault(fault) => self.strike(fault),
            Timer::Resume(rank) => self.resume(rank),
            Timer::Mend(ranks) => self.cut(&ranks, false),
        }
    }

    fn strike(&mut self, fault: Fault) {
        match fault {
            Fault::Crash(Rank(rank)) => {
                let node = &mut self.nodes[rank as usize];
                if node.phase != Phase::Gone {
                    (node.dead, node.left, node.phase) = (true, true, Phase::Gone);
                    self.listen(rank);
                }
            }
            Fault::Stop { rank: Rank(rank), length } => {
                let node = &mut self.nodes[rank as usize];
                if node.phase != Phase::Gone {
                    node.stopped =
                        Some(node.stopped.map_or((self.now, 1), |(since, stops)| (since, stops + 1)));
                    self.listen(rank);
                    self.timer(self.now + length, Timer::Resume(rank));
                }
            }
            Fault::Partition { ranks, length } => {
                let ranks: Vec<u32> = ranks.into_iter().map(|rank| rank.0).collect();
                self.cut(&ranks, true);
                if let Some(length) = length {
                    self.timer(self.now + length, Timer::Mend(ranks));
                }
            }
            Fault::Slow { rank, rate } => self.network.set_rate(rank.0, Some(rate.max(1))),
            Fault::Corrupt(rank) => self.nodes[rank.index()].corrupt = true,
            Fault::Repeat(rank) => self.nodes[rank.index()].repeat = true,
        }
    }

    fn resume(&mut self, rank: u32) {
        let stopped = &mut self.nodes[rank as usize].stopped;
        let Some((since, stops)) = *stopped else { return };
        *stopped = (stops > 1).then_some((since, stops - 1));
        if stopped.is_some() {
            return;
        }
        let paused = self.now.saturating_duration_since(since);
        for peer in self.peers(rank) {
            let quiet = self.way(peer, rank).quiet;
            if paused >= self.silence {
                self.lose(peer, rank, Loss::Paused { paused });
            } else if let Some(quiet) = quiet.filter(|quiet| *quiet + self.silence <= self.now) {
                let silent = self.now.saturating_duration_since(quiet);
                self.lose(peer, rank, Loss::Silent { silent, deadline: self.silence });
            }
        }
        self.listen(rank);
    }

    /// Cuts or mends every way between `ranks` and the others.
    fn cut(&mut self, ranks: &[u32], cut: bool) {
        for rank in ranks.iter().copied() {
            for peer in self.peers(rank).filter(|peer| !ranks.contains(peer)) {
                for (from, to) in [(rank, peer), (peer, rank)] {
                    let way = self.way(from, to);
                    way.cuts = if cut { way.cuts + 1 } else { way.cuts.saturating_sub(1) };
                    let cut = way.cuts > 0;
                    self.network.cut(from, to, cut);
                }
            }
            self.listen(rank);
        }
    }
}

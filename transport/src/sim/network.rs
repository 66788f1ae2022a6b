//! All nodes, all ways between them, and what is under way.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::time::{Duration, Instant};

use super::config::{LinkConfig, WireConfig};
use super::random::Random;
use super::shaper::Shaper;
use super::wire::Wire;

/// Packets of type `P` between nodes 0..n. The same calls with the same seed give the same arrivals.
///
/// **Cost**: two heap operations per packet, four where lines have a rate; memory for what is under way, and for pairs
/// that have been used on a wire with jitter, bursts or settings of its own.
pub struct Network<P> {
    link: LinkConfig,
    lines: Vec<[Shaper; 2]>,
    /// Of pairs whose packets depend on those before.
    wires: HashMap<(u32, u32), Wire>,
    own: HashMap<(u32, u32), WireConfig>,
    cut: HashSet<(u32, u32)>,
    random: Random,
    under_way: BinaryHeap<Reverse<Event<P>>>,
    /// Numbers events, so that those of one instant keep their order.
    events: u64,
    traffic: Traffic,
}

/// A packet that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival<P> {
    /// When: not later than the `now` it was asked for with.
    pub at: Instant,
    /// Where it came from.
    pub from: u32,
    /// Where it is.
    pub to: u32,
    /// The packet.
    pub packet: P,
}

/// What a network did so far: what its figures were, next to what they should be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    /// Packets given to it.
    pub offered: u64,
    /// Packets that arrived, second copies not counted.
    pub delivered: u64,
    /// Bytes of those.
    pub delivered_bytes: u64,
    /// Dropped because a queue was full.
    pub overflowed: u64,
    /// Lost at random.
    pub lost: u64,
    /// Dropped on a way that is cut, or to or from a node that does not exist.
    pub cut: u64,
    /// Arrived a second time.
    pub duplicated: u64,
    /// Held back.
    pub held_back: u64,
    /// Sum of the times under way of the packets that arrived.
    pub delay: Duration,
    /// The longest of them.
    pub longest: Duration,
}

impl Traffic {
    /// Share of the packets that reached the wire and were lost there; 0 before the first.
    #[must_use]
    pub fn loss(&self) -> f64 {
        let wire = self.offered.saturating_sub(self.overflowed + self.cut);
        if wire == 0 { 0.0 } else { self.lost as f64 / wire as f64 }
    }

    /// Mean time under way; zero before the first arrival.
    #[must_use]
    pub fn mean_delay(&self) -> Duration {
        self.delay.div_f64(self.delivered.max(1) as f64)
    }
}

struct Event<P> {
    at: Instant,
    number: u64,
    sent: Instant,
    from: u32,
    to: u32,
    bytes: u64,
    copy: bool,
    /// Whether it has passed the receiver's line.
    through: bool,
    packet: P,
}

impl<P: Clone> Network<P> {
    /// `nodes` nodes, with lines and wires as `link` says.
    #[must_use]
    pub fn new(nodes: u32, link: LinkConfig, seed: u64) -> Self {
        let line = Shaper::new(link.rate, link.queue);
        Self {
            link,
            lines: (0..nodes).map(|_| [line.clone(), line.clone()]).collect(),
            wires: HashMap::new(),
            own: HashMap::new(),
            cut: HashSet::new(),
            random: Random::new(seed),
            under_way: BinaryHeap::new(),
            events: 0,
            traffic: Traffic::default(),
        }
    }

    /// Gives `node`'s lines, out and in, another rate (bits per second, at least 1) from now on. What waits stays.
    pub fn set_rate(&mut self, node: u32, rate: Option<u64>) {
        for line in self.lines.get_mut(node as usize).into_iter().flatten() {
            line.set(rate, self.link.queue);
        }
    }

    /// Makes the way `from` -> `to` another one from now on.
    pub fn set_wire(&mut self, from: u32, to: u32, wire: WireConfig) {
        self.own.insert((from, to), wire);
    }

    /// Cuts the way `from` -> `to`, or mends it. What is under way on it when it is cut arrives.
    pub fn cut(&mut self, from: u32, to: u32, cut: bool) {
        if cut {
            self.cut.insert((from, to));
        } else {
            self.cut.remove(&(from, to));
        }
    }

    /// Sends a packet of `bytes` bytes, headers included.
    pub fn send(&mut self, now: Instant, from: u32, to: u32, bytes: u64, packet: P) {
        self.traffic.offered += 1;
        let exists = (to as usize) < self.lines.len();
        let Some([out, _]) = self.lines.get_mut(from as usize).filter(|_| exists) else {
            self.traffic.cut += 1;
            return;
        };
        if self.cut.contains(&(from, to)) {
            self.traffic.cut += 1;
            return;
        }
        let Some(left) = out.admit(now, bytes) else {
            self.traffic.overflowed += 1;
            return;
        };
        let config = self.own.get(&(from, to)).copied().unwrap_or(self.link.wire);
        let crossing = if config.burst.is_some() || !config.jitter.is_zero() {
            self.wires.entry((from, to)).or_default().cross(&config, &mut self.random, left)
        } else {
            // What does not depend on the packets before needs no memory of them: thousands of nodes have millions of pairs.
            Wire::default().cross(&config, &mut self.random, left)
        };
        let Some(at) = crossing.arrives else {
            self.traffic.lost += 1;
            return;
        };
        self.traffic.held_back += u64::from(crossing.held_back);
        let mut push = |at, copy, packet| {
            let number = self.events;
            self.events += 1;
            let event = Event { at, number, sent: now, from, to, bytes, copy, through: false, packet };
            self.under_way.push(Reverse(event));
        };
        if let Some(again) = crossing.again {
            push(again, true, packet.clone());
        }
        push(at, false, packet);
    }

    /// The next packet that has arrived by `now`, in the order of arrival.
    pub fn poll(&mut self, now: Instant) -> Option<Arrival<P>> {
        while self.under_way.peek().is_some_and(|Reverse(event)| event.at <= now) {
            let Reverse(mut event) = self.under_way.pop()?;
            if !event.through {
                let [_, into] = &mut self.lines[event.to as usize];
                let Some(at) = into.admit(event.at, event.bytes) else {
                    self.traffic.overflowed += u64::from(!event.copy);
                    continue;
                };
                event.through = true;
                if at > event.at {
                    event.at = at;
                    event.number = self.events;
                    self.events += 1;
                    self.under_way.push(Reverse(event));
                    continue;
                }
            }
            self.note(&event);
            let Event { at, from, to, packet, .. } = event;
            return Some(Arrival { at, from, to, packet });
        }
        None
    }

    /// When to call [`poll`](Self::poll) next; `None` while nothing is under way. Nothing may have arrived then.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        self.under_way.peek().map(|Reverse(event)| event.at)
    }

    /// What it did so far.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    fn note(&mut self, event: &Event<P>) {
        let traffic = &mut self.traffic;
        if event.copy {
            traffic.duplicated += 1;
            return;
        }
        let delay = event.at.saturating_duration_since(event.sent);
        traffic.delivered += 1;
        traffic.delivered_bytes += event.bytes;
        traffic.delay += delay;
        traffic.longest = traffic.longest.max(delay);
    }
}

impl<P> PartialEq for Event<P> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}

impl<P> Eq for Event<P> {}

impl<P> PartialOrd for Event<P> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<P> Ord for Event<P> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

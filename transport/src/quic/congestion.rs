//! How fast to send: at a rate, not until something is lost.
//!
//! **What.** [`Paced`] keeps as many bytes in flight as its rate carries in a round trip, and lets the round trip grow
//! only a little above the shortest one seen. The rate is the operator's ([`Link::Declared`], shared by the node's busy
//! connections) or what was found to be delivered ([`Link::Estimated`]). So random loss, which says nothing about a rate,
//! slows nothing, and a queue that fills stops growth before it drops a packet. Cubic (RFC 9438), the Internet's usual
//! controller, halves at each loss: over 80 ms and with one packet in a thousand lost it carries 1 % of a Gbit/s.
//!
//! **Estimated** follows the ideas of BBR (draft-ietf-ccwg-bbr): double per round trip until the delivered rate stops
//! growing or a queue builds up; then keep to the highest rate of the last ten round trips, and try a quarter more every
//! eighth. Unlike BBR it takes its bound on the queue from the round trip alone, and where a queue stands that it did not
//! make, it takes no less than Cubic would: who fills a queue is a flow that only loss can stop.
//!
//! **Declared** too high is no harm: the bound on the round trip holds, and where packets are lost beyond the path's random
//! loss while a queue stands, the rate falls towards what was delivered and comes back by a tenth per round trip. Rounds that are
//! small, or in which there was not enough to send, say nothing: the last packets of a message are few, and one of them is a large share.
//!
//! **Known limits.** Beside a flow of TCP Cubic that was there first, an estimated rate takes more than its part in the beginning: on
//! 100 Mbit/s and 40 ms, between the system's TCP and real sockets, 64 to 92 % from the 8th to the 16th second, and 44 and 50 %
//! from the 16th to the 32nd (`transport/examples/beside_tcp.rs`). Two estimated flows that face each other over one path see the
//! sum of both queues in their round trips; one may keep back for the other's and stay near 80 % of the link. A declared rate has
//! no such trouble.
//!
//! **Measured** on a virtual clock (`cargo test --release --test congestion -- --nocapture`), share of the link in payload over
//! the middle half of a transfer both ways, and what was sent again; Cubic carries 2 % of the second link:
//!
//! | link | declared | sent again |
//! |---|---|---|
//! | 1 Gbit/s, 80 ms, 0.1 % lost | 95 % | 0.1 % |
//! | 100 Mbit/s, 80 ms, 1 % | 94 % | 1.0 % |
//! | 100 Mbit/s, 150 ms, 1 % | 92 % | 1.0 % |
//! | 100 Mbit/s, 80 ms, 1 % in bursts of 8 | 92 % | 0.9 % |
//! | 200 Mbit/s, 80 ms, 0.1 %, declared 20 % too high | 95 % | 0.1 % |
//!
//! Four nodes, 200 Mbit/s, 60 ms, 16 MiB per pair (2.01 s of payload): 2.15, 2.17 and 2.24 s at 0, 0.1 and 1 % loss. Beside a
//! flow of Cubic on 100 Mbit/s, 40 ms: 44 to 51 % estimated, 63 % declared. An estimated rate alone: 95 %.
//!
//! Over real sockets, `gradwire bench exchange --link` shows the steady part of a transfer beside the whole, which has its start and
//! its last retransmissions in it: on two cores, of a link of 1 Gbit/s, 80 ms and 0.1 % loss, 94 % steady and 90 % of the whole of
//! 256 MiB, both ways, with the emulator on the same cores.
//!
//! **Cost.** No timer and no allocation; a few float operations per acknowledged packet.

mod estimate;
mod grace;
mod round;
mod share;

use std::any::Any;
use std::num::NonZeroU64;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn::congestion::{Controller, ControllerFactory, Cubic, CubicConfig};
use quinn_proto::RttEstimator;

use estimate::Estimate;
use grace::WithGrace;
pub(super) use grace::let_go;
use round::{Round, Rounds};
use share::{Seat, Share};

use crate::sim::{self, LinkError};

/// Where the rate comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Link {
    /// Measured, per connection. The default.
    #[default]
    Estimated,
    /// What this node's line carries out, in bits per second of IP packets; connections that are busy share it equally. No limit
    /// for a faster line: a connection has 16 KiB under way at any rate, and over a round trip of 1 ms that is 131 Mbit/s.
    Declared(NonZeroU64),
}

/// `estimated`, or a rate as in `1Gbit`, `200Mbit`, `1500kbit`: 1 kbit/s to 1 Tbit/s.
impl FromStr for Link {
    type Err = LinkError;

    fn from_str(text: &str) -> Result<Self, LinkError> {
        if text == "estimated" {
            return Ok(Self::Estimated);
        }
        let rate = sim::rate(text).map_err(|reason| LinkError { text: text.to_owned(), reason })?;
        Ok(NonZeroU64::new(rate).map_or(Self::Estimated, Self::Declared))
    }
}

/// What decides how fast a connection sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Congestion {
    /// [`Paced`]. The default, with an estimated rate.
    Paced(Link),
    /// RFC 9438, as quinn has it: to compare with, and for paths that lose nothing.
    Cubic,
}

impl Default for Congestion {
    fn default() -> Self {
        Self::Paced(Link::default())
    }
}

impl Congestion {
    /// The controllers of one node.
    pub(super) fn factory(self) -> Arc<dyn ControllerFactory + Send + Sync> {
        let factory: Arc<dyn ControllerFactory + Send + Sync> = match self {
            Self::Paced(link) => Arc::new(Paced::new(link)),
            Self::Cubic => Arc::new(CubicConfig::default()),
        };
        Arc::new(WithGrace(factory))
    }
}

/// Share of a declared rate that is used: a queue that is never empty is no use, and a pacer is not exact.
const USED: f64 = 0.97;

/// IP and UDP headers around each datagram, which a controller does not see.
const HEADERS: f64 = 28.0;

/// How far the round trip may grow above the shortest one: by this factor, and by this time, which is what schedulers and
/// delayed acknowledgements take. Where a queue is too short for it, it is halved down to the second one.
const STRETCH: f64 = 1.125;
const SLACK: Duration = Duration::from_millis(3);
/// The same for a round trip inside a machine or a site, where it is shorter than a scheduler's turn: with 3 ms two ranks on two
/// busy cores carried a quarter less than with Cubic.
const NEAR: Duration = Duration::from_millis(2);
const NEAR_SLACK: Duration = Duration::from_millis(10);
const LEAST_SLACK: Duration = Duration::from_micros(200);

/// Loss above the path's random loss that counts as the sign of a full queue.
const EXCESS: f64 = 0.02;

/// Share of lost bytes for which one round is enough.
const DROWNING: f64 = 0.2;

/// Bytes sent at once, below which they are acknowledgements or questions, and no share of the line.
const BULK: u64 = 600;

/// Bytes in flight at least, and before the first round trip is measured.
const SMALLEST_WINDOW: u64 = 16 << 10;
const FIRST_WINDOW: u64 = 128 << 10;

/// Makes the controllers of one node.
#[derive(Debug)]
pub struct Paced {
    /// Of a declared rate.
    share: Option<Arc<Share>>,
}

impl Paced {
    /// For a node with this link.
    #[must_use]
    pub fn new(link: Link) -> Self {
        let share = match link {
            Link::Estimated => None,
            Link::Declared(bits) => Some(Arc::new(Share::new(bits.get() as f64 / 8.0 * USED))),
        };
        Self { share }
    }
}

impl ControllerFactory for Paced {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        let rate = match &self.share {
            None => {
                let cubic = Cubic::new(Arc::new(CubicConfig::default()), now, mtu);
                Rate::Estimated { estimate: Estimate::new(), cubic }
            }
            Some(share) => Rate::Declared { seat: share.sit(now), ceiling: f64::INFINITY, overflowing: 0 },
        };
        Box::new(Pace { rate, rounds: Rounds::new(now), mtu: mtu.into(), window: FIRST_WINDOW })
    }
}

/// The controller of one connection.
#[derive(Clone)]
struct Pace {
    rate: Rate,
    rounds: Rounds,
    mtu: u64,
    window: u64,
}

/// Where one connection's rate comes from.
#[derive(Clone)]
enum Rate {
    Declared {
        seat: Seat,
        /// Bytes per second that the rate was found not to exceed.
        ceiling: f64,
        /// Rounds in a row with a queue that loses packets.
        overflowing: u32,
    },
    Estimated {
        estimate: Estimate,
        /// What a flow would do that only loss stops.
        cubic: Cubic,
    },
}

impl Pace {
    fn close_round(&mut self, round: &Round) {
        let full = self.rounds.overflows(round);
        match &mut self.rate {
            Rate::Estimated { estimate, .. } => estimate.close_round(round, &self.rounds, full),
            Rate::Declared { seat, ceiling, overflowing } => {
                *overflowing = if full { *overflowing + 1 } else { 0 };
                if *overflowing >= 2 || (full && round.loss() > DROWNING) {
                    *ceiling = round.left_of(seat.latest().min(*ceiling));
                } else if !full {
                    *ceiling *= 1.1;
                }
            }
        }
    }

    fn set_window(&mut self, now: Instant) {
        let Some(stretched) = self.rounds.stretched() else { return };
        let part = if self.rounds.renews() { 0.5 } else { 1.0 };
        let window = match &mut self.rate {
            Rate::Declared { seat, ceiling, .. } => {
                let payload = self.mtu as f64 / (self.mtu as f64 + HEADERS);
                let rate = (seat.rate(now, self.rounds.smoothed()) * payload).min(*ceiling);
                whole(rate * stretched.as_secs_f64() * part)
            }
            Rate::Estimated { estimate, cubic } => {
                let window = whole(estimate.window(stretched, self.window) * part);
                // Twice: an estimate under a queue of others is too low, but not by more than the queue is long.
                let most = if self.rounds.crowded() { window.saturating_mul(2) } else { window };
                window.max(cubic.window().min(most))
            }
        };
        self.window = window.max(SMALLEST_WINDOW).max(4 * self.mtu);
    }
}

impl Controller for Pace {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.rounds.sent(now);
        match &mut self.rate {
            Rate::Declared { seat, .. } if bytes >= BULK => seat.sent(now, bytes),
            Rate::Declared { .. } => {}
            Rate::Estimated { cubic, .. } => cubic.on_sent(now, bytes, last_packet_number),
        }
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &RttEstimator) {
        self.rounds.acknowledged(now, sent, bytes);
        if let Rate::Estimated { estimate, cubic } = &mut self.rate {
            cubic.on_ack(now, sent, bytes, app_limited, rtt);
            self.window += estimate.growth(&self.rounds, bytes);
        }
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest: Option<u64>) {
        if let Rate::Estimated { cubic, .. } = &mut self.rate {
            cubic.on_end_acks(now, in_flight, app_limited, largest);
        }
        if let Some(round) = self.rounds.end_batch(now, in_flight, app_limited) {
            self.close_round(&round);
        }
        self.set_window(now);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, is_persistent: bool, lost: u64) {
        if let Rate::Estimated { cubic, .. } = &mut self.rate {
            cubic.on_congestion_event(now, sent, is_persistent, lost);
        }
        self.rounds.lost(lost);
    }

    fn on_mtu_update(&mut self, mtu: u16) {
        if let Rate::Estimated { cubic, .. } = &mut self.rate {
            cubic.on_mtu_update(mtu);
        }
        self.mtu = mtu.into();
    }

    fn window(&self) -> u64 {
        self.window
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        FIRST_WINDOW
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// The nearest whole number of bytes.
#[expect(
    clippy::cast_possible_truncation,
    reason = "a float becomes the nearest u64, which is what is wanted"
)]
fn whole(bytes: f64) -> u64 {
    bytes.round() as u64
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_rate_is_written_with_its_unit() {
        let declared = |bits| Link::Declared(NonZeroU64::new(bits).unwrap());
        for (text, link) in [
            ("estimated", Link::Estimated),
            ("1Gbit", declared(1_000_000_000)),
            ("2.5Mbit", declared(2_500_000)),
            ("1500kbit", declared(1_500_000)),
        ] {
            assert_eq!(text.parse(), Ok(link));
        }
        for (text, reason) in [
            ("", "unit \"\" of \"\" is none of bit, kbit, Mbit, Gbit"),
            ("0Mbit", "rate 0 bit/s is not in 1 kbit/s to 1 Tbit/s"),
            ("10Tbit", "unit \"Tbit\" of \"10Tbit\" is none of bit, kbit, Mbit, Gbit"),
        ] {
            assert_eq!(text.parse::<Link>().unwrap_err().reason, reason);
        }
    }
}

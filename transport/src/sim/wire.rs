//! What lies between two nodes, one way: delay and faults.

use std::time::{Duration, Instant};

use super::config::WireConfig;
use super::random::Random;

/// What a packet remembers of those before it on the same way.
#[derive(Clone, Debug, Default)]
pub(super) struct Wire {
    /// Whether losses are under way.
    bad: bool,
    /// When the latest packet in order arrives.
    last: Option<Instant>,
}

/// What became of one packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Crossing {
    /// When it arrives; `None` if it is lost.
    pub(super) arrives: Option<Instant>,
    /// When it arrives a second time.
    pub(super) again: Option<Instant>,
    pub(super) held_back: bool,
}

impl Wire {
    /// Sends a packet that has left its node at `left`.
    pub(super) fn cross(&mut self, config: &WireConfig, random: &mut Random, left: Instant) -> Crossing {
        if self.loses(config, random) {
            return Crossing::default();
        }
        let jitter = scale(config.jitter, || random.unit());
        let mut arrives = left + config.delay + jitter;
        let held_back = random.chance(config.reorder);
        if held_back {
            arrives += scale(hold(config), || 0.25 + 0.75 * random.unit());
        } else if let Some(last) = self.last.replace(arrives).filter(|last| *last > arrives) {
            // Only being held back changes the order.
            arrives = last;
            self.last = Some(last);
        }
        let again = random.chance(config.duplicate).then(|| arrives + hold(config) / 4);
        Crossing { arrives: Some(arrives), again, held_back }
    }

    fn loses(&mut self, config: &WireConfig, random: &mut Random) -> bool {
        let Some(burst) = config.burst.filter(|_| config.loss < 1.0) else {
            return random.chance(config.loss);
        };
        // Gilbert: the bad state ends with 1 / burst, and begins so often that the share of lost packets is the loss.
        let change =
            if self.bad { 1.0 / burst } else { (config.loss / (burst * (1.0 - config.loss))).min(1.0) };
        self.bad ^= random.chance(change);
        self.bad
    }
}

/// How long a packet is held back at most: enough for many to overtake it, and far below a retransmission timeout.
fn hold(config: &WireConfig) -> Duration {
    (config.delay / 4).clamp(Duration::from_millis(1), Duration::from_millis(10))
}

fn scale(time: Duration, factor: impl FnOnce() -> f64) -> Duration {
    if time.is_zero() { time } else { time.mul_f64(factor()) }
}

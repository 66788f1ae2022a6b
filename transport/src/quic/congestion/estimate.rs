//! The rate of a path that nobody has declared.

use std::collections::VecDeque;
use std::time::Duration;

use super::round::{Round, Rounds};

/// Rounds for which a delivered rate counts.
const REMEMBERED: usize = 10;

/// Rounds from one probe to the next.
const PROBE_EVERY: u32 = 8;

/// How much more than the rate a probe sends.
const PROBE: f64 = 1.25;

#[derive(Clone, Debug)]
pub(super) struct Estimate {
    phase: Phase,
    /// Rates of the last rounds, bytes per second; the newest is last.
    rates: VecDeque<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// Doubling; the best rate so far, and rounds since it grew.
    Startup { best: f64, since: u32 },
    /// A queue builds up; the window stays until a whole round has shown the rate, after so many rounds.
    Settle { rounds: u32 },
    /// At the rate, since so many rounds.
    Cruise { rounds: u32 },
    /// Above it; the rate before, and rounds since. What the first round delivers was sent before the probe.
    Probe { before: f64, rounds: u32 },
}

impl Estimate {
    pub(super) fn new() -> Self {
        Self { phase: Phase::Startup { best: 0.0, since: 0 }, rates: VecDeque::with_capacity(REMEMBERED) }
    }

    /// Bytes by which the window grows for `bytes` acknowledged.
    pub(super) fn growth(&mut self, rounds: &Rounds, bytes: u64) -> u64 {
        if !matches!(self.phase, Phase::Startup { .. }) {
            return 0;
        }
        if rounds.builds_up() {
            // Not at the end of the round: by then the window would have doubled again.
            self.phase = Phase::Settle { rounds: 0 };
            return 0;
        }
        bytes
    }

    /// Bytes per second; 0 before the first round.
    fn rate(&self) -> f64 {
        self.rates.iter().copied().fold(0.0, f64::max)
    }

    pub(super) fn close_round(&mut self, round: &Round, rounds: &Rounds, full: bool) {
        let rate = round.rate();
        if full {
            // What was delivered before does not fit any more.
            let left = round.left_of(self.rate());
            self.rates.clear();
            self.rates.push_back(left);
        }
        // A sender that had too little to send has not seen the path's rate, unless it has seen more than before.
        if !round.idle || rate > self.rate() {
            if self.rates.len() == REMEMBERED {
                self.rates.pop_front();
            }
            self.rates.push_back(rate);
        }
        self.phase = match self.phase {
            Phase::Startup { .. } if full || rounds.queue_stands(round) => Phase::Cruise { rounds: 0 },
            Phase::Settle { rounds: 0 } => Phase::Settle { rounds: 1 },
            Phase::Settle { .. } => Phase::Cruise { rounds: 0 },
            Phase::Startup { best, .. } if rate > best * PROBE => Phase::Startup { best: rate, since: 0 },
            Phase::Startup { best, since } if round.idle || since < 2 => {
                Phase::Startup { best, since: if round.idle { since } else { since + 1 } }
            }
            Phase::Startup { .. } => Phase::Cruise { rounds: 0 },
            Phase::Cruise { rounds } if rounds >= PROBE_EVERY && !round.idle => {
                Phase::Probe { before: self.rate(), rounds: 0 }
            }
            Phase::Cruise { rounds } => Phase::Cruise { rounds: rounds + 1 },
            Phase::Probe { before, rounds: 0 } if !full => Phase::Probe { before, rounds: 1 },
            Phase::Probe { before, .. } if rate > before * 1.05 && !full => {
                Phase::Probe { before: rate, rounds: 1 }
            }
            Phase::Probe { .. } => Phase::Cruise { rounds: 0 },
        };
    }

    /// Bytes to have in flight, where `now` are.
    pub(super) fn window(&self, stretched: Duration, now: u64) -> f64 {
        let gain = match self.phase {
            Phase::Startup { .. } | Phase::Settle { .. } => return now as f64,
            Phase::Cruise { .. } => 1.0,
            Phase::Probe { .. } => PROBE,
        };
        self.rate() * stretched.as_secs_f64() * gain
    }
}

//! How long each peer keeps collectives waiting, and from that how long it may.

use std::time::Duration;

use super::{Flow, Limits};
use crate::world::{Rank, World};

/// Collectives with a peer before its estimate counts: until then its deadline is the cap. First steps compile kernels,
/// fill caches and open windows, and say little of those that follow.
const LEARNT: u32 = 16;

/// The deadline of each peer in the next collective, from its longest wait in each of those before. No clock: time comes
/// in with what it learns from.
///
/// A *wait* is the time in which a peer made no progress while this rank waited for it. Of its longest wait in every
/// collective, smoothed value and variation are kept as RFC 6298 keeps round-trip times (gains 1/8 and 1/4), and the
/// longest of all. The peer's deadline is
///
/// ```text
/// estimate = max(smoothed + 4 x variation, longest)
/// deadline = max(estimate x stall_factor, stall_floor), at most stall
/// ```
///
/// with the names of [`Limits`]; for the first 16 collectives it is `stall`. The longest wait is never forgotten, because
/// the average forgets a pause that comes every thousand steps (a checkpoint, an evaluation on one rank) long before it
/// comes again. What no estimate knows is the first such pause: that is what the floor is for.
#[derive(Clone, Debug)]
pub struct Pace {
    limits: Limits,
    /// By rank.
    estimates: Vec<Estimate>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Estimate {
    samples: u32,
    smoothed: Duration,
    variation: Duration,
    longest: Duration,
}

impl Estimate {
    fn take(&mut self, wait: Duration) {
        if self.samples == 0 {
            (self.smoothed, self.variation) = (wait, wait / 2);
        } else {
            let off = self.smoothed.abs_diff(wait);
            self.variation = self.variation / 4 * 3 + off / 4;
            self.smoothed = self.smoothed / 8 * 7 + wait / 8;
        }
        self.longest = self.longest.max(wait);
        self.samples = self.samples.saturating_add(1);
    }

    fn get(&self) -> Option<Duration> {
        let usual = self.smoothed.saturating_add(self.variation.saturating_mul(4));
        (self.samples >= LEARNT).then(|| usual.max(self.longest))
    }
}

impl Pace {
    /// Knows nothing of the peers in `world` yet.
    #[must_use]
    pub fn new(world: &World, limits: &Limits) -> Self {
        Self { limits: *limits, estimates: vec![Estimate::default(); world.size() as usize] }
    }

    /// How long `peer` may make no progress, at most [`Limits::stall`].
    #[must_use]
    pub fn deadline(&self, peer: Rank) -> Duration {
        let Limits { stall, stall_floor, stall_factor, .. } = self.limits;
        let estimate = self.estimates.get(peer.index()).and_then(Estimate::get);
        estimate.map_or(stall, |estimate| estimate.saturating_mul(stall_factor).max(stall_floor).min(stall))
    }

    /// Takes note of a collective that came to its end.
    pub fn learn(&mut self, flow: &Flow) {
        for peer in flow.world().peers() {
            if let Some(estimate) = self.estimates.get_mut(peer.index()) {
                estimate.take(flow.longest_wait(peer));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn limits() -> Limits {
        Limits { stall: 600_000 * MS, stall_floor: 10 * MS, stall_factor: 8, ..Limits::default() }
    }

    fn after(limits: Limits, waits: impl IntoIterator<Item = Duration>) -> Duration {
        let mut pace = Pace::new(&World::new(0, 2, 0).unwrap(), &limits);
        for wait in waits {
            pace.estimates[1].take(wait);
        }
        pace.deadline(Rank(1))
    }

    #[test]
    fn who_is_not_known_has_the_whole_cap() {
        assert_eq!(after(limits(), []), 600_000 * MS);
        assert_eq!(after(limits(), [MS; LEARNT as usize - 1]), 600_000 * MS);
        assert_eq!(after(limits(), [100 * MS; 200]), 800 * MS, "no variation is left");
    }

    #[test]
    fn a_peer_that_varies_is_given_four_variations_more() {
        let waits = || (0..1000).map(|i| if i % 2 == 0 { 100 * MS } else { 300 * MS });
        let deadline = after(limits(), waits());
        // Around 200 ms with a variation of 100 ms: 600 ms, to within the gains; then the factor of 8.
        assert!(deadline > 8 * 550 * MS && deadline < 8 * 650 * MS, "{deadline:?}");
    }

    #[test]
    fn a_rare_pause_is_remembered_and_the_floor_covers_the_first_one() {
        let rare = |pause: Duration| (0..2000).map(move |step| if step == 900 { pause } else { MS });
        assert_eq!(after(limits(), rare(5_000 * MS)), 40_000 * MS, "1,100 steps later");
        let floor = Limits { stall_floor: 120_000 * MS, ..limits() };
        assert_eq!(after(floor, [MS; 1000]), 120_000 * MS);
    }

    #[test]
    fn nothing_is_longer_than_the_cap_whatever_floor_and_factor_say() {
        assert_eq!(after(limits(), [Duration::MAX; 20]), 600_000 * MS);
        let high = Limits { stall_floor: Duration::MAX, stall_factor: u32::MAX, ..limits() };
        assert_eq!(after(high, [MS; 20]), 600_000 * MS);
        assert_eq!(after(Limits { stall_factor: 0, stall_floor: MS, ..limits() }, [MS; 20]), MS);
    }
}

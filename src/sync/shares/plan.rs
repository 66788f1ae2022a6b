//! The shares at which the slowest rank of a fleet is fastest.

use super::Speed;

/// The sum of all weights, about: shares are rounded to a part of this.
const WHOLE: f64 = 16_777_216.0;

/// What a plan must save of a step before anything is moved for it.
const WORTH: f64 = 0.05;

/// Weights of the ranks with these speeds, for packets of `packet` bytes and parameters of `parameter` bytes per element;
/// `None` where equal shares are within 5 % of the best.
///
/// The time of a rank with share s is the largest of four straight lines in s (see the [module](super)): for every bound on
/// it, s lies in an interval. The least bound whose intervals have shares that add up to 1 is found by bisection.
#[expect(clippy::cast_possible_truncation, reason = "a share is from 0 to 1, so that its part of 2^24 fits")]
pub(in crate::sync) fn plan(speeds: &[Speed], packet: f64, parameter: f64) -> Option<Vec<u32>> {
    let ranks = speeds.len() as f64;
    let costs: Vec<Cost> = speeds.iter().map(|speed| Cost::new(speed, ranks, packet, parameter)).collect();
    let slowest = |share: f64| costs.iter().map(|cost| cost.at(share)).fold(0.0, f64::max);
    let equal = slowest(1.0 / ranks);
    let (mut below, mut bound) = (0.0, equal);
    // Each halves the distance: what is left is a rounding error.
    for _ in 0..64 {
        let middle = (below + bound) / 2.0;
        if intervals(&costs, middle).is_some() { bound = middle } else { below = middle }
    }
    if bound >= equal * (1.0 - WORTH) {
        return None;
    }
    let intervals = intervals(&costs, bound)?;
    let (least, most) = sums(&intervals);
    // The same part of every interval; where all are points, their starts add up to 1 already.
    let part = if most > least { ((1.0 - least) / (most - least)).clamp(0.0, 1.0) } else { 0.0 };
    let share = |(from, to): &(f64, f64)| from + part * (to - from);
    let weights: Vec<u32> =
        intervals.iter().map(|interval| (share(interval) * WHOLE).round() as u32).collect();
    weights.iter().any(|weight| *weight > 0).then_some(weights)
}

/// A rank's time for a step, in seconds per element of the gradient: the largest of `a + b * share`.
struct Cost([(f64, f64); 4]);

impl Cost {
    fn new(speed: &Speed, ranks: f64, packet: f64, parameter: f64) -> Self {
        // Without a limit, no time.
        let seconds = |rate: u64| if rate == 0 { 0.0 } else { 1.0 / rate as f64 };
        let (up, down) = (seconds(speed.up), seconds(speed.down));
        let owner = speed.owner as f64 * 1e-12;
        // To the owners, of what this rank does not own; from the others, of what it does.
        let others = |bytes: f64, rate: f64| (bytes * rate, -bytes * rate);
        let own = |bytes: f64, rate: f64| (0.0, (ranks - 1.0) * bytes * rate);
        let gradients = [others(packet, up), own(packet, down)];
        let parameters = [own(parameter, up), others(parameter, down)];
        let mut lines = [(0.0, 0.0); 4];
        let pairs = gradients.iter().flat_map(|one| parameters.iter().map(move |other| (one, other)));
        for (line, (one, other)) in lines.iter_mut().zip(pairs) {
            *line = (one.0 + other.0, one.1 + other.1 + owner);
        }
        Self(lines)
    }

    fn at(&self, share: f64) -> f64 {
        self.0.iter().map(|(a, b)| a + b * share).fold(0.0, f64::max)
    }

    /// The shares from 0 to 1 with which this rank needs no longer than `bound`.
    fn interval(&self, bound: f64) -> Option<(f64, f64)> {
        let (mut from, mut to) = (0.0_f64, 1.0_f64);
        for (a, b) in self.0 {
            let at = (bound - a) / b;
            if b > 0.0 {
                to = to.min(at);
            } else if b < 0.0 {
                from = from.max(at);
            } else if a > bound {
                return None;
            }
        }
        (from <= to).then_some((from, to))
    }
}

/// Each rank's interval, if there are shares in them that add up to 1.
fn intervals(costs: &[Cost], bound: f64) -> Option<Vec<(f64, f64)>> {
    let intervals: Vec<_> = costs.iter().map(|cost| cost.interval(bound)).collect::<Option<_>>()?;
    let (least, most) = sums(&intervals);
    (least <= 1.0 && most >= 1.0).then_some(intervals)
}

fn sums(intervals: &[(f64, f64)]) -> (f64, f64) {
    intervals.iter().fold((0.0, 0.0), |sum, interval| (sum.0 + interval.0, sum.1 + interval.1))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    const MB: u64 = 1_000_000;

    fn speed(up: u64, down: u64) -> Speed {
        Speed { up, down, owner: 0 }
    }

    /// Each rank's share, and the slowest rank's time over that of equal shares.
    fn planned(speeds: &[Speed]) -> Option<(Vec<f64>, f64)> {
        let weights = plan(speeds, 0.5, 4.0)?;
        let total: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
        let shares: Vec<f64> = weights.iter().map(|weight| f64::from(*weight) / total).collect();
        let ranks = speeds.len() as f64;
        let time = |share: &dyn Fn(usize) -> f64| {
            let costs = speeds.iter().map(|speed| Cost::new(speed, ranks, 0.5, 4.0));
            costs.enumerate().map(|(rank, cost)| cost.at(share(rank))).fold(0.0, f64::max)
        };
        let saved = time(&|rank| shares[rank]) / time(&|_| 1.0 / ranks);
        Some((shares, saved))
    }

    #[test]
    fn a_slow_line_alone_is_no_reason() {
        assert_eq!(plan(&[speed(MB, MB), speed(100 * MB, 100 * MB), speed(MB, MB)], 0.5, 4.0), None);
        assert_eq!(plan(&[Speed::default(); 4], 0.5, 4.0), None, "nothing is known");
        assert_eq!(plan(&[speed(MB, 10 * MB)], 0.5, 4.0), None, "a rank alone");
    }

    #[test]
    fn who_sends_slowly_owns_less() {
        let fast = speed(100 * MB, 100 * MB);
        let (shares, saved) = planned(&[fast, fast, speed(MB, 10 * MB), fast]).unwrap();
        // By hand: 0.5 (1 - s) + 12 s bytes at 1 MB/s, of 3.375 at s = 1/4. 4 bytes less what it owns come at 10 MB/s, so
        // that the best is where sending takes as long as the parameters' coming in: 0.5 (1 - s) + 0.4 (1 - s) for 12 s below.
        let share = shares[2];
        assert!((12.0 * share - 0.4 * (1.0 - share)).abs() < 1e-3, "{shares:?}");
        assert!(saved < 0.3, "{saved}");
        assert!(shares[0] > 0.25 && (shares[0] - shares[1]).abs() < 1e-6, "{shares:?}");
    }

    #[test]
    fn who_computes_slowly_owns_less_in_proportion() {
        let owner = |owner| Speed { owner, ..Speed::default() };
        let (shares, saved) = planned(&[owner(3000), owner(1000)]).unwrap();
        assert!((shares[0] - 0.25).abs() < 1e-6, "{shares:?}");
        assert!((saved - 0.5).abs() < 1e-6, "{saved}");
    }

    #[test]
    fn no_shares_are_better_by_more_than_rounding() {
        // Tries every split of a small fleet into 32nds.
        let speeds =
            [speed(MB, 8 * MB), speed(40 * MB, 20 * MB), Speed { up: 9 * MB, down: 9 * MB, owner: 200_000 }];
        let costs = speeds.map(|speed| Cost::new(&speed, 3.0, 0.5, 4.0));
        let mut best = f64::INFINITY;
        for one in 0..=32 {
            for two in 0..=32 - one {
                let shares = [one, two, 32 - one - two].map(|part| f64::from(part) / 32.0);
                let time = costs.iter().zip(shares).map(|(cost, share)| cost.at(share)).fold(0.0, f64::max);
                best = best.min(time);
            }
        }
        let (shares, _) = planned(&speeds).unwrap();
        let time = costs.iter().zip(&shares).map(|(cost, share)| cost.at(*share)).fold(0.0, f64::max);
        assert!(time <= best * (1.0 + 1e-6), "{time} with {shares:?}, {best} in 32nds");
    }

    #[test]
    fn any_numbers_of_a_peer_give_shares_or_none() {
        let numbers = [0, 1, 1000, u64::MAX];
        let all = numbers.iter().flat_map(|up| numbers.iter().map(move |down| (*up, *down)));
        let all =
            all.flat_map(|(up, down)| numbers.iter().map(move |owner| Speed { up, down, owner: *owner }));
        let all: Vec<Speed> = all.collect();
        for one in &all {
            for other in &all {
                if let Some(weights) = plan(&[*one, *other, speed(MB, MB)], 0.5, 4.0) {
                    assert!(weights.iter().any(|weight| *weight > 0), "{one:?} {other:?}: {weights:?}");
                }
            }
        }
    }
}

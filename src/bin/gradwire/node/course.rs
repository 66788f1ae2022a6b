//! A line now and then for whoever watches a node.

use gradwire::transport::{PeerStats, Stats};

use crate::event::Step;
use crate::milestone;
use crate::report::summary;

/// What happened since the last line.
pub(super) struct Course {
    /// Steps between lines; `None` for ten lines in all.
    every: Option<u64>,
    /// Steps of the run.
    steps: u64,
    taken: u32,
    seconds: f64,
    /// Of `seconds`, those of exchange and gather, waiting for others included.
    waiting: f64,
    before: PeerStats,
}

impl Course {
    pub(super) fn new(every: Option<u64>, steps: u64) -> Self {
        Self { every, steps, taken: 0, seconds: 0.0, waiting: 0.0, before: PeerStats::default() }
    }

    /// Takes note of a step; the line that is due after it.
    pub(super) fn line(&mut self, step: &Step, stats: &Stats) -> Option<String> {
        self.taken += 1;
        self.seconds += step.seconds.sum();
        self.waiting += step.seconds.exchange + step.seconds.gather;
        let begin = match self.every {
            None => milestone::line(step.step, self.steps, step.loss),
            Some(every) => (step.step.is_multiple_of(every) || step.step == self.steps)
                .then(|| milestone::text(step.step, self.steps, step.loss)),
        }?;
        let total = stats.total();
        let mut line = format!(
            "{begin}, {} a step ({:.0}% exchange)",
            summary::seconds(self.seconds / f64::from(self.taken)),
            100.0 * self.waiting / self.seconds.max(f64::MIN_POSITIVE),
        );
        if self.seconds > 0.0 && total.frame_bytes_sent > 0 {
            let sent = total.frame_bytes_sent - self.before.frame_bytes_sent;
            // Of a rate only the first digits matter, which is what a float keeps.
            let rate = format!("{:.1} MB/s", sent as f64 / self.seconds / 1e6);
            line += &format!(", {rate} sent");
        }
        let farthest = (0..).zip(&stats.peers).max_by_key(|(_, peer): &(u32, _)| peer.round_trip);
        if let Some((peer, farthest)) = farthest.filter(|(_, peer)| !peer.round_trip.is_zero()) {
            let sent = total.udp_bytes_sent - self.before.udp_bytes_sent;
            let lost = total.udp_bytes_lost - self.before.udp_bytes_lost;
            let share = 100.0 * lost as f64 / sent.max(1) as f64;
            line += &format!(", {share:.1}% lost, rank {peer} at {:.1?}", farthest.round_trip);
        }
        *self = Self { before: total, ..Self::new(self.every, self.steps) };
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::event::{Bytes, Seconds};

    fn step(number: u64) -> Step {
        Step {
            step: number,
            rank: 0,
            loss: 0.5,
            samples: 8,
            learning_rate: 0.1,
            bytes: Bytes::default(),
            seconds: Seconds { compute: 0.03, exchange: 0.01, ..Seconds::default() },
            saturated: 0,
            nonfinite: 0,
            reset: false,
            scale_log2: None,
            owned: 7,
        }
    }

    fn stats(steps: u64) -> Stats {
        let peer = |round_trip, lost| PeerStats {
            frame_bytes_sent: steps * 200_000,
            udp_bytes_sent: steps * 250_000,
            udp_bytes_lost: steps * lost,
            round_trip: Duration::from_millis(round_trip),
            ..PeerStats::default()
        };
        Stats { peers: vec![PeerStats::default(), peer(80, 2500), peer(20, 0)] }
    }

    #[test]
    fn a_line_sums_up_the_steps_since_the_one_before() {
        let mut course = Course::new(Some(4), 10);
        let lines: Vec<String> =
            (1..=10).filter_map(|number| course.line(&step(number), &stats(number))).collect();
        let rest =
            ", loss 0.5000, 40.0 ms a step (25% exchange), 10.0 MB/s sent, 0.5% lost, rank 1 at 80.0ms";
        assert_eq!(lines, [4, 8, 10].map(|number| format!("step {number} of 10{rest}")));
    }

    #[test]
    fn a_mesh_without_sockets_or_peers_has_no_losses_to_tell() {
        let mut course = Course::new(None, 1);
        let line = course.line(&step(1), &Stats { peers: vec![PeerStats::default()] });
        assert_eq!(line.as_deref(), Some("step 1 of 1, loss 0.5000, 40.0 ms a step (25% exchange)"));
    }
}

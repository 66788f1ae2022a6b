//! What an emulated network was really like: by the clock, where real packets came and went.

use std::time::{Duration, Instant};

use super::network::Traffic;

/// A packet that leaves the emulator later than this is late.
const LATE: Duration = Duration::from_millis(2);

/// Rates are counted in windows of this length.
const WINDOW: Duration = Duration::from_millis(100);

/// What an emulator did over some time, to be shown next to what it should do.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Measured {
    /// Packets that left the emulator.
    pub packets: u64,
    /// Bytes of those, IP headers included.
    pub bytes: u64,
    /// The most that one node received in any 0.1 s, in bits per second: the rate of a line that was busy that long, and
    /// less than it of one that was not.
    pub rate_bit_s: f64,
    /// Twice the shortest time that a packet was under way: the round trip of packets that do not wait. Zero before the
    /// first.
    pub round_trip: Duration,
    /// Mean time under way, waiting included.
    pub mean_delay: Duration,
    /// Share of packets lost at random, 0 to 1, of those that reached the wire.
    pub loss: f64,
    /// Share of packets that a full queue dropped, 0 to 1, of all.
    pub overflowed: f64,
    /// Share of packets that left over 2 ms late, 0 to 1: the emulator had no time, and what was measured with it is
    /// worse than the link.
    pub late: f64,
    /// The latest of them.
    pub latest: Duration,
}

/// Collects a [`Measured`].
pub(super) struct Meter {
    before: Traffic,
    packets: u64,
    bytes: u64,
    late: u64,
    latest: Duration,
    shortest: Option<Duration>,
    delay: Duration,
    window: Instant,
    /// Bytes that each node received in this window.
    received: Vec<u64>,
    most: f64,
}

impl Meter {
    pub(super) fn new(nodes: u32, now: Instant) -> Self {
        Self {
            before: Traffic::default(),
            packets: 0,
            bytes: 0,
            late: 0,
            latest: Duration::ZERO,
            shortest: None,
            delay: Duration::ZERO,
            window: now,
            received: vec![0; nodes as usize],
            most: 0.0,
        }
    }

    /// A packet of `bytes` bytes that came at `came` and was due at `due` is handed to node `to` now.
    pub(super) fn note(&mut self, to: u32, bytes: u64, came: Instant, due: Instant, now: Instant) {
        self.packets += 1;
        self.bytes += bytes;
        let (delay, behind) = (now.saturating_duration_since(came), now.saturating_duration_since(due));
        self.delay += delay;
        self.shortest = Some(self.shortest.map_or(delay, |shortest| shortest.min(delay)));
        self.late += u64::from(behind > LATE);
        self.latest = self.latest.max(behind);
        let window = now.saturating_duration_since(self.window);
        if window >= WINDOW {
            let most = self.received.iter().max().copied().unwrap_or(0);
            self.most = self.most.max(most as f64 * 8.0 / window.as_secs_f64());
            self.received.fill(0);
            self.window = now;
        }
        if let Some(received) = self.received.get_mut(to as usize) {
            *received += bytes;
        }
    }

    /// What was measured since the last time; what is measured from now on counts for the next.
    pub(super) fn take(&mut self, traffic: Traffic, now: Instant) -> Measured {
        let nodes = u32::try_from(self.received.len()).unwrap_or(u32::MAX);
        let Self { before, packets, bytes, late, latest, shortest, delay, most, .. } =
            std::mem::replace(self, Self { before: traffic, ..Self::new(nodes, now) });
        let since = Traffic {
            offered: traffic.offered - before.offered,
            overflowed: traffic.overflowed - before.overflowed,
            lost: traffic.lost - before.lost,
            cut: traffic.cut - before.cut,
            ..Traffic::default()
        };
        let share = |part: u64, all: u64| part as f64 / all.max(1) as f64;
        Measured {
            packets,
            bytes,
            rate_bit_s: most,
            round_trip: 2 * shortest.unwrap_or_default(),
            mean_delay: delay.div_f64(packets.max(1) as f64),
            loss: since.loss(),
            overflowed: share(since.overflowed, since.offered),
            late: share(late, packets),
            latest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_is_what_passed_and_starts_anew_when_taken() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut meter = Meter::new(2, start);
        // 1 MB to node 1 in the first 0.1 s, one packet of ten 3 ms late.
        for number in 0..10 {
            let (came, due) = (at(10 * number), at(10 * number + 5));
            let left = if number == 4 { due + Duration::from_millis(3) } else { due };
            meter.note(1, 100_000, came, due, left);
        }
        meter.note(0, 10, at(95), at(100), at(100));
        let offered = Traffic { offered: 16, overflowed: 4, lost: 1, cut: 1, ..Traffic::default() };
        let measured = meter.take(offered, at(100));
        assert_eq!((measured.packets, measured.bytes), (11, 1_000_010));
        assert_eq!(measured.rate_bit_s, 80e6, "1 MB in 0.1 s");
        assert_eq!(measured.round_trip, Duration::from_millis(10));
        assert_eq!(measured.mean_delay, Duration::from_millis(58) / 11);
        assert_eq!((measured.loss, measured.overflowed), (1.0 / 11.0, 0.25));
        assert_eq!((measured.late, measured.latest), (1.0 / 11.0, Duration::from_millis(3)));
        let nothing = meter.take(offered, at(200));
        assert_eq!(nothing, Measured::default());
    }
}

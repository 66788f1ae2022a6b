//! One line: packets leave one after the other at its rate, and wait in a bounded queue.

use std::time::{Duration, Instant};

/// A drop-tail queue in front of a line with a rate.
#[derive(Clone, Debug)]
pub(super) struct Shaper {
    /// Bits per second; `None` for no limit, and no queue.
    rate: Option<u64>,
    queue: u64,
    /// When the line has sent all that waits for it.
    free: Option<Instant>,
}

impl Shaper {
    pub(super) fn new(rate: Option<u64>, queue: u64) -> Self {
        Self { rate, queue, free: None }
    }

    /// Keeps what already waits: it leaves when it would have left.
    pub(super) fn set(&mut self, rate: Option<u64>, queue: u64) {
        (self.rate, self.queue) = (rate, queue);
    }

    /// When the last byte of a packet that comes `now` has left; `None` if the queue is full. A packet is taken while any
    /// room is left, so that a queue smaller than one packet still lets some through.
    pub(super) fn admit(&mut self, now: Instant, bytes: u64) -> Option<Instant> {
        let Some(rate) = self.rate else { return Some(now) };
        let free = self.free.filter(|free| *free > now).unwrap_or(now);
        let waiting = free.duration_since(now).as_nanos() * u128::from(rate) / 8_000_000_000;
        if waiting > 0 && waiting + u128::from(bytes) > u128::from(self.queue) {
            return None;
        }
        let nanos = u128::from(bytes) * 8_000_000_000 / u128::from(rate);
        let left = free.checked_add(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))?;
        self.free = Some(left);
        Some(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_leave_at_the_rate_and_wait_in_the_queue() {
        let now = Instant::now();
        // 1000 bytes per millisecond.
        let mut line = Shaper::new(Some(8_000_000), 3000);
        let millis = |milliseconds| Some(now + Duration::from_millis(milliseconds));
        assert_eq!(line.admit(now, 1000), millis(1));
        assert_eq!(line.admit(now, 1000), millis(2));
        assert_eq!(line.admit(now, 1000), millis(3));
        assert_eq!(line.admit(now, 1000), None, "3000 bytes wait");
        assert_eq!(line.admit(now + Duration::from_millis(1), 1000), millis(4), "1000 bytes have left");
        assert_eq!(
            line.admit(now + Duration::from_millis(10), 1000),
            millis(11),
            "idle time is not saved up"
        );
        assert_eq!(Shaper::new(None, 0).admit(now, 1 << 40), Some(now), "no limit");
        assert_eq!(
            Shaper::new(Some(8_000_000), 10).admit(now, 1000),
            millis(1),
            "an idle line takes any packet"
        );
    }
}

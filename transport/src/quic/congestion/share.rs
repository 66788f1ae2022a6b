//! One rate for all connections of a node: those that are busy get equal parts.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Bytes after which a connection says that it is busy.
const BUSY: u64 = 4 << 10;

/// How often to look at least, and at most.
const LOOK: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(200));

#[derive(Debug)]
pub(super) struct Share {
    /// Bytes per second.
    rate: f64,
    /// Until when each connection counts as busy; `None` for seats that are free.
    seats: Mutex<Vec<Option<Instant>>>,
}

impl Share {
    pub(super) fn new(rate: f64) -> Self {
        Self { rate, seats: Mutex::new(Vec::new()) }
    }

    pub(super) fn sit(self: &Arc<Self>, now: Instant) -> Seat {
        let mut seats = self.seats.lock().unwrap_or_else(PoisonError::into_inner);
        let index = seats.iter().position(Option::is_none).unwrap_or(seats.len());
        // Not busy before it sends: an idle connection takes nothing from the others.
        match seats.get_mut(index) {
            Some(seat) => *seat = Some(now),
            None => seats.push(Some(now)),
        }
        Seat {
            share: self.clone(),
            index,
            sent: 0,
            said: now,
            looked: now,
            period: Duration::ZERO,
            rate: self.rate,
        }
    }
}

/// One connection's place.
#[derive(Debug)]
pub(super) struct Seat {
    share: Arc<Share>,
    index: usize,
    /// Bytes since it last said that it is busy.
    sent: u64,
    /// When it did.
    said: Instant,
    looked: Instant,
    /// From one look to the next.
    period: Duration,
    rate: f64,
}

impl Seat {
    pub(super) fn sent(&mut self, now: Instant, bytes: u64) {
        self.sent += bytes;
        if self.sent < BUSY {
            return;
        }
        // Until it has had the time to say so again, also where it is slow.
        let since = now.saturating_duration_since(self.said);
        let lasts = (2 * self.period.max(LOOK.0)).max(4 * since).min(2 * LOOK.1);
        (self.sent, self.said) = (0, now);
        let mut seats = self.share.seats.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(seat) = seats.get_mut(self.index) {
            *seat = Some(now + lasts);
        }
    }

    /// This connection's bytes per second when it last looked.
    pub(super) fn latest(&self) -> f64 {
        self.rate
    }

    /// This connection's bytes per second, looked up anew after about a round trip.
    pub(super) fn rate(&mut self, now: Instant, round_trip: Duration) -> f64 {
        if now.saturating_duration_since(self.looked) < self.period {
            return self.rate;
        }
        (self.looked, self.period) = (now, round_trip.clamp(LOOK.0, LOOK.1));
        let seats = self.share.seats.lock().unwrap_or_else(PoisonError::into_inner);
        // Who begins can't know who begins with it: all that could, until it has looked.
        let begins = seats.get(self.index).is_none_or(|until| until.is_none_or(|until| until <= now));
        let busy = |until: &Option<Instant>| until.is_some_and(|until| until > now || begins);
        let others = seats.iter().enumerate().filter(|(index, until)| *index != self.index && busy(until));
        self.rate = self.share.rate / (1 + others.count()) as f64;
        self.rate
    }
}

impl Clone for Seat {
    /// A seat of its own: the copy is another path's.
    fn clone(&self) -> Self {
        let mut copy = self.share.sit(self.looked);
        copy.rate = self.rate;
        copy
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut seats = self.share.seats.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(seat) = seats.get_mut(self.index) {
            *seat = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_connections_share_the_rate_whatever_their_round_trips() {
        let start = Instant::now();
        let share = Arc::new(Share::new(900.0));
        let [mut near, mut far, _idle] = [5, 150, 80].map(|_| share.sit(start));
        let (short, long) = (Duration::from_millis(5), Duration::from_millis(150));
        assert_eq!(near.rate(start, short), 300.0, "as if all began");
        for millisecond in 1..1000 {
            let now = start + Duration::from_millis(millisecond);
            near.sent(now, 1000);
            far.sent(now, 1000);
            let (one, other) = (near.rate(now, short), far.rate(now, long));
            if millisecond > 400 {
                assert_eq!((one, other), (450.0, 450.0), "after {millisecond} ms");
            }
        }
        drop(far);
        let later = start + Duration::from_secs(2);
        near.sent(later, BUSY);
        assert_eq!(near.rate(later, short), 900.0, "alone");
    }
}

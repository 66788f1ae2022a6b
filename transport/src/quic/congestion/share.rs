//! One rate for all connections of a node: those that are busy get equal parts.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Bytes since the last look that make a connection busy; acknowledgements and keep-alives are fewer.
const BUSY: u64 = 16 << 10;

/// How often to look at least, and at most.
const LOOK: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(200));

#[derive(Debug)]
pub(super) struct Share {
    /// Bytes per second.
    rate: f64,
    /// When each connection was last seen to be busy; `None` for seats that are free.
    seats: Mutex<Vec<Option<Instant>>>,
}

impl Share {
    pub(super) fn new(rate: f64) -> Self {
        Self { rate, seats: Mutex::new(Vec::new()) }
    }

    pub(super) fn sit(self: &Arc<Self>, now: Instant) -> Seat {
        let mut seats = self.seats.lock().unwrap_or_else(PoisonError::into_inner);
        // Long ago: an idle connection takes nothing from the others.
        let idle = now.checked_sub(LOOK.1 * 10).unwrap_or(now);
        let index = seats.iter().position(Option::is_none).unwrap_or(seats.len());
        match seats.get_mut(index) {
            Some(seat) => *seat = Some(idle),
            None => seats.push(Some(idle)),
        }
        Seat { share: self.clone(), index, sent: 0, looked: None, rate: self.rate }
    }
}

/// One connection's place.
#[derive(Debug)]
pub(super) struct Seat {
    share: Arc<Share>,
    index: usize,
    /// Bytes since the last look.
    sent: u64,
    looked: Option<Instant>,
    rate: f64,
}

impl Seat {
    pub(super) fn sent(&mut self, now: Instant, bytes: u64) {
        let before = self.sent;
        self.sent += bytes;
        if before < BUSY && self.sent >= BUSY {
            self.note(now);
        }
    }

    fn note(&self, now: Instant) {
        let mut seats = self.share.seats.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(seat) = seats.get_mut(self.index) {
            *seat = Some(now);
        }
    }

    /// This connection's bytes per second, looked up anew after about a round trip.
    pub(super) fn rate(&mut self, now: Instant, round_trip: Duration) -> f64 {
        let period = round_trip.clamp(LOOK.0, LOOK.1);
        if self.looked.is_some_and(|looked| now.saturating_duration_since(looked) < period) {
            return self.rate;
        }
        self.looked = Some(now);
        self.sent = 0;
        let seats = self.share.seats.lock().unwrap_or_else(PoisonError::into_inner);
        // Two looks of the slowest, so that nobody is missed who is between two of its own.
        let recent = |seen: &Instant| now.saturating_duration_since(*seen) <= 2 * period;
        let others = seats.iter().enumerate().filter(|(index, seen)| *index != self.index && seen.as_ref().is_some_and(recent));
        self.rate = self.share.rate / (1 + others.count()) as f64;
        self.rate
    }
}

impl Clone for Seat {
    /// A seat of its own: the copy is another path's.
    fn clone(&self) -> Self {
        let mut copy = self.share.sit(self.looked.unwrap_or_else(Instant::now));
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

//! Which connection a rank is promised to, and whether who has it is alive.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use quinn::Connection;

use crate::world::Rank;

/// What a process that died has sent may still be on its way for this long.
const IN_FLIGHT: Duration = Duration::from_millis(500);

/// The connections that have been promised to a rank.
pub(super) struct Seats(Mutex<Vec<Option<Taken>>>);

/// What a caller finds at the seat of its rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seat {
    /// It is the caller's from now on: nobody had it, or who had it is gone.
    Free,
    /// Another connection has it, whose process may have just died.
    Taken,
    /// Another connection has it, on which something came since the caller first called.
    Alive,
}

struct Taken {
    connection: Connection,
    doubt: Doubt,
}

/// Whether a peer still lives, decided by what comes after somebody else called in its name.
#[derive(Default)]
struct Doubt {
    since: Option<Instant>,
    heard: Option<u64>,
}

impl Doubt {
    /// `heard` counts what came so far.
    fn is_refuted(&mut self, now: Instant, heard: u64) -> bool {
        let since = *self.since.get_or_insert(now);
        match self.heard {
            Some(before) => heard > before,
            None if now.duration_since(since) >= IN_FLIGHT => {
                self.heard = Some(heard);
                false
            }
            None => false,
        }
    }
}

impl Seats {
    pub(super) fn new(size: usize) -> Self {
        Self(Mutex::new((0..size).map(|_| None).collect()))
    }

    pub(super) fn take(&self, rank: Rank, connection: &Connection) -> Seat {
        let mut seats = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // No rank outside the world gets here.
        let Some(seat) = seats.get_mut(rank.index()) else { return Seat::Taken };
        if let Some(taken) = seat.as_mut().filter(|taken| taken.connection.close_reason().is_none()) {
            // Frames are counted once they are decrypted: nobody else can send them. Both sides keep their connection
            // alive five times per silence, so a living peer pings or acknowledges within a fifth.
            let frames = taken.connection.stats().frame_rx;
            let alive = taken.doubt.is_refuted(Instant::now(), frames.ping + frames.acks);
            return if alive { Seat::Alive } else { Seat::Taken };
        }
        *seat = Some(Taken { connection: connection.clone(), doubt: Doubt::default() });
        Seat::Free
    }

    /// Everyone who has a seat, by rank.
    pub(super) fn all(&self) -> Vec<Option<Connection>> {
        let seats = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        seats.iter().map(|seat| seat.as_ref().map(|taken| taken.connection.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_comes_after_all_that_may_have_been_on_its_way_shows_life() {
        let (start, mut doubt) = (Instant::now(), Doubt::default());
        let mut at =
            |milliseconds, heard| doubt.is_refuted(start + Duration::from_millis(milliseconds), heard);
        assert!(!at(0, 10), "nothing is known yet");
        assert!(!at(499, 12), "it may have been on its way");
        assert!(!at(600, 13), "the first that counts");
        assert!(!at(1100, 13), "nothing came");
        assert!(at(2000, 14));
    }
}

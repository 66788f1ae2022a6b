//! Which connection a rank is promised to: the newest process of it, or an older one as long as that one lives.

use std::cmp::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use quinn::Connection;

use super::close;
use crate::world::Rank;

/// What a process that died has sent may still be on its way for this long.
const IN_FLIGHT: Duration = Duration::from_millis(500);

/// The connections that have been promised to a rank.
pub(super) struct Seats(Mutex<State>);

struct State {
    /// By rank.
    seats: Vec<Option<Taken>>,
    /// Nobody who has a seat gives it up for a newer process any more.
    settled: bool,
}

/// What a caller finds at the seat of its rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seat {
    /// It is the caller's from now on: nobody had it, or who had it is gone, or was told to go.
    Free,
    /// A process that says it is newer has it, and may have just died.
    Taken,
    /// The same, and something came from it since the caller first called.
    Alive,
}

struct Taken {
    connection: Connection,
    generation: u64,
    doubt: Doubt,
}

/// Whether a peer still lives, decided by what comes after somebody else called in its name.
#[derive(Default)]
struct Doubt {
    since: Option<Instant>,
    heard: Option<u64>,
}

impl Taken {
    fn is_alive(&mut self) -> Seat {
        // Frames are counted once they are decrypted: nobody else can send them. Both sides keep their connection
        // alive five times per silence, so a living peer pings or acknowledges within a fifth.
        let frames = self.connection.stats().frame_rx;
        let alive = self.doubt.is_refuted(Instant::now(), frames.ping + frames.acks);
        if alive { Seat::Alive } else { Seat::Taken }
    }
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
        Self(Mutex::new(State { seats: (0..size).map(|_| None).collect(), settled: false }))
    }

    /// Asks for the seat of `rank` for a process of this `generation`, which only holders of the rank's key can claim.
    pub(super) fn take(&self, rank: Rank, generation: u64, connection: &Connection) -> Seat {
        let mut state = self.state();
        if state.settled {
            return Seat::Taken;
        }
        // No rank outside the world gets here.
        let Some(seat) = state.seats.get_mut(rank.index()) else { return Seat::Taken };
        if let Some(taken) = seat.as_mut().filter(|taken| taken.connection.close_reason().is_none()) {
            match generation.cmp(&taken.generation) {
                Ordering::Greater => taken.connection.close(close::SUPERSEDED, b""),
                // The same process, which has given up that connection.
                Ordering::Equal => taken.connection.close(close::CLOSED, b""),
                // An older process, unless the clock of its host went back while it was started again.
                Ordering::Less => return taken.is_alive(),
            }
        }
        *seat = Some(Taken { connection: connection.clone(), generation, doubt: Doubt::default() });
        Seat::Free
    }

    /// Ends joining with these connections, unless one of them was just given up for a newer process.
    pub(super) fn settle(&self, connections: &[Option<Connection>]) -> bool {
        let mut state = self.state();
        let is_given_up =
            |it: &Connection| matches!(it.close_reason(), Some(quinn::ConnectionError::LocallyClosed));
        state.settled = !connections.iter().flatten().any(is_given_up);
        state.settled
    }

    /// Everyone who has a seat, by rank.
    pub(super) fn all(&self) -> Vec<Option<Connection>> {
        let state = self.state();
        state.seats.iter().map(|seat| seat.as_ref().map(|taken| taken.connection.clone())).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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

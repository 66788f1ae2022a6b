//! When a rank's messages arrived: how fast the link was once it ran, apart from its start and its end.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use gradwire::transport::{Abort, Event, Frame, Mesh, Rank, Stats, World};
use serde::{Deserialize, Serialize};

/// A mesh that takes down when frames arrive.
pub(super) struct Timed<M> {
    mesh: M,
    arrivals: Arrivals,
}

/// Payload bytes of the frames that have arrived, and when there were so many.
#[derive(Clone, Default)]
pub(super) struct Arrivals(Arc<Mutex<Vec<(Instant, u64)>>>);

/// Bytes per second of a part of a transfer; `None` where it arrived all at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(in crate::bench) struct Pace {
    /// From the first quarter of the bytes to the third: without the start and the last losses.
    pub(in crate::bench) steady: Option<f64>,
    /// The second half of the bytes.
    pub(in crate::bench) second_half: Option<f64>,
}

impl<M: Mesh> Timed<M> {
    pub(super) fn new(mesh: M) -> (Self, Arrivals) {
        let arrivals = Arrivals::default();
        (Self { mesh, arrivals: arrivals.clone() }, arrivals)
    }
}

impl Arrivals {
    /// What arrives from now on counts.
    pub(super) fn begin(&self) {
        let mut arrivals = self.lock();
        arrivals.clear();
        arrivals.push((Instant::now(), 0));
    }

    fn note(&self, bytes: u64) {
        let mut arrivals = self.lock();
        let before = arrivals.last().map_or(0, |(_, bytes)| *bytes);
        arrivals.push((Instant::now(), before + bytes));
    }

    pub(super) fn pace(&self) -> Pace {
        let arrivals = self.lock();
        let all = arrivals.last().map_or(0, |(_, bytes)| *bytes);
        // When this part of the bytes had come, and how many there were then.
        let at = |quarters: u64| {
            arrivals
                .iter()
                .find(|(_, bytes)| u128::from(*bytes) * 4 >= u128::from(all) * u128::from(quarters))
        };
        let between = |first, last| {
            let ((begin, had), (end, have)) = at(first).zip(at(last))?;
            let seconds = end.saturating_duration_since(*begin).as_secs_f64();
            (seconds > 0.0).then(|| (have - had) as f64 / seconds)
        };
        Pace { steady: between(1, 3), second_half: between(2, 4) }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Instant, u64)>> {
        // Nothing panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<M: Mesh> Mesh for Timed<M> {
    fn world(&self) -> World {
        self.mesh.world()
    }

    fn now(&self) -> Instant {
        self.mesh.now()
    }

    fn has_room(&mut self, to: Rank) -> bool {
        self.mesh.has_room(to)
    }

    fn hold(&mut self, from: Rank, hold: bool) {
        self.mesh.hold(from, hold);
    }

    fn send(&mut self, to: Rank, frame: Frame) {
        self.mesh.send(to, frame);
    }

    fn receive(&mut self, until: Instant) -> Event {
        let event = self.mesh.receive(until);
        if let Event::Frame(_, frame) = &event {
            self.arrivals.note(frame.payload.len() as u64);
        }
        event
    }

    fn close(&mut self, abort: Option<&Abort>) {
        self.mesh.close(abort);
    }

    fn stats(&self) -> Stats {
        self.mesh.stats()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_middle_half_and_the_second_half_are_of_the_bytes() {
        let arrivals = Arrivals::default();
        arrivals.begin();
        assert_eq!(arrivals.pace(), Pace { steady: None, second_half: None }, "nothing came");
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        // A start of a second, then 100 bytes every 0.1 s, and the last of ten a second late.
        *arrivals.lock() = (0..=9).map(|part| (at(1000 + 100 * part), 100 * part)).collect();
        arrivals.lock().push((at(2900), 1000));
        let pace = arrivals.pace();
        // From 300 bytes at 1.3 s to 800 at 1.8 s, and from 500 at 1.5 s to 1000 at 2.9 s.
        assert_eq!(pace.steady.map(f64::round), Some(1000.0), "{pace:?}");
        assert_eq!(pace.second_half.map(f64::round), Some((500.0_f64 / 1.4).round()), "{pace:?}");
    }
}

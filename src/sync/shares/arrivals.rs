//! How fast messages come in from each rank.

use std::ops::Range;
use std::time::Instant;

use bytes::Bytes;
use gradwire_transport::{Pieces, Rank};

/// The fastest that each rank was seen to send to this one.
pub(in crate::sync) struct Arrivals {
    /// By rank; in bytes per second.
    fastest: Vec<u64>,
}

/// One message, as it comes in.
#[derive(Clone, Copy, Default)]
struct Message {
    /// Arrival of the first piece, and of the last so far.
    span: Option<(Instant, Instant)>,
    /// Bytes that came after the first piece.
    bytes: u64,
}

impl Arrivals {
    pub(in crate::sync) fn new(ranks: usize) -> Self {
        Self { fastest: vec![0; ranks] }
    }

    /// Bytes per second that came from each rank at best; 0 where no message was long enough to tell.
    pub(in crate::sync) fn fastest(&self) -> &[u64] {
        &self.fastest
    }

    #[expect(clippy::cast_possible_truncation, reason = "it saturates, and a fraction of a byte is none")]
    fn note(&mut self, rank: usize, message: &Message) {
        // One piece has no span. The first one's time on the way is not known: the sender may have begun late.
        let Some((first, last)) = message.span else { return };
        let seconds = last.duration_since(first).as_secs_f64();
        if seconds > 0.0 {
            let rate = (message.bytes as f64 / seconds) as u64;
            self.fastest[rank] = self.fastest[rank].max(rate);
        }
    }
}

/// Hands everything on to `pieces`, and takes note of when it came.
pub(in crate::sync) struct Timed<'a, P> {
    pieces: &'a mut P,
    arrivals: &'a mut Arrivals,
    messages: Vec<Message>,
}

impl<'a, P> Timed<'a, P> {
    pub(in crate::sync) fn new(pieces: &'a mut P, arrivals: &'a mut Arrivals) -> Self {
        let messages = vec![Message::default(); arrivals.fastest.len()];
        Self { pieces, arrivals, messages }
    }

    /// The collective is over.
    pub(in crate::sync) fn finish(self) {
        for (rank, message) in self.messages.iter().enumerate() {
            self.arrivals.note(rank, message);
        }
    }

    fn arrived(&mut self, rank: usize, now: Instant, bytes: u64) {
        let message = &mut self.messages[rank];
        match &mut message.span {
            None => message.span = Some((now, now)),
            Some((_, last)) => {
                *last = now;
                message.bytes += bytes;
            }
        }
    }
}

impl<P: Pieces> Pieces for Timed<'_, P> {
    type Error = P::Error;

    fn make(&mut self, to: Rank, range: Range<u64>) -> Result<Bytes, Self::Error> {
        self.pieces.make(to, range)
    }

    fn take(&mut self, from: Rank, offset: u64, bytes: Bytes) -> Result<(), Self::Error> {
        self.arrived(from.index(), Instant::now(), bytes.len() as u64);
        self.pieces.take(from, offset, bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_rate_is_of_what_came_after_the_first_piece_and_the_fastest_stays() {
        let (start, mut arrivals) = (Instant::now(), Arrivals::new(3));
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut nothing = ();
        let mut timed = Timed::new(&mut nothing, &mut arrivals);
        for (milliseconds, bytes) in [(100, 9000), (150, 1000), (300, 1000)] {
            timed.arrived(1, at(milliseconds), bytes);
        }
        timed.arrived(2, at(100), 1000);
        timed.finish();
        assert_eq!(arrivals.fastest(), [0, 10_000, 0]);
        let mut slower = Timed::new(&mut nothing, &mut arrivals);
        slower.arrived(1, at(0), 1);
        slower.arrived(1, at(1000), 100);
        slower.finish();
        assert_eq!(arrivals.fastest(), [0, 10_000, 0]);
    }
}

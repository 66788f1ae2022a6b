//! One peer's message on its way in: which of its pieces came.

use std::time::{Duration, Instant};

use super::Cut;
use crate::error::FrameError;
use crate::frame::Frame;

/// What came of one peer's message.
pub(super) struct Incoming {
    expected: u64,
    missing: u64,
    /// One bit per piece that came.
    seen: Vec<u64>,
    pieces_missing: u64,
    /// When the last piece came, or the exchange began, or the peer was no longer held up.
    pub(super) progress: Instant,
    /// The longest time between two of those.
    pub(super) waited: Duration,
    /// This rank keeps the peer from sending more.
    pub(super) held: bool,
    /// How long there may be none.
    pub(super) deadline: Duration,
}

impl Incoming {
    /// Expects `expected` bytes in pieces of `cut`.
    pub(super) fn new(now: Instant, expected: u64, cut: Cut, deadline: Duration) -> Self {
        let pieces = cut.count(expected);
        // At most expected / 8 bytes even with pieces of one byte, so this fits wherever the message fits.
        let words = usize::try_from(pieces.div_ceil(64)).unwrap_or(usize::MAX);
        Self {
            expected,
            missing: expected,
            seen: vec![0; words],
            pieces_missing: pieces,
            progress: now,
            waited: Duration::ZERO,
            held: false,
            deadline,
        }
    }

    /// A message that is there: the own one.
    pub(super) fn complete(now: Instant) -> Self {
        Self { pieces_missing: 0, seen: Vec::new(), ..Self::new(now, 0, Cut::every(1), Duration::MAX) }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.pieces_missing == 0
    }

    /// When the deadline of a wait since then passes.
    pub(super) fn expires(&self, since: Instant) -> Instant {
        // The clock ends later: a deadline has to fit twice when the collective begins.
        since.checked_add(self.deadline).unwrap_or(since)
    }

    /// Bytes that did not come, and bytes of the message.
    pub(super) fn missing(&self) -> (u64, u64) {
        (self.missing, self.expected)
    }

    /// Begins or ends to hold the peer up, which is no wait for it.
    pub(super) fn hold(&mut self, now: Instant, hold: bool) {
        if hold && !self.held {
            self.waited = self.waited.max(now.saturating_duration_since(self.progress));
        }
        (self.held, self.progress) = (hold, now);
    }

    /// Takes note of a piece of a message whose total is known to be the expected one.
    pub(super) fn take(&mut self, now: Instant, frame: &Frame, cut: Cut) -> Result<(), FrameError> {
        let index = cut.index(frame)?;
        let (offset, length) = (frame.header.offset, u64::from(frame.header.length));
        let word = usize::try_from(index / 64).ok().and_then(|word| self.seen.get_mut(word));
        let Some(seen) = word else {
            return Err(FrameError::Outside { offset, length, total: self.expected });
        };
        let bit = 1 << (index % 64);
        if *seen & bit != 0 {
            return Err(FrameError::Repeated { offset, end: offset + length });
        }
        *seen |= bit;
        self.pieces_missing -= 1;
        self.missing -= length;
        self.waited = self.waited.max(now.saturating_duration_since(self.progress));
        self.progress = now;
        Ok(())
    }
}

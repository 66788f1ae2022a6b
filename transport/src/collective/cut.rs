//! How a message is cut into pieces.
//!
//! There is one way for each collective. It makes the pieces countable, so that a bitmap finds what came twice, and
//! nobody can make a message out of a million frames of one byte.

use std::ops::Range;

use crate::error::{ExchangeError, FrameError};
use crate::frame::{Frame, MAX_PAYLOAD};

/// How a message is cut: **the same on every rank**, other pieces are refused.
///
/// A message is a head, a body and a tail. The body is cut at multiples of `piece`, its last piece being what is left;
/// the first piece has the head in front. So each piece of the body travels whole, and what is known before all of it
/// costs no frame of its own. The tail does: it is a piece by itself, made when the bodies of all messages are, so that
/// what is known only then can stand there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Bytes in front of the body.
    pub head: usize,
    /// Bytes of the body in every piece but its last: at least 1, and with the head at most [`MAX_PAYLOAD`].
    pub piece: usize,
    /// Bytes behind the body; 0 for none, at most [`MAX_PAYLOAD`].
    pub tail: usize,
}

impl Cut {
    /// Pieces of `piece` bytes, without head and tail.
    #[must_use]
    pub const fn every(piece: usize) -> Self {
        Self { head: 0, piece, tail: 0 }
    }

    pub(super) fn validate(&self) -> Result<(), ExchangeError> {
        let longest = if self.piece == 0 { 0 } else { self.piece.saturating_add(self.head).max(self.tail) };
        if !(1..=MAX_PAYLOAD).contains(&longest) {
            let reason = format!("pieces of {longest} bytes are not in 1..={MAX_PAYLOAD}");
            return Err(ExchangeError::Caller { reason });
        }
        Ok(())
    }

    /// Bytes of every message that are not its body's.
    pub(super) fn ends(&self) -> usize {
        self.head.saturating_add(self.tail)
    }

    /// Pieces of a message of `total` bytes, which are at least head and tail: those of head and body, and the tail. A
    /// message without a byte has one, so that its absence can be noticed.
    #[must_use]
    pub fn count(&self, total: u64) -> u64 {
        let body = total.saturating_sub(self.ends() as u64);
        let least = u64::from(self.head > 0 || self.tail == 0);
        body.div_ceil(self.piece as u64).max(least) + u64::from(self.tail > 0)
    }

    /// The bytes of piece `index`, below [`count`](Self::count), of a message of `total` bytes.
    #[must_use]
    pub fn range(&self, total: u64, index: u64) -> Range<u64> {
        let tail = total.saturating_sub(self.tail as u64);
        if self.tail > 0 && index + 1 == self.count(total) {
            return tail..total;
        }
        let at = |index: u64| self.head as u64 + index * self.piece as u64;
        let start = if index == 0 { 0 } else { at(index) };
        start..at(index + 1).min(tail)
    }

    /// Which piece of its message `frame` is, below [`count`](Self::count) of its total.
    pub(super) fn index(&self, frame: &Frame) -> Result<u64, FrameError> {
        inside(frame)?;
        let (offset, length, total) =
            (frame.header.offset, u64::from(frame.header.length), frame.header.total);
        let (piece, tail) = (self.piece as u64, self.tail as u64);
        let index = if tail > 0 && total.checked_sub(offset) == Some(tail) {
            self.count(total) - 1
        } else {
            offset.saturating_sub(self.head as u64) / piece
        };
        // Nothing at the end of a message that is a multiple of the piece would be one piece too many.
        if index >= self.count(total) || self.range(total, index) != (offset..offset + length) {
            return Err(FrameError::Piece { offset, length, piece });
        }
        Ok(index)
    }
}

/// Whether the payload of `frame` is what its header says, and lies in its message.
pub(crate) fn inside(frame: &Frame) -> Result<(), FrameError> {
    let (offset, length, total) = (frame.header.offset, u64::from(frame.header.length), frame.header.total);
    // A mesh that does not decode bytes (memory) can carry a header that does not fit its payload.
    let have = frame.payload.len() as u64;
    if have < length {
        return Err(FrameError::Truncated { have, need: length });
    }
    if have > length {
        return Err(FrameError::Oversized { length: have, limit: length });
    }
    match total.checked_sub(offset) {
        Some(rest) if length <= rest => Ok(()),
        _ => Err(FrameError::Outside { offset, length, total }),
    }
}

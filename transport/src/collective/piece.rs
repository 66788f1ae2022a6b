//! The one way to cut a message: at multiples of the piece size.
//!
//! It makes the pieces countable, so that a bitmap finds what came twice, and nobody can make a message out of a
//! million frames of one byte.

use crate::error::FrameError;
use crate::frame::Frame;

/// Pieces of a message of `total` bytes. An empty message has one, so that its absence can be noticed.
pub(crate) fn count(total: u64, piece: u64) -> u64 {
    total.div_ceil(piece).max(1)
}

/// Which piece of its message `frame` is, below [`count`] of its total.
pub(crate) fn index(frame: &Frame, piece: u64) -> Result<u64, FrameError> {
    let (offset, length, total) = (frame.header.offset, u64::from(frame.header.length), frame.header.total);
    // A mesh that does not decode bytes (memory) can carry a header that does not fit its payload.
    let have = frame.payload.len() as u64;
    if have < length {
        return Err(FrameError::Truncated { have, need: length });
    }
    if have > length {
        return Err(FrameError::Oversized { length: have, limit: length });
    }
    let Some(rest) = total.checked_sub(offset).filter(|rest| length <= *rest) else {
        return Err(FrameError::Outside { offset, length, total });
    };
    // Nothing at the end of a message that is a multiple of the piece would be one piece too many.
    let beyond = rest == 0 && total != 0;
    if beyond || !offset.is_multiple_of(piece) || length != rest.min(piece) {
        return Err(FrameError::Piece { offset, length, piece });
    }
    Ok(offset / piece)
}

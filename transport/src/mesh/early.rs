//! Frames of the next operation, kept until it begins here.

use std::collections::BTreeMap;

use crate::collective::{Limits, piece};
use crate::error::FrameError;
use crate::frame::{Frame, Operation};

/// What one peer has sent of the operation after the current one.
///
/// A peer can be one operation ahead, because it may have had everything it needed before this rank had. It
/// can't be two ahead: for that it would need what this rank sends in the one between. So one message per peer
/// is all there is to keep: frames are refused unless they are its distinct pieces, and it is not longer than
/// the longest message allowed.
#[derive(Default)]
pub(super) struct Early {
    message: Option<(Operation, u64)>,
    frames: BTreeMap<u64, Frame>,
}

impl Early {
    /// Keeps `frame`, which belongs to an operation later than `ours`.
    pub(super) fn keep(&mut self, ours: Operation, frame: Frame, limits: &Limits) -> Result<(), FrameError> {
        let (theirs, total) = (frame.header.operation, frame.header.total);
        if total > limits.message_bytes {
            return Err(FrameError::Oversized { length: total, limit: limits.message_bytes });
        }
        let index = piece::index(&frame, limits.piece_bytes as u64)?;
        match self.message {
            None => self.message = Some((theirs, total)),
            Some((operation, _)) if operation != theirs => {
                return Err(FrameError::OutOfOrder { theirs: theirs.max(operation), ours });
            }
            Some((_, before)) if before != total => {
                return Err(FrameError::Total { before, now: total });
            }
            Some(_) => {}
        }
        let (offset, end) = (frame.header.offset, frame.header.offset + u64::from(frame.header.length));
        match self.frames.insert(index, frame) {
            None => Ok(()),
            Some(_) => Err(FrameError::Repeated { offset, end }),
        }
    }

    /// Gives everything back, in order.
    pub(super) fn take(&mut self) -> impl Iterator<Item = Frame> + use<> {
        self.message = None;
        std::mem::take(&mut self.frames).into_values()
    }
}

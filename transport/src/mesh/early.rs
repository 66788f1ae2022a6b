//! Frames of the next operation, kept until it begins here.

use std::collections::BTreeMap;

use crate::collective::{self, Limits, kept_bytes};
use crate::error::FrameError;
use crate::frame::{Frame, Operation};
use crate::world::World;

/// What one peer has sent of the operation after the current one.
///
/// A peer can be one operation ahead, because it may have had everything it needed before this rank had. It
/// can't be two ahead: for that it would need what this rank sends in the one between. And it sends no more than its share
/// of [`Limits::ahead_bytes`] before it hears that this rank has begun, so that is all there is to keep. Whether frames are
/// the pieces of a message is seen when the operation begins, which knows how messages are cut.
#[derive(Default)]
pub(super) struct Early {
    message: Option<(Operation, u64)>,
    kept: u64,
    frames: BTreeMap<u64, Frame>,
}

impl Early {
    /// Keeps `frame`, which belongs to an operation later than `ours`.
    pub(super) fn keep(
        &mut self,
        ours: Operation,
        frame: Frame,
        world: &World,
        limits: &Limits,
    ) -> Result<(), FrameError> {
        let (theirs, total) = (frame.header.operation, frame.header.total);
        if total > limits.message_bytes {
            return Err(FrameError::Oversized { length: total, limit: limits.message_bytes });
        }
        collective::inside(&frame)?;
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
        if self.frames.contains_key(&offset) {
            return Err(FrameError::Repeated { offset, end });
        }
        let (kept, limit) = (self.kept + kept_bytes(frame.payload.len() as u64), limits.ahead(world));
        if kept > limit {
            return Err(FrameError::Ahead { kept, limit });
        }
        self.kept = kept;
        self.frames.insert(offset, frame);
        Ok(())
    }

    /// Gives everything back, in order.
    pub(super) fn take(&mut self) -> impl Iterator<Item = Frame> + use<> {
        let Self { frames, .. } = std::mem::take(self);
        frames.into_values()
    }
}

//! One peer's message on its way in, assembled from pieces in any order.

use std::time::Instant;

use bytes::{Bytes, BytesMut};

use super::piece;
use crate::error::FrameError;
use crate::frame::Frame;

/// What is there of one peer's message.
pub(super) struct Incoming {
    expected: usize,
    missing: usize,
    /// One bit per piece that came.
    seen: Vec<u64>,
    pieces_missing: u64,
    body: Body,
    /// When the last piece came, or the exchange began.
    pub(super) progress: Instant,
}

enum Body {
    Empty,
    /// A message of one piece: kept, not copied.
    Whole(Bytes),
    Parts(BytesMut),
}

impl Incoming {
    /// Expects `expected` bytes in pieces of `piece`. The buffer comes with the first piece; its size is this
    /// number, never one that a peer sent.
    pub(super) fn new(now: Instant, expected: usize, piece: u64) -> Self {
        let pieces = piece::count(expected as u64, piece);
        // At most expected / 8 bytes even with pieces of one byte, so this fits wherever the message fits.
        let words = usize::try_from(pieces.div_ceil(64)).unwrap_or(usize::MAX);
        Self {
            expected,
            missing: expected,
            seen: vec![0; words],
            pieces_missing: pieces,
            body: Body::Empty,
            progress: now,
        }
    }

    /// A message that is there: the own one.
    pub(super) fn complete(now: Instant, message: Bytes) -> Self {
        let body = Body::Whole(message);
        Self { expected: 0, missing: 0, seen: Vec::new(), pieces_missing: 0, body, progress: now }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.pieces_missing == 0
    }

    /// Bytes that did not come, and bytes of the message.
    pub(super) fn missing(&self) -> (u64, u64) {
        (self.missing as u64, self.expected as u64)
    }

    /// Takes a piece of a message whose total is known to be the expected one.
    pub(super) fn take(&mut self, now: Instant, frame: Frame, piece: u64) -> Result<(), FrameError> {
        let index = piece::index(&frame, piece)?;
        let (offset, length) = (frame.header.offset, frame.payload.len());
        let outside = FrameError::Outside { offset, length: length as u64, total: self.expected as u64 };
        // `index` checked all of this against the frame's total; it is checked again where memory is touched.
        let (Ok(start), Ok(word)) = (usize::try_from(offset), usize::try_from(index / 64)) else {
            return Err(outside);
        };
        let Some(seen) = self.seen.get_mut(word) else { return Err(outside) };
        let bit = 1 << (index % 64);
        if *seen & bit != 0 {
            return Err(FrameError::Repeated { offset, end: offset + length as u64 });
        }
        if length == self.expected {
            self.body = Body::Whole(frame.payload);
        } else {
            if matches!(self.body, Body::Empty) {
                self.body = Body::Parts(BytesMut::zeroed(self.expected));
            }
            let Body::Parts(parts) = &mut self.body else { return Err(outside) };
            let Some(target) = parts.get_mut(start..start + length) else { return Err(outside) };
            target.copy_from_slice(&frame.payload);
        }
        *seen |= bit;
        self.pieces_missing -= 1;
        self.missing -= length;
        self.progress = now;
        Ok(())
    }

    /// The message, once; empty before it is complete.
    pub(super) fn take_message(&mut self) -> Bytes {
        match std::mem::replace(&mut self.body, Body::Empty) {
            Body::Empty => Bytes::new(),
            Body::Whole(message) => message,
            Body::Parts(parts) => parts.freeze(),
        }
    }
}

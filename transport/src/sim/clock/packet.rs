//! What is under way between two ranks.

use bytes::{Bytes, BytesMut};

use crate::error::Loss;
use crate::frame::Frame;

/// What travels from one rank to another.
#[derive(Clone, Debug)]
pub(in crate::sim) enum Item {
    Frame(Frame),
    /// A frame one bit of which turned over on its way.
    Corrupt(Frame),
    Leave(Loss),
}

#[derive(Clone, Debug)]
pub(in crate::sim) struct Packet {
    pub(super) number: u64,
    pub(super) item: Item,
}

/// What a receiver makes of a frame with one bit turned over.
pub(super) fn damaged(frame: &Frame) -> Result<Frame, Loss> {
    let mut bytes = BytesMut::from(&frame.header.encode(&frame.payload)[..]);
    bytes.extend_from_slice(&frame.payload);
    // The last byte: of the payload, or of the checksum where there is none.
    if let Some(last) = bytes.last_mut() {
        *last ^= 1;
    }
    Frame::decode(&Bytes::from(bytes)).map_err(Loss::Malformed)
}

//! The unit on the wire: a fixed header, then up to [`MAX_PAYLOAD`] bytes of one message.
//!
//! **Wire layout**, little-endian:
//!
//! | bytes | field | |
//! |---|---|---|
//! | 0..4 | magic | `GRDW` |
//! | 4..6 | wire version | [`WIRE_VERSION`] |
//! | 6..8 | tag | which collective of the step |
//! | 8..12 | epoch | which membership of the run |
//! | 12..16 | from | the sender's rank |
//! | 16..24 | step | |
//! | 24..32 | total | bytes of the whole message |
//! | 32..40 | offset | where this payload starts in the message |
//! | 40..44 | length | bytes of this payload |
//! | 44..48 | reserved | 0 |
//! | 48..56 | checksum | XXH3-64 of bytes 0..48, then the payload |
//!
//! The checksum finds faults, not forgeries: forging is what the mutual TLS below is there to stop.

use bytes::Bytes;
use xxhash_rust::xxh3::Xxh3;

use crate::error::FrameError;
use crate::world::{Rank, World};

/// Version of every bit that travels: frames, hellos and packets. Peers with another one are refused by name.
pub const WIRE_VERSION: u16 = 3;

/// First four bytes of a frame.
pub const MAGIC: [u8; 4] = *b"GRDW";

/// Bytes of an encoded [`Header`].
pub const HEADER_BYTES: usize = 56;

/// The largest payload of one frame, 1 MiB: less than a stream's flow-control window (2.3 MB), so that one
/// frame never waits for credit in its middle, and 1,000 times the header.
pub const MAX_PAYLOAD: usize = 1 << 20;

const CHECKED_BYTES: usize = 48;

/// Which collective of a step a frame belongs to. Tags of one step are used in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u16);

/// One collective: `step`, then `tag`. The order of operations is the order of this type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Operation {
    /// Optimizer step, counted from 1; 0 for what comes before the first.
    pub step: u64,
    /// Which collective of the step.
    pub tag: Tag,
}

/// What a frame says about its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The collective that the message belongs to.
    pub operation: Operation,
    /// The membership in which it was sent.
    pub epoch: u32,
    /// The sender.
    pub from: Rank,
    /// Bytes of the whole message.
    pub total: u64,
    /// Where the payload starts in the message.
    pub offset: u64,
    /// Bytes of the payload, at most [`MAX_PAYLOAD`].
    pub length: u32,
}

/// A header and its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What the payload is.
    pub header: Header,
    /// `header.length` bytes.
    pub payload: Bytes,
}

impl Header {
    /// The header's wire bytes, with the checksum over them and `payload`.
    #[must_use]
    pub fn encode(&self, payload: &[u8]) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[0..4].copy_from_slice(&MAGIC);
        out[4..6].copy_from_slice(&WIRE_VERSION.to_le_bytes());
        out[6..8].copy_from_slice(&self.operation.tag.0.to_le_bytes());
        out[8..12].copy_from_slice(&self.epoch.to_le_bytes());
        out[12..16].copy_from_slice(&self.from.0.to_le_bytes());
        out[16..24].copy_from_slice(&self.operation.step.to_le_bytes());
        out[24..32].copy_from_slice(&self.total.to_le_bytes());
        out[32..40].copy_from_slice(&self.offset.to_le_bytes());
        out[40..44].copy_from_slice(&self.length.to_le_bytes());
        let sum = checksum(&out[..CHECKED_BYTES], payload);
        out[CHECKED_BYTES..].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// Reads a header and the checksum beside it. The payload, `length` bytes, is still to come, and is
    /// known to be at most [`MAX_PAYLOAD`] and to lie inside the message.
    ///
    /// # Errors
    ///
    /// Foreign magic, another wire version, a non-zero reserved field, a length above the cap, or a payload
    /// outside its message.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<(Self, u64), FrameError> {
        let magic: [u8; 4] = field(bytes, 0);
        if magic != MAGIC {
            return Err(FrameError::Magic { found: u32::from_be_bytes(magic) });
        }
        let theirs = u16::from_le_bytes(field(bytes, 4));
        if theirs != WIRE_VERSION {
            return Err(FrameError::Version { theirs, ours: WIRE_VERSION });
        }
        let reserved = u32::from_le_bytes(field(bytes, 44));
        if reserved != 0 {
            return Err(FrameError::Reserved { found: reserved });
        }
        let header = Self {
            operation: Operation {
                step: u64::from_le_bytes(field(bytes, 16)),
                tag: Tag(u16::from_le_bytes(field(bytes, 6))),
            },
            epoch: u32::from_le_bytes(field(bytes, 8)),
            from: Rank(u32::from_le_bytes(field(bytes, 12))),
            total: u64::from_le_bytes(field(bytes, 24)),
            offset: u64::from_le_bytes(field(bytes, 32)),
            length: u32::from_le_bytes(field(bytes, 40)),
        };
        let length = u64::from(header.length);
        if length > MAX_PAYLOAD as u64 {
            return Err(FrameError::Oversized { length, limit: MAX_PAYLOAD as u64 });
        }
        if header.offset.checked_add(length).is_none_or(|end| end > header.total) {
            return Err(FrameError::Outside { offset: header.offset, length, total: header.total });
        }
        Ok((header, u64::from_le_bytes(field(bytes, CHECKED_BYTES))))
    }
}

impl Frame {
    /// Reads a whole frame: exactly one header and its payload.
    ///
    /// # Errors
    ///
    /// As [`Header::decode`]; besides, too few or too many bytes, or a checksum that does not fit.
    pub fn decode(bytes: &Bytes) -> Result<Self, FrameError> {
        let Some(head) = bytes.first_chunk::<HEADER_BYTES>() else {
            return Err(FrameError::Truncated { have: bytes.len() as u64, need: HEADER_BYTES as u64 });
        };
        let (header, stated) = Header::decode(head)?;
        let need = HEADER_BYTES as u64 + u64::from(header.length);
        let have = bytes.len() as u64;
        if have < need {
            return Err(FrameError::Truncated { have, need });
        }
        if have > need {
            return Err(FrameError::Oversized { length: have, limit: need });
        }
        let payload = bytes.slice(HEADER_BYTES..);
        let computed = checksum(&head[..CHECKED_BYTES], &payload);
        if computed != stated {
            return Err(FrameError::Checksum { stated, computed });
        }
        Ok(Self { header, payload })
    }

    /// Whether this frame, which came from `from`, belongs into `world`.
    ///
    /// # Errors
    ///
    /// A frame of another epoch, or one that claims another sender than the peer it came from.
    pub fn check(&self, world: &World, from: Rank) -> Result<(), FrameError> {
        if self.header.epoch != world.epoch() {
            return Err(FrameError::Epoch { theirs: self.header.epoch, ours: world.epoch() });
        }
        if self.header.from != from {
            return Err(FrameError::Sender { claimed: self.header.from, actual: from });
        }
        Ok(())
    }

    /// Bytes that this frame takes on the wire, header included.
    #[must_use]
    pub fn wire_bytes(&self) -> u64 {
        HEADER_BYTES as u64 + self.payload.len() as u64
    }
}

fn checksum(head: &[u8], payload: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(head);
    hash.update(payload);
    hash.digest()
}

fn field<const N: usize>(bytes: &[u8; HEADER_BYTES], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

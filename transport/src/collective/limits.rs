//! How long a collective waits, and how much it takes from a peer.

use std::time::Duration;

use crate::frame::MAX_PAYLOAD;

/// How long a collective waits, and how much it takes from a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest time in which a peer that still answers makes no progress with its message. Above zero;
    /// default 10 minutes, because a peer may be computing. A peer that does not answer at all is the mesh's
    /// to notice, much sooner.
    pub stall: Duration,
    /// The longest message, in bytes, both ways; also what a peer that is one operation ahead can make this
    /// rank store. Default 4 GiB.
    pub message_bytes: u64,
    /// The payload of every frame but a message's last, in bytes, 1..=[`MAX_PAYLOAD`]. **All ranks must agree**:
    /// other pieces are refused. Default [`MAX_PAYLOAD`]; less only makes sense in tests.
    pub piece_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { stall: Duration::from_secs(600), message_bytes: 4 << 30, piece_bytes: MAX_PAYLOAD }
    }
}

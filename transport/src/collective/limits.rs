//! How long a collective waits, and how much it takes from a peer.

use std::time::Duration;

use crate::frame::{HEADER_BYTES, MAX_PAYLOAD};
use crate::world::World;

/// How long a collective waits, and how much it takes from a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest time in which a peer that still answers makes no progress with its message, or takes nothing of
    /// this rank's: the cap of what [`Pace`](super::Pace) gives each peer. Above zero; default 10 minutes, because a peer may
    /// be computing. A peer that does not answer at all is the mesh's to notice, much sooner.
    pub stall: Duration,
    /// The shortest such time once a peer's pace is known, at most `stall`; `stall` here gives every peer the whole of it.
    /// **At least as long as the longest thing that one rank does alone**, such as an evaluation or a checkpoint, which no
    /// estimate knows before it comes the first time. Default 2 minutes.
    pub stall_floor: Duration,
    /// How many times its estimate a peer may wait: the longest wait that was ever seen of it, or more. Default 8, because
    /// a fleet slows down together (a busy network, a shared disk) by less than that, and a rank that hangs waits for ever.
    pub stall_factor: u32,
    /// The longest message, in bytes, both ways. Default 4 GiB.
    pub message_bytes: u64,
    /// The payload of every frame but a message's last, in bytes, 1..=[`MAX_PAYLOAD`], where the caller does not say how
    /// messages are cut. **All ranks must agree**: other pieces are refused. Default [`MAX_PAYLOAD`]; less only makes
    /// sense in tests.
    pub piece_bytes: usize,
    /// What all peers together can make this rank store of the next collective before it begins here, in bytes; each
    /// has an equal share, but at least one frame. A sender waits until its peer has begun. **All ranks must agree**: more
    /// is refused. Default 16 MiB.
    pub ahead_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            stall: Duration::from_secs(600),
            stall_floor: Duration::from_secs(120),
            stall_factor: 8,
            message_bytes: 4 << 30,
            piece_bytes: MAX_PAYLOAD,
            ahead_bytes: 16 << 20,
        }
    }
}

/// What a kept frame costs on top of its bytes, so that empty ones are bounded too.
const KEPT: u64 = HEADER_BYTES as u64 + 512;

/// What it costs to keep a frame with `payload` bytes.
pub(crate) fn kept_bytes(payload: u64) -> u64 {
    payload + KEPT
}

impl Limits {
    /// One peer's share of [`Self::ahead_bytes`].
    pub(crate) fn ahead(&self, world: &World) -> u64 {
        let peers = u64::from(world.size()).saturating_sub(1).max(1);
        (self.ahead_bytes / peers).max(kept_bytes(MAX_PAYLOAD as u64))
    }
}

//! What can go wrong between ranks, and whose fault it is.

use std::time::Duration;

use crate::frame::Operation;
use crate::world::Rank;

/// Bytes that are not a frame of this run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The first four bytes are not a frame's.
    #[error("magic {found:#010x} is not gradwire's")]
    Magic {
        /// What was there, big-endian.
        found: u32,
    },
    /// A frame of another wire version.
    #[error("wire version {theirs}, ours is {ours}")]
    Version {
        /// The sender's.
        theirs: u16,
        /// [`crate::WIRE_VERSION`].
        ours: u16,
    },
    /// Reserved bits are set.
    #[error("reserved field is {found}, must be 0")]
    Reserved {
        /// What was there.
        found: u32,
    },
    /// Fewer bytes than the header says.
    #[error("truncated: {have} bytes of {need}")]
    Truncated {
        /// Bytes that came.
        have: u64,
        /// Bytes that were announced.
        need: u64,
    },
    /// More bytes than allowed.
    #[error("oversized: {length} bytes, limit {limit}")]
    Oversized {
        /// Bytes that came or were announced.
        length: u64,
        /// Bytes that were allowed.
        limit: u64,
    },
    /// A payload that does not lie inside its message.
    #[error("payload of {length} bytes at {offset} is outside its message of {total} bytes")]
    Outside {
        /// Where the payload starts.
        offset: u64,
        /// Bytes of the payload.
        length: u64,
        /// Bytes of the message.
        total: u64,
    },
    /// Header or payload were changed on the way.
    #[error("corrupted: checksum {computed:#018x}, header says {stated:#018x}")]
    Checksum {
        /// What the header says.
        stated: u64,
        /// What its bytes give.
        computed: u64,
    },
    /// A frame of another membership of the run.
    #[error("frame of epoch {theirs}, ours is {ours}")]
    Epoch {
        /// The frame's.
        theirs: u32,
        /// The world's.
        ours: u32,
    },
    /// A frame that names another sender than the one it came from.
    #[error("frame claims to come from rank {claimed}, came from rank {actual}")]
    Sender {
        /// The frame's.
        claimed: Rank,
        /// The authenticated peer.
        actual: Rank,
    },
    /// A second frame for bytes that are there already.
    #[error("bytes {offset}..{end} came twice")]
    Repeated {
        /// First byte.
        offset: u64,
        /// One past the last byte.
        end: u64,
    },
    /// A payload that is not cut where every rank cuts its messages.
    #[error(
        "payload of {length} bytes at {offset} is not a piece where messages are cut every {piece} bytes"
    )]
    Piece {
        /// Where the payload starts.
        offset: u64,
        /// Bytes of the payload.
        length: u64,
        /// Bytes of every piece but a message's last.
        piece: u64,
    },
    /// Two frames that disagree on how long their message is.
    #[error("message of {now} bytes, of {before} bytes in an earlier frame")]
    Total {
        /// Bytes of the message in the earlier frame.
        before: u64,
        /// Bytes of the message in this one.
        now: u64,
    },
    /// More of the next collective than a peer may send before it hears that this rank has begun.
    #[error("{kept} bytes to keep for the next exchange, limit {limit}")]
    Ahead {
        /// What it would cost to keep what was sent.
        kept: u64,
        /// What one peer may cost ([`crate::Limits::ahead_bytes`]).
        limit: u64,
    },
    /// A frame from a rank that is not one of the others in this world.
    #[error("not a peer of rank {own} in a world of {size} ranks")]
    Stranger {
        /// The receiving rank.
        own: Rank,
        /// Ranks in the world.
        size: u32,
    },
    /// A frame of a collective that is over, or further ahead than the protocol allows.
    #[error("frame of {} during step {}", if theirs.step == ours.step { "another exchange".to_owned() } else { format!("step {}", theirs.step) }, ours.step)]
    OutOfOrder {
        /// The frame's.
        theirs: Operation,
        /// The one in progress.
        ours: Operation,
    },
}

/// Why a mesh can no longer reach a peer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Loss {
    /// No byte, not even a keep-alive, for `silent`.
    #[error("silent for {silent:.1?}, deadline {deadline:.1?}")]
    Silent {
        /// How long nothing came.
        silent: Duration,
        /// How long was allowed.
        deadline: Duration,
    },
    /// Nothing came because this process did not look: it was stopped, or starved of the processor.
    #[error("was not heard while this process itself stood still for {paused:.1?}")]
    Paused {
        /// How long it stood still.
        paused: Duration,
    },
    /// The peer's process closed the connection or restarted, without a reason.
    #[error("closed its connection")]
    Closed,
    /// The peer gave up and said why.
    #[error("gave up: {0}")]
    Aborted(Abort),
    /// The peer sent what is not a frame.
    #[error("sent a bad frame: {0}")]
    Malformed(#[from] FrameError),
    /// The peer broke the rules of the connection below the frames.
    #[error("broke the connection: {reason}")]
    Protocol {
        /// What the connection's implementation said.
        reason: String,
    },
}

/// What a rank tells the others when it gives up: who is at fault, and why in one line.
///
/// Without it the rank that notices a loss first, and leaves, would be taken for the one at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", match culprit { Some(rank) => format!("rank {rank} {reason}"), None => reason.clone() })]
pub struct Abort {
    /// The rank at fault, as far as the sender could see.
    pub culprit: Option<Rank>,
    /// Why, at most [`Abort::MAX_REASON`] bytes.
    pub reason: String,
}

impl Abort {
    /// Longest reason that travels, in bytes: it must fit one QUIC close frame.
    pub const MAX_REASON: usize = 256;
}

/// The longest start of `text` within `limit` bytes that ends between characters.
pub(crate) fn clip(text: &str, limit: usize) -> &str {
    let mut end = text.len().min(limit);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// A collective that did not complete.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// No byte from `rank` for `silent`, longer than its deadline.
    #[error(
        "rank {rank} silent for {silent:.1?}, deadline {deadline:.1?} (step {step}, {missing} of {total} bytes missing)"
    )]
    Silent {
        /// The rank at fault.
        rank: Rank,
        /// How long nothing came.
        silent: Duration,
        /// How long was allowed.
        deadline: Duration,
        /// The step in progress.
        step: u64,
        /// Bytes of its message that did not come.
        missing: u64,
        /// Bytes of its message.
        total: u64,
    },
    /// `rank` answers, but its message did not complete for `waited`.
    #[error(
        "rank {rank} sent nothing of step {step} for {waited:.1?}, deadline {deadline:.1?} ({missing} of {total} bytes missing)"
    )]
    Stalled {
        /// The rank at fault.
        rank: Rank,
        /// How long its message made no progress.
        waited: Duration,
        /// How long was allowed.
        deadline: Duration,
        /// The step in progress.
        step: u64,
        /// Bytes of its message that did not come.
        missing: u64,
        /// Bytes of its message.
        total: u64,
    },
    /// `rank` has sent its message, but took nothing of this rank's for `waited`.
    #[error(
        "rank {rank} took nothing of step {step} for {waited:.1?}, deadline {deadline:.1?} ({missing} of {total} bytes wait)"
    )]
    Unread {
        /// The rank at fault.
        rank: Rank,
        /// How long there was no room for the next piece.
        waited: Duration,
        /// How long was allowed.
        deadline: Duration,
        /// The step in progress.
        step: u64,
        /// Bytes that wait for room.
        missing: u64,
        /// Bytes of the message for it.
        total: u64,
    },
    /// `rank` is gone.
    #[error("rank {rank} {loss} (step {step}, {missing} of {total} bytes missing)")]
    Lost {
        /// The rank that was lost.
        rank: Rank,
        /// Why.
        loss: Loss,
        /// The step in progress.
        step: u64,
        /// Bytes of its message that did not come.
        missing: u64,
        /// Bytes of its message.
        total: u64,
    },
    /// `by` gave up, because of itself or of another rank.
    #[error("{abort} ({}step {step})", match abort.culprit == Some(*by) {
        true => String::new(),
        false => format!("rank {by} says so, "),
    })]
    Aborted {
        /// Who told us.
        by: Rank,
        /// What it told.
        abort: Abort,
        /// The step in progress.
        step: u64,
    },
    /// `rank` sent a message of another length than this rank expects.
    #[error("rank {rank} sends {sent} bytes in step {step}, where {expected} are expected")]
    Length {
        /// The rank that differs.
        rank: Rank,
        /// Bytes it announced.
        sent: u64,
        /// Bytes the caller expected.
        expected: u64,
        /// The step in progress.
        step: u64,
        /// The collective in progress.
        tag: crate::frame::Tag,
    },
    /// `rank` sent something that is not a frame of this run, or not one of this collective.
    #[error("rank {rank} sent a bad frame in step {step}: {source}")]
    Frame {
        /// The rank at fault.
        rank: Rank,
        /// The step in progress.
        step: u64,
        /// What was wrong.
        source: FrameError,
    },
    /// The caller used the communicator against its rules.
    #[error("caller: {reason}")]
    Caller {
        /// What was wrong, with both numbers.
        reason: String,
    },
}

impl ExchangeError {
    /// The rank at fault, where one is known.
    #[must_use]
    pub fn culprit(&self) -> Option<Rank> {
        match self {
            // This rank's own fault, which does not know its number here.
            Self::Lost { loss: Loss::Paused { .. }, .. } => None,
            Self::Silent { rank, .. }
            | Self::Stalled { rank, .. }
            | Self::Unread { rank, .. }
            | Self::Lost { rank, .. }
            | Self::Length { rank, .. }
            | Self::Frame { rank, .. } => Some(*rank),
            Self::Aborted { abort, .. } => abort.culprit,
            Self::Caller { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Tag;

    #[test]
    fn who_speaks_of_itself_is_not_named_twice() {
        let aborted = |by, culprit| {
            let abort = Abort { culprit, reason: "was interrupted".into() };
            ExchangeError::Aborted { by: Rank(by), abort, step: 340 }.to_string()
        };
        assert_eq!(aborted(1, Some(Rank(1))), "rank 1 was interrupted (step 340)");
        assert_eq!(aborted(0, Some(Rank(1))), "rank 1 was interrupted (rank 0 says so, step 340)");
        assert_eq!(aborted(0, None), "was interrupted (rank 0 says so, step 340)");
    }

    #[test]
    fn no_tag_is_in_what_users_read() {
        let operation = |step, tag| Operation { step, tag: Tag(tag) };
        let frame = |theirs, ours| FrameError::OutOfOrder { theirs, ours }.to_string();
        assert_eq!(frame(operation(2, 3), operation(5, 1)), "frame of step 2 during step 5");
        assert_eq!(frame(operation(5, 3), operation(5, 1)), "frame of another exchange during step 5");
        let length = ExchangeError::Length { rank: Rank(1), sent: 4, expected: 8, step: 2, tag: Tag(3) };
        assert_eq!(length.to_string(), "rank 1 sends 4 bytes in step 2, where 8 are expected");
    }
}

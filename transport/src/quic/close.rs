//! How a connection ends: the codes and reasons of its last packet.

use quinn::{Connection, ConnectionError, VarInt};

use super::hello::printable;
use crate::error::{Abort, Loss, clip};
use crate::world::{Rank, World};

/// All is delivered, or there is nothing to say.
pub(super) const CLOSED: VarInt = VarInt::from_u32(0);
/// The reason is an encoded [`Abort`].
pub(super) const ABORTED: VarInt = VarInt::from_u32(1);
/// The hello was refused; the verdict says why, and the reason repeats it.
pub(super) const REFUSED: VarInt = VarInt::from_u32(2);
/// The caller's rank has joined already, and with it everyone. The reason is the epoch, as in an [`Abort`].
pub(super) const TAKEN: VarInt = VarInt::from_u32(3);
/// A newer process of the same rank has called.
pub(super) const SUPERSEDED: VarInt = VarInt::from_u32(4);

/// The sender's epoch, u32 little-endian; the culprit plus one (0: none), u32; then the reason in UTF-8.
pub(super) fn encode_abort(abort: &Abort, epoch: u32) -> Vec<u8> {
    let culprit = abort.culprit.map_or(0, |rank| rank.0.saturating_add(1));
    let mut out = [epoch.to_le_bytes(), culprit.to_le_bytes()].concat();
    out.extend_from_slice(clip(&abort.reason, Abort::MAX_REASON).as_bytes());
    out
}

pub(super) fn decode_abort(bytes: &[u8], world: &World) -> Abort {
    let culprit = bytes.get(4..).and_then(<[u8]>::split_first_chunk);
    let Some((culprit, reason)) = culprit else {
        return Abort { culprit: None, reason: printable(bytes, Abort::MAX_REASON) };
    };
    let culprit = u32::from_le_bytes(*culprit).checked_sub(1).map(Rank).filter(|rank| world.contains(*rank));
    Abort { culprit, reason: printable(reason, Abort::MAX_REASON) }
}

/// The epoch of whoever ended a connection with [`ABORTED`] or [`TAKEN`].
pub(super) fn decode_epoch(reason: &[u8]) -> Option<u32> {
    reason.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

pub(super) fn abort(connection: &Connection, abort: &Abort, epoch: u32) {
    connection.close(ABORTED, &encode_abort(abort, epoch));
}

/// What the end of a peer's connection means, unless this side ended it.
pub(super) fn loss(error: &ConnectionError, world: &World) -> Loss {
    match error {
        ConnectionError::ApplicationClosed(close) if close.error_code == CLOSED => Loss::Closed,
        ConnectionError::ApplicationClosed(close) if close.error_code == ABORTED => {
            Loss::Aborted(decode_abort(&close.reason, world))
        }
        ConnectionError::ApplicationClosed(close) => {
            let reason = printable(&close.reason, Abort::MAX_REASON);
            Loss::Protocol { reason: format!("closed with code {}: {reason}", close.error_code) }
        }
        ConnectionError::Reset | ConnectionError::LocallyClosed => Loss::Closed,
        other => Loss::Protocol { reason: printable(other.to_string().as_bytes(), Abort::MAX_REASON) },
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn an_abort_comes_back_as_it_was_sent() {
        let world = World::new(0, 4, 0).unwrap();
        for culprit in [None, Some(Rank(0)), Some(Rank(3))] {
            let sent = Abort { culprit, reason: "silent for 10.0s, deadline 10.0s".into() };
            assert_eq!(decode_abort(&encode_abort(&sent, 7), &world), sent);
            assert_eq!(decode_epoch(&encode_abort(&sent, 7)), Some(7));
        }
    }

    #[test]
    fn a_hostile_abort_is_cut_and_cleaned_and_accuses_no_rank_that_is_not_there() {
        let world = World::new(0, 4, 0).unwrap();
        let mut bytes = [0u32.to_le_bytes(), 5u32.to_le_bytes()].concat();
        bytes.extend_from_slice(&b"\x1b]0;title\x07".repeat(100));
        let abort = decode_abort(&bytes, &world);
        assert_eq!(abort.culprit, None);
        assert!(abort.reason.len() <= Abort::MAX_REASON, "{} bytes", abort.reason.len());
        assert!(!abort.reason.chars().any(char::is_control), "{:?}", abort.reason);
        assert_eq!(decode_abort(b"\xff", &world), Abort { culprit: None, reason: "\u{fffd}".into() });
        assert_eq!(decode_abort(&[0; 7], &world).culprit, None);
        assert_eq!(decode_abort(b"", &world), Abort { culprit: None, reason: String::new() });
    }
}

//! What makes the pieces of outgoing messages and takes those of incoming ones.

use std::ops::Range;

use bytes::Bytes;

use crate::error::ExchangeError;
use crate::world::Rank;

/// Makes the pieces of outgoing messages when there is room for them, and takes those of incoming ones as they arrive.
///
/// Both are called on the thread that runs the collective, in no order but this: the pieces for one peer are made from
/// first to last, and [tails](super::Cut) after all others. Nothing arrives while a piece is made or taken, so neither
/// should take longer than a piece does on the link.
pub trait Pieces {
    /// What can go wrong, besides the exchange itself.
    type Error: From<ExchangeError>;

    /// The bytes `range` of the message for `to`: one piece, each exactly once.
    ///
    /// # Errors
    ///
    /// What the caller of the collective is told; it is over then.
    fn make(&mut self, to: Rank, range: Range<u64>) -> Result<Bytes, Self::Error>;

    /// The bytes from `offset` on of the message from `from`: one piece, each exactly once, in any order.
    ///
    /// # Errors
    ///
    /// As [`make`](Self::make).
    fn take(&mut self, from: Rank, offset: u64, bytes: Bytes) -> Result<(), Self::Error>;

    /// After a piece was taken, until there is none: a peer from which no more should come for now, because others have to
    /// catch up (true), or from which more can come again (false). What has come already is still to be taken. Whoever is
    /// waited for must not be held up.
    ///
    /// Default: none, all pieces are welcome in any order.
    fn poll_hold(&mut self) -> Option<(Rank, bool)> {
        None
    }
}

//! Whole messages in, whole messages out.

use std::ops::Range;

use bytes::{Bytes, BytesMut};

use super::Pieces;
use crate::error::ExchangeError;
use crate::world::{Rank, World};

/// Cuts messages that are there, and puts together those that come.
pub(crate) struct Assembly {
    /// By rank.
    outgoing: Vec<Bytes>,
    /// By rank, the own one complete from the start.
    incoming: Vec<Message>,
}

struct Message {
    length: u64,
    body: Body,
}

enum Body {
    Empty,
    /// A message of one piece: kept, not copied.
    Whole(Bytes),
    Parts(BytesMut),
}

impl Assembly {
    /// `outgoing` and `expected` have one entry for every rank of `world`. The buffer of a message comes with its first
    /// piece; its size is the number expected, never one that a peer sent.
    pub(super) fn new(world: &World, outgoing: Vec<Bytes>, expected: &[u64]) -> Self {
        let mut incoming: Vec<_> =
            expected.iter().map(|&length| Message { length, body: Body::Empty }).collect();
        let own = world.rank().index();
        incoming[own].body = Body::Whole(outgoing[own].clone());
        Self { outgoing, incoming }
    }

    /// The messages by rank, once.
    pub(crate) fn take_messages(&mut self) -> Vec<Bytes> {
        let message = |message: &mut Message| match std::mem::replace(&mut message.body, Body::Empty) {
            Body::Empty => Bytes::new(),
            Body::Whole(message) => message,
            Body::Parts(parts) => parts.freeze(),
        };
        self.incoming.iter_mut().map(message).collect()
    }
}

impl Pieces for Assembly {
    type Error = ExchangeError;

    fn make(&mut self, to: Rank, range: Range<u64>) -> Result<Bytes, ExchangeError> {
        let message = &self.outgoing[to.index()];
        Ok(message.slice(bounded(range.start)..bounded(range.end)))
    }

    fn take(&mut self, from: Rank, offset: u64, bytes: Bytes) -> Result<(), ExchangeError> {
        let message = &mut self.incoming[from.index()];
        if bytes.len() as u64 == message.length {
            message.body = Body::Whole(bytes);
            return Ok(());
        }
        if matches!(message.body, Body::Empty) {
            message.body = Body::Parts(BytesMut::zeroed(bounded(message.length)));
        }
        let start = bounded(offset);
        // Inside, because it is a piece of a message of the expected length.
        if let Body::Parts(parts) = &mut message.body
            && let Some(target) = parts.get_mut(start..start + bytes.len())
        {
            target.copy_from_slice(&bytes);
        }
        Ok(())
    }
}

/// A length that is known to be in the address space.
fn bounded(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

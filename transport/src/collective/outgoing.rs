//! Messages on their way out, cut into pieces, a piece for every peer in turn.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::world::{Rank, World};

/// One piece, ready to become a frame.
pub(super) struct Piece {
    pub(super) to: Rank,
    pub(super) total: usize,
    pub(super) offset: usize,
    pub(super) payload: Bytes,
}

/// What has not been handed out yet.
pub(super) struct Outgoing {
    piece: usize,
    queue: VecDeque<(Rank, usize, Bytes)>,
}

impl Outgoing {
    /// `messages` by rank, one for every rank of `world`; the own one stays out.
    pub(super) fn new(world: &World, messages: &[Bytes], piece: usize) -> Self {
        // Own rank + 1 first: if all began with rank 0, its link would be full while the others idle.
        let own = world.rank();
        let after = world.peers().filter(|rank| *rank > own);
        let before = world.peers().filter(|rank| *rank < own);
        let queue = after.chain(before).map(|rank| (rank, 0, messages[rank.index()].clone())).collect();
        Self { piece, queue }
    }

    /// The next piece, each peer in turn.
    pub(super) fn next(&mut self) -> Option<Piece> {
        let (to, offset, message) = self.queue.pop_front()?;
        let total = message.len();
        let end = total.min(offset.saturating_add(self.piece));
        let payload = message.slice(offset..end);
        if end < total {
            self.queue.push_back((to, end, message));
        }
        Some(Piece { to, total, offset, payload })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

//! Whether there is room for frames to a peer: how much waits for the connection's window.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::config::FRAME_COST;
use super::link::News;
use crate::frame::{Frame, HEADER_BYTES, MAX_PAYLOAD};
use crate::world::Rank;

/// There is room while less than this waits: one frame that is being written, and one that comes next, so that the
/// connection never waits for whoever makes frames.
const ROOM: usize = 2 * MAX_PAYLOAD;

/// What waits for one peer, in bytes and [`FRAME_COST`] for each frame.
pub(super) struct Load {
    rank: Rank,
    news: Sender<News>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waiting: usize,
    frames: u64,
    /// Somebody was told that there is no room.
    refused: bool,
}

/// A frame's part of the load, until this is dropped.
pub(super) struct Share {
    load: Arc<Load>,
    cost: usize,
}

impl Load {
    pub(super) fn new(rank: Rank, news: Sender<News>) -> Arc<Self> {
        Arc::new(Self { rank, news, state: Mutex::default() })
    }

    pub(super) fn add(self: &Arc<Self>, frame: &Frame) -> Share {
        let cost = FRAME_COST + frame.payload.len();
        let mut state = self.state();
        state.waiting += cost;
        state.frames += 1;
        drop(state);
        Share { load: self.clone(), cost }
    }

    /// After a no, [`News::Room`] follows.
    pub(super) fn has_room(&self) -> bool {
        let mut state = self.state();
        let room = state.waiting < ROOM;
        state.refused |= !room;
        room
    }

    /// Frames that wait, and their bytes with headers.
    pub(super) fn queue(&self) -> (u64, u64) {
        let state = self.state();
        let more = state.frames * (FRAME_COST - HEADER_BYTES) as u64;
        (state.frames, state.waiting as u64 - more)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut state = self.load.state();
        state.waiting -= self.cost;
        state.frames -= 1;
        if state.waiting < ROOM && std::mem::take(&mut state.refused) {
            // The mesh is gone if this fails, and nobody asks any more.
            let _ = self.load.news.send(News::Room(self.load.rank));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::sync::mpsc;

    use bytes::Bytes;

    use super::*;
    use crate::frame::{Header, Operation, Tag};

    fn frame(length: usize) -> Frame {
        let operation = Operation { step: 1, tag: Tag(0) };
        let header = Header { operation, epoch: 0, from: Rank(0), total: 0, offset: 0, length: 0 };
        Frame { header, payload: Bytes::from(vec![0; length]) }
    }

    #[test]
    fn who_was_told_no_is_told_once_when_there_is_room() {
        let (sender, news) = mpsc::channel();
        let load = Load::new(Rank(3), sender);
        let mut shares = Vec::new();
        while load.has_room() {
            shares.push(load.add(&frame(MAX_PAYLOAD)));
        }
        assert_eq!(shares.len(), 2, "frames of 1 MiB that wait");
        assert!(!load.has_room(), "asked again");
        assert_eq!(load.queue(), (2, 2 * (HEADER_BYTES + MAX_PAYLOAD) as u64));
        drop(shares.pop());
        assert!(matches!(news.try_recv(), Ok(News::Room(Rank(3)))), "room for one");
        assert!(load.has_room(), "room for one");
        drop(shares);
        assert!(news.try_recv().is_err(), "told though nobody was refused");
        assert_eq!(load.queue(), (0, 0));
    }

    #[test]
    fn frames_without_bytes_take_room_too() {
        let (sender, _news) = mpsc::channel();
        let load = Load::new(Rank(1), sender);
        let shares: Vec<_> = (0..5000).map(|_| load.has_room().then(|| load.add(&frame(0)))).collect();
        let taken = shares.iter().flatten().count();
        assert_eq!(taken, ROOM.div_ceil(FRAME_COST), "empty frames that wait");
    }
}

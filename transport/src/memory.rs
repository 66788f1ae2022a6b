//! A mesh inside one process.
//!
//! Every endpoint has one inbox, a channel; frames pass through as they are, neither encoded nor copied.

use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Instant;

use crate::error::{Abort, Loss};
use crate::frame::Frame;
use crate::mesh::{Event, Mesh};
use crate::stats::{PeerStats, Stats};
use crate::world::{Rank, World};

/// Connects `world_size` ranks in `epoch`; the endpoints come by rank, one for each thread.
///
/// # Panics
///
/// If `world_size` is not in 1..=[`MAX_WORLD_SIZE`](crate::world::MAX_WORLD_SIZE).
#[must_use]
pub fn mesh(world_size: u32, epoch: u32) -> Vec<MemoryMesh> {
    let worlds: Result<Vec<World>, _> =
        (0..world_size.max(1)).map(|rank| World::new(rank, world_size, epoch)).collect();
    let worlds = match worlds {
        Ok(worlds) => worlds,
        Err(error) => panic!("caller: {error}"),
    };
    let (outboxes, inboxes): (Vec<_>, Vec<_>) = worlds.iter().map(|_| mpsc::channel()).unzip();
    worlds
        .into_iter()
        .zip(inboxes)
        .map(|(world, inbox)| MemoryMesh {
            world,
            outboxes: outboxes.clone(),
            inbox,
            stats: Stats { peers: vec![PeerStats::default(); outboxes.len()] },
            closed: false,
        })
        .collect()
}

/// One rank's end of a mesh inside one process.
///
/// Queues are not bounded: a peer that keeps the rules is at most one operation ahead. A frame's payload is shared with its
/// sender, so that what waits in a queue costs a handle of about 100 bytes per frame; but for pieces that were made to be
/// sent, which are nowhere else.
///
/// An endpoint that is dropped without [`close`](Mesh::close), as by a panic, shows at the others as
/// [`Loss::Closed`], after all its frames.
pub struct MemoryMesh {
    world: World,
    /// By rank. The own one is never sent to; it keeps the inbox from ending, so that waiting for a frame takes
    /// as long as it was asked to when everybody else has left.
    outboxes: Vec<Sender<(Rank, Item)>>,
    inbox: Receiver<(Rank, Item)>,
    stats: Stats,
    closed: bool,
}

enum Item {
    Frame(Frame),
    Leave(Loss),
}

impl Mesh for MemoryMesh {
    fn world(&self) -> World {
        self.world
    }

    fn send(&mut self, to: Rank, frame: Frame) {
        let own = self.world.rank();
        let (Some(outbox), Some(stats)) =
            (self.outboxes.get(to.index()), self.stats.peers.get_mut(to.index()))
        else {
            return;
        };
        if self.closed || to == own {
            return;
        }
        stats.frames_sent += 1;
        stats.frame_bytes_sent += frame.wire_bytes();
        // Fails if the peer is gone, which it has said itself: that waits in the inbox.
        let _ = outbox.send((own, Item::Frame(frame)));
    }

    fn receive(&mut self, until: Instant) -> Event {
        let wait = until.saturating_duration_since(Instant::now());
        match self.inbox.recv_timeout(wait) {
            Ok((from, Item::Frame(frame))) => {
                if let Some(stats) = self.stats.peers.get_mut(from.index()) {
                    stats.frames_received += 1;
                    stats.frame_bytes_received += frame.wire_bytes();
                }
                Event::Frame(from, frame)
            }
            Ok((from, Item::Leave(loss))) => Event::Lost(from, loss),
            Err(_) => Event::Timeout,
        }
    }

    fn close(&mut self, abort: Option<&Abort>) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        let loss = abort.map_or(Loss::Closed, |abort| Loss::Aborted(abort.clone()));
        for peer in self.world.peers() {
            let _ = self.outboxes[peer.index()].send((self.world.rank(), Item::Leave(loss.clone())));
        }
    }

    fn stats(&self) -> Stats {
        self.stats.clone()
    }
}

impl Drop for MemoryMesh {
    fn drop(&mut self) {
        self.close(None);
    }
}

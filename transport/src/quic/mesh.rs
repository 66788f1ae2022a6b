//! The mesh: one link per peer behind the [`Mesh`] trait.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use quinn::{Connection, VarInt};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;

use super::close;
use super::config::Config;
use super::endpoint::Driver;
use super::link::{News, Receiver, send_all};
use super::load::{Load, Share};
use crate::error::{Abort, Loss};
use crate::frame::Frame;
use crate::mesh::{Event, Mesh};
use crate::stats::{PeerStats, Stats};
use crate::world::{Rank, World};

/// A full mesh of mutually authenticated QUIC connections, all of them up. Made by [`super::Pending::join`].
///
/// Dropped without [`Mesh::close`], it tells its peers that it "ended without closing", which they take for a
/// failure. Dropping waits up to 0.3 s so that this is heard.
pub struct QuicMesh {
    world: World,
    silence: Duration,
    links: Vec<Option<Link>>,
    news: mpsc::Receiver<News>,
    // Keeps the channel open when the last link has ended, so that receive waits instead of failing.
    sender: mpsc::Sender<News>,
    closed: bool,
    // Last: its drop waits for the connections above to say goodbye.
    driver: Driver,
}

struct Link {
    connection: Connection,
    // None once closed.
    queue: Option<UnboundedSender<(Frame, Share)>>,
    load: Arc<Load>,
    sender: Option<JoinHandle<()>>,
    /// While no more should come: what came meanwhile still counts as not taken.
    held: Option<Vec<OwnedSemaphorePermit>>,
    stats: PeerStats,
}

/// Ends a [`QuicMesh`] from another thread, while its own waits in a collective. Made by [`QuicMesh::quitter`].
#[derive(Clone)]
pub struct Quitter {
    world: World,
    connections: Vec<(Rank, Connection)>,
    news: mpsc::Sender<News>,
}

impl Quitter {
    /// Tells every peer that this rank leaves for `reason`, and ends what its own mesh waits for in the same way: with
    /// [`Loss::Aborted`] that names this rank. Nothing happens if the mesh is closed already.
    pub fn quit(&self, reason: &str) {
        let abort = Abort { culprit: Some(self.world.rank()), reason: reason.to_owned() };
        for (peer, connection) in &self.connections {
            close::abort(connection, &abort, self.world.epoch());
            // The mesh is gone if this fails, and nobody asks any more.
            let _ = self.news.send(News::Lost(*peer, Loss::Aborted(abort.clone())));
        }
    }
}

impl QuicMesh {
    /// What ends this mesh from another thread.
    #[must_use]
    pub fn quitter(&self) -> Quitter {
        let connection =
            |(rank, link): (Rank, &Option<Link>)| Some((rank, link.as_ref()?.connection.clone()));
        let connections = self.world.ranks().zip(&self.links).filter_map(connection).collect();
        Quitter { world: self.world, connections, news: self.sender.clone() }
    }

    pub(super) fn new(driver: Driver, config: &Config, connections: Vec<Option<Connection>>) -> Self {
        let (world, silence, tuning) = (config.world, config.silence, config.tuning);
        let (sender, news) = mpsc::channel();
        let links = world.ranks().zip(connections).map(|(rank, connection)| {
            let connection = connection?;
            let (queue, frames) = unbounded_channel();
            let task = send_all(connection.clone(), frames, tuning.streams_of_one(&world) as usize);
            let sending = driver.runtime.spawn(task);
            let budget = Arc::new(Semaphore::new(tuning.unconsumed_of_one(&world) as usize));
            let load = Load::new(rank, sender.clone());
            let (connection, news) = (connection, sender.clone());
            let window = VarInt::from_u64(tuning.receive_window(&world)).unwrap_or(VarInt::MAX);
            let receiver =
                Receiver { connection: connection.clone(), rank, world, silence, window, budget, news };
            driver.runtime.spawn(receiver.run());
            let (queue, sender) = (Some(queue), Some(sending));
            Some(Link { connection, queue, load, sender, held: None, stats: PeerStats::default() })
        });
        let links = links.collect();
        Self { world, silence, links, news, sender, closed: false, driver }
    }

    fn link(&mut self, rank: Rank) -> Option<&mut Link> {
        self.links.get_mut(rank.index())?.as_mut()
    }

    fn finish(&mut self) {
        let (own, epoch) = (self.world.rank(), self.world.epoch());
        let (silence, mut closing) = (self.silence, Vec::new());
        for link in self.links.iter_mut().flatten() {
            link.queue = None;
            if let Some(sender) = link.sender.take() {
                closing.push((link.connection.clone(), sender));
            }
        }
        self.driver.run(async move {
            let deadline = tokio::time::Instant::now() + silence;
            for (connection, sender) in closing {
                if tokio::time::timeout_at(deadline, sender).await.is_ok() {
                    connection.close(close::CLOSED, b"");
                } else {
                    let reason = "left before everything was delivered".into();
                    close::abort(&connection, &Abort { culprit: Some(own), reason }, epoch);
                }
            }
        });
    }
}

impl Mesh for QuicMesh {
    fn world(&self) -> World {
        self.world
    }

    fn has_room(&mut self, to: Rank) -> bool {
        self.link(to).is_none_or(|link| link.load.has_room())
    }

    fn hold(&mut self, from: Rank, hold: bool) {
        if let Some(link) = self.link(from)
            && link.held.is_some() != hold
        {
            link.held = hold.then(Vec::new);
        }
    }

    fn send(&mut self, to: Rank, frame: Frame) {
        let Some(link) = self.link(to) else {
            tracing::error!(%to, "no such peer");
            return;
        };
        link.stats.frames_sent += 1;
        link.stats.frame_bytes_sent += frame.wire_bytes();
        if let Some(queue) = &link.queue {
            let share = link.load.add(&frame);
            // Fails if the peer is lost, which shows as an event.
            let _ = queue.send((frame, share));
        }
    }

    fn receive(&mut self, until: Instant) -> Event {
        match self.news.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(News::Frame(rank, frame, permit)) => {
                if let Some(link) = self.link(rank) {
                    if let Some(held) = &mut link.held {
                        held.push(permit);
                    }
                    link.stats.frames_received += 1;
                    link.stats.frame_bytes_received += frame.wire_bytes();
                }
                Event::Frame(rank, frame)
            }
            Ok(News::Room(rank)) => Event::Room(rank),
            Ok(News::Lost(rank, loss)) => Event::Lost(rank, loss),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Event::Timeout,
        }
    }

    fn close(&mut self, abort: Option<&Abort>) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        match abort {
            None => self.finish(),
            Some(abort) => {
                for link in self.links.iter_mut().flatten() {
                    close::abort(&link.connection, abort, self.world.epoch());
                    link.queue = None;
                }
            }
        }
    }

    fn stats(&self) -> Stats {
        let peer = |link: &Option<Link>| {
            link.as_ref().map_or_else(PeerStats::default, |link| {
                let udp = link.connection.stats();
                let (queue_frames, queue_bytes) = link.load.queue();
                PeerStats {
                    queue_frames,
                    queue_bytes,
                    udp_bytes_sent: udp.udp_tx.bytes,
                    udp_bytes_received: udp.udp_rx.bytes,
                    udp_bytes_lost: udp.path.lost_bytes,
                    round_trip: udp.path.rtt,
                    ..link.stats
                }
            })
        };
        Stats { peers: self.links.iter().map(peer).collect() }
    }
}

impl Drop for QuicMesh {
    fn drop(&mut self) {
        let reason = "ended without closing".into();
        self.close(Some(&Abort { culprit: Some(self.world.rank()), reason }));
    }
}

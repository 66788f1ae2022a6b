//! A rank that is far ahead of another waits, over QUIC: its pieces are neither stored without end nor lost.
#![cfg(feature = "quic")]
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

#[path = "common/fleet.rs"]
mod fleet;

use std::net::Ipv4Addr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use fleet::fleet;
use gradwire::codec::Codec;
use gradwire::optim;
use gradwire::sync::{Config, Synchronizer};
use gradwire::transport::quic::{self, Authority, QuicMesh, Rendezvous};
use gradwire::transport::{Abort, Communicator, Event, Frame, Limits, Mesh, Rank, Stats, World};

const RANKS: u32 = 3;
const ELEMENTS: usize = 6 << 20;
/// Of the 8 MiB of each shard in f32.
const PIECE: usize = 128 << 10;
/// What of a peer may wait in the mesh; of pieces, 15 and their headers.
const UNCONSUMED: u32 = 2 << 20;
/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

fn config() -> Config {
    let sgd = optim::Config::Sgd(optim::Sgd::default());
    Config { piece_bytes: PIECE, ..Config::new(Codec::F32, sgd) }
}

fn step(communicator: Communicator, before: impl FnOnce()) -> Vec<u32> {
    let rank = communicator.world().rank().0;
    let mut parameters = vec![0.5; ELEMENTS];
    let mut synchronizer = Synchronizer::new(communicator, config(), &parameters).unwrap();
    let gradient: Vec<f32> = (0..ELEMENTS).map(|i| ((i + rank as usize * 31) % 251) as f32 / 251.0).collect();
    before();
    synchronizer.step(&gradient, 1 + rank, 0.1, &mut parameters).unwrap();
    synchronizer.finish().unwrap();
    parameters.iter().map(|value| value.to_bits()).collect()
}

/// Tells when somebody is held up first, and counts the large frames of rank 1 until one of rank 2 comes.
struct Watched {
    mesh: QuicMesh,
    held: Sender<Rank>,
    frames: usize,
    counted: Sender<usize>,
    counts: bool,
}

impl Mesh for Watched {
    fn world(&self) -> World {
        self.mesh.world()
    }

    fn has_room(&mut self, to: Rank) -> bool {
        self.mesh.has_room(to)
    }

    fn hold(&mut self, from: Rank, hold: bool) {
        if hold {
            // Nobody listens after the first.
            let _ = self.held.send(from);
        }
        self.mesh.hold(from, hold);
    }

    fn send(&mut self, to: Rank, frame: Frame) {
        self.mesh.send(to, frame);
    }

    fn receive(&mut self, until: Instant) -> Event {
        let event = self.mesh.receive(until);
        if let Event::Frame(from, frame) = &event
            && self.counts
            && frame.header.length as usize >= PIECE / 2
        {
            self.frames += 1;
            if *from == Rank(2) {
                self.counts = false;
                let _ = self.counted.send(self.frames - 1);
            }
        }
        event
    }

    fn close(&mut self, abort: Option<&Abort>) {
        self.mesh.close(abort);
    }

    fn stats(&self) -> Stats {
        self.mesh.stats()
    }
}

/// All ranks of a world on loopback.
fn meshes() -> Vec<QuicMesh> {
    let authority = Authority::new("test").unwrap();
    let mut rendezvous = "unused:1".to_owned();
    let mut joining = Vec::new();
    for rank in 0..RANKS {
        let identity = authority.issue(rank, RANKS).unwrap();
        let world = World::new(rank, RANKS, 0).unwrap();
        let mut config = quic::Config::new(identity, world, Rendezvous::Address(rendezvous.clone()));
        config.bind = Some((Ipv4Addr::LOCALHOST, 0).into());
        config.tuning.unconsumed = UNCONSUMED;
        let pending = QuicMesh::bind(config).unwrap();
        if rank == 0 {
            rendezvous = pending.local_addr().to_string();
        }
        joining.push(thread::spawn(move || pending.join().unwrap()));
    }
    joining.into_iter().map(|mesh| mesh.join().unwrap()).collect()
}

#[test]
fn a_rank_that_is_far_ahead_of_another_waits_until_that_one_has_caught_up() {
    let (held, holds): (_, Receiver<Rank>) = channel();
    let (counted, counts) = channel();
    let mut meshes: Vec<Box<dyn Mesh>> = Vec::new();
    for mesh in self::meshes() {
        let counts = mesh.world().rank() == Rank(0);
        let held = if counts { held.clone() } else { channel().0 };
        meshes.push(Box::new(Watched { mesh, held, frames: 0, counted: counted.clone(), counts }));
    }
    // Rank 2 begins when rank 0 has stopped rank 1.
    let mut holds = Some(holds);
    let ranks: Vec<_> = (0..)
        .zip(meshes)
        .map(|(rank, mesh)| {
            let holds = if rank == 2 { holds.take() } else { None };
            let before = move || {
                let first = holds.map(|holds| holds.recv_timeout(LONG).expect("nobody is held up"));
                assert!(first.is_none_or(|rank| rank == Rank(1)), "{first:?} is waited for");
            };
            // One of the largest frames at least.
            let limits = Limits { ahead_bytes: 1, ..Limits::default() };
            thread::spawn(move || step(Communicator::new(mesh, limits), before))
        })
        .collect();
    let parameters: Vec<Vec<u32>> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
    let expected = fleet(RANKS, |_, communicator| step(communicator, || {}));
    assert!(parameters == expected, "other bits than without a network");
    // What came before rank 0 began, four that wait for rank 2's, what fills the mesh meanwhile, and one on its way.
    let frames = counts.recv().unwrap();
    let most = (1 << 20) / PIECE + 4 + UNCONSUMED as usize / PIECE + 1;
    assert!(frames <= most, "{frames} of 64 pieces of rank 1 were taken, at most {most} should");
}

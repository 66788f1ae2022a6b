//! Worlds on loopback, in one process: one thread per rank.

use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use gradwire_transport::quic::{Authority, Config, JoinError, QuicMesh, Rendezvous};
use gradwire_transport::{Event, Frame, Header, Mesh, Operation, Rank, Tag, World};

pub(crate) const LOCALHOST: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Longer than anything here takes; what waits for it has failed.
pub(crate) const LONG: Duration = Duration::from_secs(30);

/// A configuration for tests: loopback, and a silence that only a broken test waits for.
pub(crate) fn config(authority: &Authority, rank: u32, size: u32, rendezvous: &str) -> Config {
    let identity = authority.issue(rank, size).unwrap();
    let world = World::new(rank, size, 0).unwrap();
    Config {
        bind: Some(LOCALHOST),
        silence: Duration::from_secs(10),
        join: Duration::from_secs(20),
        ..Config::new(identity, world, Rendezvous::Address(rendezvous.into()))
    }
}

/// All ranks of a world, joined at rank 0, each with `change` applied to its configuration.
pub(crate) fn join_all(
    authority: &Authority,
    size: u32,
    change: impl Fn(u32, &mut Config),
) -> Vec<Result<QuicMesh, JoinError>> {
    let mut first = config(authority, 0, size, "unused:1");
    change(0, &mut first);
    let pending = QuicMesh::bind(first).unwrap();
    let address = pending.local_addr().to_string();
    let mut threads = vec![thread::spawn(move || pending.join())];
    for rank in 1..size {
        let mut config = config(authority, rank, size, &address);
        change(rank, &mut config);
        threads.push(thread::spawn(move || QuicMesh::bind(config)?.join()));
    }
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

/// All ranks of a world that is expected to come up.
pub(crate) fn world(size: u32, change: impl Fn(u32, &mut Config)) -> Vec<QuicMesh> {
    let authority = Authority::new("test").unwrap();
    join_all(&authority, size, change).into_iter().map(Result::unwrap).collect()
}

/// A frame that is a whole message, painted so that a swapped or shifted byte shows.
pub(crate) fn frame(from: u32, step: u64, length: usize) -> Frame {
    let header = Header {
        operation: Operation { step, tag: Tag(1) },
        epoch: 0,
        from: Rank(from),
        total: length as u64,
        offset: 0,
        length: u32::try_from(length).unwrap(),
    };
    Frame { header, payload: painted(step, length) }
}

pub(crate) fn painted(seed: u64, length: usize) -> Bytes {
    (0..length).map(|i| u8::try_from((i as u64 + seed) % 251).unwrap()).collect()
}

/// The next event, which must come.
pub(crate) fn event(mesh: &mut impl Mesh) -> Event {
    match mesh.receive(Instant::now() + LONG) {
        Event::Timeout => panic!("rank {} heard nothing for {LONG:?}", mesh.world().rank()),
        event => event,
    }
}

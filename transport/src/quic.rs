//! A mesh of mutually authenticated QUIC connections.
//!
//! One UDP socket per node, one connection per pair of ranks, TLS 1.3 with certificates on both sides
//! ([`identity`]), and a hello in both directions ([`hello`](Agreement)) before a connection counts. Each frame
//! travels on a unidirectional stream of its own, so that a lost packet holds up one frame only.
//!
//! **Cost**: about 50 KiB per connection, of which a world of N has N - 1 per node; CPU time is per packet, about
//! 2.2 s per GB (both ends) where the path carries 1452 bytes and half of it at 6500; which it is, each connection finds out.
//!
//! **What a peer can do**: nothing without a certificate of the run but cost a handshake, up to 256 at a time; once all
//! ranks have joined, 4 at a time and 40 per second, at rank 0 only, which tells surplus processes that they are.
//! With one, it can make this node store its share of [`Tuning::unconsumed`] plus one frame per stream, and be
//! noticed: see [`crate::Loss`].
//!
//! **One process per identity**: of two that join with one certificate, the one that has bound its socket last takes part, and
//! the other one ends with [`JoinError::Superseded`]. The time is the sender's claim; only holders of the rank's key can make it.
//!
//! **After a failure** the same process can join again, at the same address as soon as the mesh is dropped, in a world of the
//! next epoch and of the [`Members`] that are left: see [`crate::faults`].
//!
//! ```no_run
//! use gradwire_transport::World;
//! use gradwire_transport::quic::{Config, Identity, QuicMesh, Rendezvous};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let identity = Identity::load("run/rank-1.pem".as_ref())?;
//! let world = World::new(1, 4, 0)?;
//! let config = Config::new(identity, world, Rendezvous::Address("node-a.example:7000".into()));
//! let mesh = QuicMesh::bind(config)?.join()?;
//! # Ok(())
//! # }
//! ```

mod bind;
mod close;
mod config;
pub mod congestion;
mod endpoint;
mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod gather;
mod greet;
mod hello;
pub mod identity;
mod join;
mod link;
mod load;
mod members;
mod mesh;
mod peers;
mod reset;
mod seats;
mod table;
mod tls;

use std::net::SocketAddr;
use std::time::SystemTime;

pub use config::{Config, MAX_MTU, Rendezvous, Tuning, Waiting};
pub use congestion::Congestion;
pub use error::JoinError;
pub use hello::{Agreement, MAX_AGREEMENT_BYTES, MAX_AGREEMENTS};
pub use identity::{Authority, Identity, IdentityError, keygen};
pub use members::Members;
pub use mesh::{QuicMesh, Quitter};
pub use peers::{MAX_PEERS_BYTES, Peers, PeersError};

use endpoint::Driver;
use hello::Hello;

/// A node that listens and has not joined yet.
pub struct Pending {
    driver: Driver,
    config: Config,
    hello: Hello,
    local: SocketAddr,
}

impl QuicMesh {
    /// Binds the node's socket. Peers can reach it from now on, and are answered once it joins.
    ///
    /// # Errors
    ///
    /// At once, on every rank: if an option is outside its range, the identity unusable or of another rank, the
    /// rendezvous no address ([`JoinError::Address`]), or the port in use.
    pub fn bind(config: Config) -> Result<Pending, JoinError> {
        config.validate()?;
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        // Until the year 2554.
        let generation = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        let hello = Hello::new(&config.world, generation, &config.agreements)?;
        let driver = Driver::bind(&config)?;
        let local = driver.local_addr().map_err(JoinError::Thread)?;
        Ok(Pending { driver, config, hello, local })
    }
}

impl Pending {
    /// Where this node listens: the address it was given, with the port that the system chose.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Connects to every other rank and waits until all are there. Peers may start in any order.
    ///
    /// # Errors
    ///
    /// At the deadline, with the ranks that are missing; at once, if a member of the run disagrees with this
    /// node, which both sides then report, and up to 2 s later, because those that call late are told too. Whoever
    /// is no member is ignored.
    pub fn join(self) -> Result<QuicMesh, JoinError> {
        let Self { driver, config, hello, .. } = self;
        let joining = join::join(driver.endpoint.clone(), config.clone(), hello);
        let connections = driver
            .run(joining)
            .unwrap_or_else(|| Err(JoinError::Thread(std::io::Error::other("it ended"))))?;
        Ok(QuicMesh::new(driver, &config, connections))
    }
}

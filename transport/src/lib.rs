//! Frames, collectives and meshes: bytes between ranks.
//!
//! Nothing in this crate knows what a gradient is. From the bottom up:
//!
//! - [`world`]: who takes part: [`Rank`], [`World`], epoch.
//! - [`frame`]: the unit on the wire: a 56-byte header with checksum, and up to 1 MiB of payload.
//! - [`collective`]: all-to-all, all-gather and barrier as state machines without socket, clock or thread.
//! - [`mesh`]: the [`Mesh`] trait (carry frames, notice losses) and the [`Communicator`] that drives
//!   collectives over one.
//! - [`launch`]: rank, world size and rendezvous from what started the process.
//! - [`address`], [`file`](mod@file): what is checked before it is used: addresses of ranks, and files that others wrote.
//! - [`memory`]: a mesh inside one process. `quic` (feature `quic`): a mesh of mutually authenticated QUIC
//!   connections.
//!
//! [`faults`] has two tables: every deadline, and what callers get when something goes wrong.

pub mod address;
pub mod collective;
pub mod error;
pub mod faults;
pub mod file;
pub mod frame;
pub mod launch;
pub mod memory;
pub mod mesh;
#[cfg(feature = "quic")]
pub mod quic;
pub mod sim;
pub mod stats;
pub mod world;

pub use collective::{Cut, Limits, Pieces};
pub use error::{Abort, ExchangeError, FrameError, Loss};
pub use frame::{Frame, Header, Operation, Tag, WIRE_VERSION};
pub use launch::{Known, Launch, LaunchError, Launcher};
pub use mesh::{Communicator, Event, Mesh};
pub use stats::{PeerStats, Stats};
pub use world::{Rank, World, WorldError};

//! A network of links with a rate, a queue, a delay and faults: for real sockets, and for a clock that is only a number.
//!
//! [`Network`] decides when a packet arrives, if at all; it has no socket, no clock and no thread. What a packet is, and
//! whether time is real, is its caller's business.
//!
//! ```text
//! node i -> [rate, queue] -> (delay, jitter, loss, reorder, duplicate, cut; per pair) -> [rate, queue] -> node j
//! ```
//!
//! Each node has one line in and one line out, as a host behind one network interface has: packets for different peers
//! share it.

mod clock;
mod config;
mod mesh;
mod network;
mod random;
mod shaper;
mod wire;

#[cfg(feature = "quic")]
pub(crate) use config::rate;
pub use config::{LinkConfig, LinkError, WireConfig};
pub use mesh::{Fault, Killed, SimClock, SimConfig, SimMesh, mesh};
pub use network::{Arrival, Network, Traffic};
pub use random::Random;

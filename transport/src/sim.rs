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
//!
//! With the feature `emulate`, on Unix, a `Relay` carries the datagrams of real UDP sockets over such a network, and on Linux,
//! with the rights of an administrator, a `Tunnel` all that network namespaces send to each other.

#[cfg(all(feature = "emulate", unix))]
mod carrier;
mod clock;
mod config;
#[cfg(all(feature = "emulate", unix))]
mod measured;
mod mesh;
mod network;
mod random;
#[cfg(all(feature = "emulate", unix))]
mod relay;
mod shaper;
#[cfg(all(feature = "emulate", target_os = "linux"))]
mod tunnel;
mod wire;

#[cfg(all(feature = "emulate", unix))]
pub use carrier::Carrier;
#[cfg(feature = "quic")]
pub(crate) use config::rate;
pub use config::{LinkConfig, LinkError, WireConfig};
#[cfg(all(feature = "emulate", unix))]
pub use measured::Measured;
pub use mesh::{Fault, Killed, SimClock, SimConfig, SimMesh, mesh};
pub use network::{Arrival, Network, Traffic};
pub use random::Random;
#[cfg(all(feature = "emulate", unix))]
pub use relay::Relay;
#[cfg(all(feature = "emulate", target_os = "linux"))]
pub use tunnel::Tunnel;

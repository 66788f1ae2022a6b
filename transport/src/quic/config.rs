//! What a node needs to know to join.

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use super::congestion::Congestion;
use super::error::JoinError;
use super::hello::Agreement;
use super::identity::{Identity, IdentityError};
use super::members::Members;
use super::peers::Peers;
use crate::address;
use crate::frame::{HEADER_BYTES, MAX_PAYLOAD};
use crate::world::{Rank, World};

/// The largest UDP payload that [`Tuning::mtu`] may allow, 6500 bytes and not 8952: ten segments of 8952 exceed
/// 64 KiB, segmentation offload answers EMSGSIZE, and the connection hangs without an error.
pub const MAX_MTU: u16 = 6500;

/// Unconsumed frames cost this much on top of their bytes, so that empty frames are bounded too.
pub(super) const FRAME_COST: usize = HEADER_BYTES + 512;

/// Where the other ranks are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rendezvous {
    /// `host:port` of rank 0, which tells everyone where the others are, as it sees them. Rank 0 itself takes the
    /// port from it unless [`Config::bind`] is given; then it may be empty or have port 0. All ranks must be
    /// reachable for each other at the addresses that rank 0 sees: no address translation between them.
    Address(String),
    /// Every rank's address.
    Peers(Peers),
}

/// Who is told whom a node waits for while it joins: `missing`, in order (at least the first 64), and for how long it
/// has waited. Called about every 5 s, on the thread that carries the mesh: print, and return.
#[derive(Clone)]
pub struct Waiting(Arc<Callback>);

type Callback = dyn Fn(&[Rank], Duration) + Send + Sync;

impl Waiting {
    /// Calls `callback` with the missing ranks.
    #[must_use]
    pub fn new(callback: impl Fn(&[Rank], Duration) + Send + Sync + 'static) -> Self {
        Self(Arc::new(callback))
    }

    pub(super) fn tell(&self, missing: &[Rank], waited: Duration) {
        (self.0)(missing, waited);
    }
}

impl fmt::Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Waiting")
    }
}

/// How a node joins, and what it allows its peers.
#[derive(Clone, Debug)]
pub struct Config {
    /// Who this node is.
    pub identity: Identity,
    /// The membership to join.
    pub world: World,
    /// Whose certificate each of its ranks has, as many as there are ranks. Default: every rank its own.
    pub members: Option<Members>,
    /// Where to listen; port 0 lets the system choose. An IPv6 wildcard address takes IPv4 as well. Default: the
    /// wildcard address of the family of this node's own address in the peers file, else of the rendezvous (both,
    /// if it is a name with both), at the port that stands there on rank 0 and with a peers file, else at any.
    pub bind: Option<SocketAddr>,
    /// Where the others are.
    pub rendezvous: Rendezvous,
    /// What all ranks must have the same; at most 32. Default: nothing.
    pub agreements: Vec<Agreement>,
    /// A peer from which nothing came for this long, not even a keep-alive (sent every fifth of it), is lost.
    /// To be the same on all ranks, as an agreement: QUIC takes the shorter one of both ends, and who gives up first has all
    /// others give up. 0.1 s to 1 h. Default: 10 s.
    pub silence: Duration,
    /// How long to wait until all ranks are connected, at most 30 days. Default: 60 s.
    pub join: Duration,
    /// Who is told whom this node waits for. Default: nobody.
    pub waiting: Option<Waiting>,
    /// How fast to send. Default: at an estimated rate.
    pub congestion: Congestion,
    /// Windows and limits.
    pub tuning: Tuning,
}

/// Windows and limits of a mesh. The defaults carry 1 Gb/s over 85 ms to all peers together, whatever is lost, and bound what
/// they can make this node store to about 54 MiB in a world of up to 7 ranks, and to 9 MiB per peer in larger ones: one frame
/// per stream and half as much that is not read yet, what is unconsumed, and 1 MiB for each peer. For longer or faster lines see [`for_link`](Self::for_link).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Frames under way at a time, each on a stream of its own; 4 to 1024. Each peer has an equal share, but at least 4.
    /// At least 2.2 times the bandwidth-delay product over 1 MiB: a frame that loses a packet takes two round trips.
    /// Default: 24.
    pub streams: u16,
    /// Bytes of frames that came and were not taken by [`crate::Mesh::receive`] yet; each peer has an equal share, but at
    /// least 2 MiB, and has to wait beyond it. 2 MiB to 1 GiB. Default: 12 MiB.
    pub unconsumed: u32,
    /// Bytes of the socket's send and receive buffers to ask the system for; getting less is no error. Below 4
    /// MiB packets were lost even on loopback. Default: 8 MiB.
    pub socket_buffer: usize,
    /// The largest UDP payload that path discovery tries, 1200 to [`MAX_MTU`] bytes: 6500 takes half the CPU time per byte
    /// where jumbo frames (or loopback) carry it, and a connection over a path that does not finds out in its first
    /// dozen round trips, at 1200 bytes meanwhile. Default: [`MAX_MTU`].
    pub mtu: u16,
}

impl Default for Tuning {
    fn default() -> Self {
        Self { streams: 24, unconsumed: 12 << 20, socket_buffer: 8 << 20, mtu: MAX_MTU }
    }
}

/// The most of [`Tuning::streams`].
const MAX_STREAMS: u16 = 1024;

/// The least share of [`Tuning::streams`] and [`Tuning::unconsumed`] that a peer has.
const LEAST_STREAMS: u32 = 4;
const LEAST_UNCONSUMED: u32 = 2 << 20;

/// Streams per bandwidth-delay product. From its first byte to the acknowledgement of its last a frame takes one round trip;
/// 0.1 % of lost packets make that two for half of the frames, and 1 % for nearly all, and three for one in fourteen.
const ROUND_TRIPS: f64 = 2.2;

/// Frames that are just being written or read, on top.
const AT_WORK: f64 = 8.0;

impl Tuning {
    /// For a node whose line carries `rate` bits per second and whose peers are up to `round_trip` away: as many streams as
    /// fill it whatever is lost, at least the default and at most 1024.
    ///
    /// **Price**: peers can make this node store 1.5 MiB for each stream, and 1 MiB of what it sends waits until it is
    /// acknowledged: for 1 Gbit/s and 150 ms 72 and 48 MiB instead of 36 and 24.
    #[must_use]
    pub fn for_link(rate: NonZeroU64, round_trip: Duration) -> Self {
        let defaults = Self::default();
        let product = rate.get() as f64 / 8.0 * round_trip.as_secs_f64() / MAX_PAYLOAD as f64;
        let wanted = (ROUND_TRIPS * product + AT_WORK).ceil();
        let streams = (defaults.streams..MAX_STREAMS).find(|streams| f64::from(*streams) >= wanted);
        Self { streams: streams.unwrap_or(MAX_STREAMS), ..defaults }
    }

    /// Frames that may be under way to, and from, one peer of `world`.
    pub(super) fn streams_of_one(&self, world: &World) -> u32 {
        (u32::from(self.streams) / world.size().saturating_sub(1).max(1)).max(LEAST_STREAMS)
    }

    /// Bytes that may wait of one peer of `world`.
    pub(super) fn unconsumed_of_one(&self, world: &World) -> u32 {
        (self.unconsumed / world.size().saturating_sub(1).max(1)).max(LEAST_UNCONSUMED)
    }

    /// Bytes that may be on their way to one peer of `world`, sent and not acknowledged: every stream has one frame.
    pub(super) fn send_window(&self, world: &World) -> u64 {
        u64::from(self.streams_of_one(world)) * FRAME + CONTROL
    }

    /// Bytes that may have come from one peer and were not read yet. They are read at once, so a bandwidth-delay product will
    /// do, which is half of what its streams have.
    pub(super) fn receive_window(&self, world: &World) -> u64 {
        u64::from(self.streams_of_one(world)) * FRAME / 2 + CONTROL
    }
}

/// A frame at most.
const FRAME: u64 = (HEADER_BYTES + MAX_PAYLOAD) as u64;

/// For hellos and tables, which would otherwise wait behind the frames for credit.
const CONTROL: u64 = 1 << 20;

impl Config {
    /// The defaults for `identity` in `world`.
    #[must_use]
    pub fn new(identity: Identity, world: World, rendezvous: Rendezvous) -> Self {
        Self {
            identity,
            world,
            members: None,
            bind: None,
            rendezvous,
            agreements: Vec::new(),
            silence: Duration::from_secs(10),
            join: Duration::from_secs(60),
            waiting: None,
            congestion: Congestion::default(),
            tuning: Tuning::default(),
        }
    }

    pub(super) fn members(&self) -> Members {
        self.members.clone().unwrap_or_else(|| Members::all(self.world.size()))
    }

    pub(super) fn validate(&self) -> Result<(), JoinError> {
        let (identity, node) = (self.identity.rank(), self.world.rank());
        let (members, size) = (self.members(), self.world.size());
        if members.count() != size as usize {
            let (value, range) =
                (format!("{} for {size}", members.count()), "as many as the world has ranks");
            return Err(JoinError::Option { option: "members", value, range });
        }
        let needed = members.certificate(node).unwrap_or(node);
        if identity != needed {
            return Err(IdentityError::OtherRank { identity, node: needed }.into());
        }
        match &self.rendezvous {
            Rendezvous::Peers(peers) => peers.check(&self.world)?,
            // Nobody is met.
            Rendezvous::Address(_) if self.world.size() == 1 => {}
            Rendezvous::Address(text) if node == Rank(0) && self.bind.is_some() => {
                if !text.is_empty() {
                    address::split(text)?;
                }
            }
            Rendezvous::Address(text) => {
                address::check(text)?;
            }
        }
        let check = |option, inside: bool, value: String, range| {
            if inside { Ok(()) } else { Err(JoinError::Option { option, value, range }) }
        };
        let Tuning { streams, unconsumed, mtu, .. } = self.tuning;
        let silence = Duration::from_millis(100)..=Duration::from_secs(3600);
        check("silence", silence.contains(&self.silence), format!("{:?}", self.silence), "0.1 s to 1 h")?;
        let days = Duration::from_secs(30 * 24 * 3600);
        check("join", self.join <= days, format!("{:?}", self.join), "at most 30 days")?;
        check("streams", (4..=MAX_STREAMS).contains(&streams), streams.to_string(), "4 to 1024")?;
        let inside = (2 << 20..=1 << 30).contains(&unconsumed);
        check("unconsumed", inside, unconsumed.to_string(), "2 MiB to 1 GiB")?;
        check("mtu", (1200..=MAX_MTU).contains(&mtu), mtu.to_string(), "1200 to 6500 bytes")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn streams_follow_the_bandwidth_delay_product_within_their_range() {
        let streams = |megabits: u64, milliseconds| {
            let rate = NonZeroU64::new(megabits * 1_000_000).unwrap();
            Tuning::for_link(rate, Duration::from_millis(milliseconds)).streams
        };
        assert_eq!(streams(100, 80), 24, "never below the default");
        assert_eq!(streams(1000, 0), 24, "no delay");
        // 18.75 MB are 17.9 MiB.
        assert_eq!(streams(1000, 150), 48, "2.2 x 17.9 + 8");
        assert_eq!(streams(10_000, 80), 218, "2.2 x 95.4 + 8");
        assert_eq!(streams(1_000_000, 60_000), 1024, "never above the limit");
    }

    #[test]
    fn what_peers_can_make_a_node_store_is_what_the_documentation_says() {
        let world = |size| crate::World::new(0, size, 0).unwrap();
        let of_one = |size: u32| {
            let (tuning, world) = (Tuning::default(), world(size));
            let frames = u64::from(tuning.streams_of_one(&world)) * FRAME;
            let stored = frames + tuning.receive_window(&world) + u64::from(tuning.unconsumed_of_one(&world));
            stored as f64 / f64::from(1 << 20)
        };
        for size in 2..=7 {
            let all = of_one(size) * f64::from(size - 1);
            assert!(all < 54.1, "{size} ranks: {all} MiB");
        }
        for size in [8, 64] {
            assert!(of_one(size) < 9.1, "{size} ranks: {} MiB per peer", of_one(size));
        }
    }
}

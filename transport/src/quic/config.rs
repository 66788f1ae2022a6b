//! What a node needs to know to join.

use std::fmt;
use std::net::SocketAddr;
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
    /// 0.1 s to 1 h. Default: 10 s.
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

/// Windows and limits of a mesh. The defaults carry 1 Gb/s over 200 ms to all peers together, and bound what they can make
/// this node store to about 42 MiB in a world of up to 7 ranks, and to 7 MiB per peer in larger ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Frames under way at a time, each on a stream of its own; 4 to 1024. Each peer has an equal share, but at least 4.
    /// At least the bandwidth-delay product over 1 MiB. Default: 24.
    pub streams: u16,
    /// Bytes of frames that came and were not taken by [`crate::Mesh::receive`] yet; each peer has an equal share, but at
    /// least 2 MiB, and has to wait beyond it. 2 MiB to 1 GiB. Default: 12 MiB.
    pub unconsumed: u32,
    /// Bytes of the socket's send and receive buffers to ask the system for; getting less is no error. Below 4
    /// MiB packets were lost even on loopback. Default: 8 MiB.
    pub socket_buffer: usize,
    /// The largest UDP payload that path discovery tries, 1200 to [`MAX_MTU`] bytes. 6500 halves the CPU time
    /// per byte where jumbo frames (or loopback) carry it. Default: 1452.
    pub mtu: u16,
}

impl Default for Tuning {
    fn default() -> Self {
        Self { streams: 24, unconsumed: 12 << 20, socket_buffer: 8 << 20, mtu: 1452 }
    }
}

/// The least share of [`Tuning::streams`] and [`Tuning::unconsumed`] that a peer has.
const LEAST_STREAMS: u32 = 4;
const LEAST_UNCONSUMED: u32 = 2 << 20;

impl Tuning {
    /// Frames that may be under way to, and from, one peer of `world`.
    pub(super) fn streams_of_one(&self, world: &World) -> u32 {
        (u32::from(self.streams) / world.size().saturating_sub(1).max(1)).max(LEAST_STREAMS)
    }

    /// Bytes that may wait of one peer of `world`.
    pub(super) fn unconsumed_of_one(&self, world: &World) -> u32 {
        (self.unconsumed / world.size().saturating_sub(1).max(1)).max(LEAST_UNCONSUMED)
    }

    /// What one connection may have in flight or unread: every stream holds one frame, and 1 MiB on top for
    /// hellos and tables, which would otherwise wait behind the frames for credit.
    pub(super) fn window(&self, world: &World) -> u64 {
        u64::from(self.streams_of_one(world)) * (HEADER_BYTES + MAX_PAYLOAD) as u64 + (1 << 20)
    }
}

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
        check("streams", (4..=1024).contains(&streams), streams.to_string(), "4 to 1024")?;
        let inside = (2 << 20..=1 << 30).contains(&unconsumed);
        check("unconsumed", inside, unconsumed.to_string(), "2 MiB to 1 GiB")?;
        check("mtu", (1200..=MAX_MTU).contains(&mtu), mtu.to_string(), "1200 to 6500 bytes")
    }
}

//! What `bench` and its ranks say to each other, one JSON object per line.

use std::num::NonZeroU64;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::arrivals::Pace;
use super::way::Way;
use crate::event::{Bytes, Seconds};

/// What a rank shall do; follows its identity on its stdin. After it comes a line whenever the next turn is due.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) rank: u32,
    pub(super) nodes: u32,
    pub(super) work: Work,
    /// Warm-up included.
    pub(super) turns: u32,
    pub(super) way: Way,
    /// The rate of its line, as it is declared, in bits per second.
    pub(super) link_rate: Option<NonZeroU64>,
    /// What its windows are made for, instead of the mesh's default: rate and round trip of its line.
    pub(super) windows: Option<(NonZeroU64, Duration)>,
    pub(super) meet: Meet,
}

/// What a turn is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::bench) enum Work {
    /// An all-to-all of this many bytes for every other rank.
    Exchange { bytes: usize },
    /// A synchronised step with AdamW.
    Step {
        params: usize,
        /// As `--codec` takes it.
        codec: String,
    },
}

impl Work {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Exchange { .. } => "exchange",
            Self::Step { .. } => "step",
        }
    }
}

/// How a rank finds the others.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Meet {
    /// At rank 0, which is there; empty for rank 0.
    Address(String),
    /// In this peers file.
    Peers(String),
}

/// What a rank says.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Said {
    /// Its socket is there.
    Listening { address: std::net::SocketAddr },
    /// It is connected to all others.
    Joined,
    /// A turn is done.
    Turn(Turn),
    /// It leaves; the last that it says.
    Left {
        /// The most memory that it ever had, where the system tells.
        peak_rss_bytes: Option<u64>,
        /// What every rank must have the same in the end.
        result: String,
    },
    /// It gave up.
    Failed { message: String },
}

/// One rank's part of one turn.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(in crate::bench) struct Turn {
    /// From its beginning, of an exchange the barrier before it, until everything was there.
    pub(in crate::bench) seconds: f64,
    /// User and system time of the process, where the system tells.
    pub(in crate::bench) cpu_seconds: Option<f64>,
    pub(in crate::bench) udp_bytes_sent: u64,
    /// Of these, taken for lost and sent again.
    pub(in crate::bench) udp_bytes_lost: u64,
    /// Of an exchange: bytes of messages per second that this rank received, from all others together.
    pub(in crate::bench) received: Pace,
    /// Of a step, by stage.
    pub(in crate::bench) stages: Seconds,
    /// Of a step.
    pub(in crate::bench) bytes: Bytes,
}

//! The emulated link between ranks, where the system has one.

use std::fmt;
use std::net::SocketAddr;

use gradwire::transport::sim::LinkConfig;
use serde::Serialize;

use crate::failure::Failure;

/// What `--link` asked for, and what was there.
#[derive(Clone, Debug, Serialize)]
pub(in crate::bench) struct Link {
    /// As `--link` takes it.
    pub(in crate::bench) text: String,
    pub(in crate::bench) rate_bit_s: u64,
    pub(in crate::bench) rtt_s: f64,
    /// Share of packets, 0 to 1.
    pub(in crate::bench) loss: f64,
    pub(in crate::bench) measured: Measured,
}

/// What the emulator did during the measured exchanges.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(in crate::bench) struct Measured {
    /// The most that one node received in 0.1 s.
    pub(in crate::bench) rate_bit_s: f64,
    /// Of packets that did not wait.
    pub(in crate::bench) rtt_s: f64,
    /// One way, waiting included.
    pub(in crate::bench) mean_delay_s: f64,
    /// Share of packets lost at random.
    pub(in crate::bench) loss: f64,
    /// Share of packets that a full queue dropped.
    pub(in crate::bench) overflowed: f64,
    /// Share of packets that the emulator handed on over 2 ms late.
    pub(in crate::bench) late: f64,
    pub(in crate::bench) latest_s: f64,
}

/// Above this share of late packets, a figure says more about the emulator than about the link.
pub(super) const LATE_SHARE: f64 = 0.001;

#[cfg(unix)]
impl From<gradwire::transport::sim::Measured> for Measured {
    fn from(measured: gradwire::transport::sim::Measured) -> Self {
        Self {
            rate_bit_s: measured.rate_bit_s,
            rtt_s: measured.round_trip.as_secs_f64(),
            mean_delay_s: measured.mean_delay.as_secs_f64(),
            loss: measured.loss,
            overflowed: measured.overflowed,
            late: measured.late,
            latest_s: measured.latest.as_secs_f64(),
        }
    }
}

impl Link {
    pub(in crate::bench) fn new(config: &LinkConfig, measured: Measured) -> Self {
        Self {
            text: config.to_string(),
            rate_bit_s: config.rate.unwrap_or(0),
            rtt_s: config.round_trip().as_secs_f64(),
            loss: config.wire.loss,
            measured,
        }
    }
}

impl fmt::Display for Link {
    /// What it was really like.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let measured = &self.measured;
        write!(
            f,
            "the emulator: up to {:.1} Mbit/s, {:.2} ms there and back, {:.3} % lost, {:.3} % dropped by full queues, {:.2} % late (at most {:.1} ms)",
            measured.rate_bit_s / 1e6,
            measured.rtt_s * 1e3,
            measured.loss * 100.0,
            measured.overflowed * 100.0,
            measured.late * 100.0,
            measured.latest_s * 1e3
        )
    }
}

/// A running emulator.
pub(super) struct Emulator {
    #[cfg(unix)]
    relay: gradwire::transport::sim::Relay,
}

#[cfg(unix)]
impl Emulator {
    pub(super) fn start(nodes: u32, link: &LinkConfig) -> Result<Self, Failure> {
        let relay = gradwire::transport::sim::Relay::start(nodes, *link, 1);
        let relay = relay.map_err(|error| Failure::Work(format!("the emulator of --link: {error}")))?;
        Ok(Self { relay })
    }

    /// Where `node` finds `peer`.
    pub(super) fn address(&self, node: u32, peer: u32) -> Option<SocketAddr> {
        self.relay.address(node, peer)
    }

    pub(super) fn place(&self, node: u32, address: SocketAddr) {
        self.relay.place(node, address);
    }

    /// What it did since the last call.
    pub(super) fn take_measured(&self) -> Measured {
        self.relay.carrier().take_measured().into()
    }
}

#[cfg(not(unix))]
impl Emulator {
    pub(super) fn start(_nodes: u32, _link: &LinkConfig) -> Result<Self, Failure> {
        Err(Failure::Work("the emulator of --link needs Linux or another Unix".into()))
    }

    pub(super) fn address(&self, _node: u32, _peer: u32) -> Option<SocketAddr> {
        None
    }

    pub(super) fn place(&self, _node: u32, _address: SocketAddr) {}

    pub(super) fn take_measured(&self) -> Measured {
        Measured::default()
    }
}

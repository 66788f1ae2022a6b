//! What happens at a time that is set.

use std::time::{Duration, Instant};

use super::Packet;
use crate::sim::mesh::Fault;

/// What happens at a time that is set, besides arrivals.
#[derive(Debug)]
pub(super) enum Timer {
    Again { from: u32, to: u32, packet: Packet, wait: Duration },
    Silence { from: u32, to: u32, since: Instant },
    Fault(Fault),
    Resume(u32),
    Mend(Vec<u32>),
}

/// A timer, and when it is due; those of one instant keep their order.
pub(super) struct Due {
    pub(super) at: Instant,
    pub(super) number: u64,
    pub(super) timer: Timer,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

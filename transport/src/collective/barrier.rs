//! Barrier: nobody leaves before everybody has come.

use std::time::Instant;

use bytes::Bytes;

use super::{Exchange, Limits};
use crate::error::ExchangeError;
use crate::frame::Operation;
use crate::world::World;

/// Sends an empty message to every peer and waits for one from each.
///
/// **Price**: 1 step; of n ranks each sends and receives n - 1 frames of 56 bytes. A tree would send fewer frames
/// in the world, 2 (n - 1), for twice its depth in steps: on a link of 80 ms a barrier is all latency.
///
/// # Errors
///
/// As [`Exchange::new`].
pub fn barrier(
    now: Instant,
    world: World,
    operation: Operation,
    limits: &Limits,
) -> Result<Exchange, ExchangeError> {
    let outgoing = world.ranks().map(|_| Bytes::new()).collect();
    let expected: Vec<u64> = world.ranks().map(|_| 0).collect();
    Exchange::new(now, world, operation, outgoing, &expected, limits)
}

//! All-gather: every rank ends with the message of every rank.

use std::time::Instant;

use bytes::Bytes;

use super::{Exchange, Limits};
use crate::error::ExchangeError;
use crate::frame::Operation;
use crate::world::World;

/// Sends `own` to every peer, and expects `expected[r]` bytes from rank r.
///
/// **Price**: 1 step; of n ranks each sends n - 1 times its own message, from one shared buffer, and receives
/// the sum of the others. A ring would send no fewer bytes per rank, and take n - 1 steps for them.
///
/// # Errors
///
/// As [`Exchange::new`].
pub fn all_gather(
    now: Instant,
    world: World,
    operation: Operation,
    own: Bytes,
    expected: &[u64],
    limits: &Limits,
) -> Result<Exchange, ExchangeError> {
    let outgoing = world.ranks().map(|_| own.clone()).collect();
    Exchange::new(now, world, operation, outgoing, expected, limits)
}

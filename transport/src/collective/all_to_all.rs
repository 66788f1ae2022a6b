//! All-to-all: block j of rank i becomes block i of rank j.

use std::time::Instant;

use bytes::Bytes;

use super::{Exchange, Limits};
use crate::error::ExchangeError;
use crate::frame::Operation;
use crate::world::World;

/// Sends `outgoing[r]` to every rank r, and expects `expected[r]` bytes from it.
///
/// **Price**: 1 step; a rank sends the sum of `outgoing` and receives the sum of `expected`, without its own
/// entries. The own block is not copied and never travels.
///
/// # Errors
///
/// As [`Exchange::new`].
pub fn all_to_all(
    now: Instant,
    world: World,
    operation: Operation,
    outgoing: Vec<Bytes>,
    expected: &[u64],
    limits: &Limits,
) -> Result<Exchange, ExchangeError> {
    Exchange::new(now, world, operation, outgoing, expected, limits)
}

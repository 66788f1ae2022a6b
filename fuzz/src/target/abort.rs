//! How a peer's connection ends: reason of an abort, code and reason of a close.
//!
//! Holds: no control character and no more than the longest reason comes out, no rank outside the world is accused, and an
//! abort comes back as it was sent.

use gradwire_transport::World;
use gradwire_transport::quic::fuzzing;

use crate::{Recipe, memory};

pub fn run(input: &[u8]) {
    let mut recipe = Recipe::new(input);
    let size = u32::from(recipe.u8() % 8) + 1;
    let Ok(world) = World::new(0, size, 0) else { return };
    let code = recipe.u8() % 5;
    let reason = recipe.rest();
    memory::within(16 << 10, || {
        fuzzing::abort(reason, &world);
    });
    memory::within(16 << 10 | reason.len(), || fuzzing::close(code.into(), reason, &world));
}

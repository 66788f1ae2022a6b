//! Targets for fuzzing: everything that reads bytes or text from outside, fed with hostile ones.
//!
//! A target is a function of any bytes that panics where something does not hold: besides what each says of itself, nothing
//! panics, nothing takes [`SLOWEST`], and nothing allocates more than the message needs. The same functions run under
//! libFuzzer (`fuzz_targets/`) and, over the corpus and seeded mutations of it, in an ordinary test (`tests/smoke.rs`).
//!
//! Where random bytes would never get past a checksum, a magic number or a length, the target reads its input as a recipe
//! and makes the message itself ([`Recipe`]).

pub mod memory;
mod recipe;
pub mod target;

use std::time::Duration;

pub use recipe::Recipe;

/// The longest that one input may take, far above what any needs.
pub const SLOWEST: Duration = Duration::from_secs(10);

/// A target by name.
#[derive(Clone, Copy)]
pub struct Target {
    /// As in `fuzz_targets/` and `corpus/`.
    pub name: &'static str,
    /// Panics where something does not hold.
    pub run: fn(&[u8]),
}

macro_rules! targets {
    ($($name:ident),*) => { [$(Target { name: stringify!($name), run: target::$name::run }),*] };
}

/// All of them.
pub const TARGETS: [Target; 12] =
    targets![abort, checkpoint, codec, frame, hello, identity, launch, link, packet, peers, sync, vectors];

//! LoCo on the device: the host side of `shaders/loco`.
//!
//! # What
//!
//! [`Encode`] keeps one rank's residual on the device and turns gradients into packets; [`Average`] turns the packets
//! of all ranks for one shard into its mean. Both equal [`crate::codec::loco`] in every bit.
//!
//! # Wire layout
//!
//! That of [`crate::codec::loco`]: 8 codes in a word, element `i` in bits `4(i%8)..`, the last word zero-filled.
//!
//! # Exactness
//!
//! Integer operations only, also for the mean's one product. Cutting the work into parts and dispatches changes no bit:
//! elements do not touch each other, and sums of codes are `i32`.
//!
//! # Cost
//!
//! Device memory: for encode 1 byte per element, plus 4.5 bytes per element of one part (at most
//! [`super::Limits::PART_BYTES`] of gradient); for average at most 3 bindings. Staging memory on the host side: twice
//! that of one part, so that copying the next part in overlaps the kernel on this one. A step allocates no buffer.
//! `encode` moves 6.5 bytes per element in the kernel, and 4.5 bytes over the bus.

mod average;
mod encode;

pub use average::Average;
pub use encode::Encode;

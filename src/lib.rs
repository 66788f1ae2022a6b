//! Low-bit gradient exchange for mixed GPU fleets: WGSL kernels through wgpu, a QUIC mesh, and on every
//! rank, whatever its vendor, the same bits.
//!
//! `codec` (CPU definitions) and `gpu` (their WGSL twins) work on slices and know no rank;
//! [`transport`] moves bytes between ranks and knows no gradient; `sync` is where the two meet.

pub mod codec;
mod digest;
#[cfg(feature = "gpu")]
pub mod gpu;
pub mod optim;
pub mod shard;
pub mod sync;

pub use gradwire_transport as transport;

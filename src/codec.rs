//! Codecs: one rank's gradient into packets and back. The CPU function is the definition.
//!
//! Every codec is a module with `encode` (gradient and state into a packet) and `average` (the packets of
//! all ranks and their sample counts into the mean). Both work on slices and know no rank, device or clock.
//! A WGSL kernel of the same name gives the same bits; there is no tolerance anywhere. [`Codec`] is any of
//! them with its parameters; what it asks of each is the trait [`Method`].
//!
//! State begins as zeros, and `encode` and `average` take it as they find it. Words from elsewhere, such as a checkpoint, must
//! pass [`Codec::check_state`] and [`Codec::check_mean_state`] first: on those alone CPU and kernel agree.
//!
//! | codec | packet | state | module |
//! |---|---|---|---|
//! | `f32` | 32 bits per element | none | [`cast`] |
//! | `f16`, `bf16` | 16 bits per element | none | [`cast`] |
//! | `fp8` | 8 bits per element, one exponent per block | none | [`fp8`] |
//! | `ef` | 4 bits per element | one signed byte per element | [`ef`] |
//! | `intsgd` | 8 bits per element | none | [`intsgd`] |
//! | `loco` | 4 bits per element | one signed byte per element | [`loco`] |
//! | `topk` | 10.5 bits per element sent, of which 64 in 4096 are | f32 or one signed byte per element | [`topk`] |
//! | `loco-block` | 2, 4 or 8 bits per element and a byte per block | a signed byte per element, a byte per block | [`loco_block`] |
//! | `block8`, `block4` | 8 or 4 bits per element and a byte per block | none | [`block`] |
//! | `ef21` | 4 bits per element and a byte per block | one or three f32 per element, one per rank for the owner | [`ef21`] |
//! | `sign` | 1 bit per element, a byte per block | one signed byte per element, a byte per block | [`sign`] |

mod any;
pub mod bits;
pub mod block;
pub mod cast;
pub mod convert;
pub mod ef;
pub mod ef21;
pub mod elias_fano;
mod error;
pub mod fixed;
pub mod float;
pub mod fp8;
mod gradient;
mod id;
pub mod intsgd;
mod lanes;
pub mod loco;
pub mod loco_block;
pub mod mean;
mod method;
pub mod scale;
pub mod sign;
mod simd;
mod state;
mod step;
pub mod topk;

pub use any::{Codec, Parameter, ParseCodecError, Unit};
pub(crate) use any::{Named, accepted};
pub use convert::widen_f16;
pub use error::{AverageError, ConfigError, WEIGHTED_SUM_LIMIT};
pub use gradient::{CHUNK, Gradient, Input};
pub use id::{CodecId, UnknownCodec};
pub use method::Method;
pub(crate) use method::set;
pub use state::StateError;
pub use step::{Stats, Step};

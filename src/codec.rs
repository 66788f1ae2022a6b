//! Codecs: one rank's gradient into packets and back. The CPU function is the definition.
//!
//! Every codec is a module with `encode` (gradient and state into a packet) and `average` (the packets of
//! all ranks and their sample counts into the mean). Both work on slices and know no rank, device or clock.
//! A WGSL kernel of the same name gives the same bits; there is no tolerance anywhere. [`Codec`] is any of
//! them with its parameters; what it asks of each is the trait [`Method`].
//!
//! | codec | packet | state | module |
//! |---|---|---|---|
//! | `f32` | 32 bits per element | none | [`cast`] |
//! | `loco` | 4 bits per element | one signed byte per element | [`loco`] |
//! | `topk` | 10.5 bits per element sent, of which 64 in 4096 are | f32 or one signed byte per element | [`topk`] |

mod any;
pub mod bits;
pub mod cast;
pub mod elias_fano;
mod error;
pub mod fixed;
pub mod float;
mod gradient;
mod id;
pub mod loco;
mod method;
mod step;
pub mod topk;

pub use any::{Codec, Parameter, ParseCodecError, Unit};
pub use error::{AverageError, ConfigError, WEIGHTED_SUM_LIMIT};
pub use gradient::{CHUNK, Gradient, Input, widen_f16};
pub use id::{CodecId, UnknownCodec};
pub use method::Method;
pub use step::{Stats, Step};

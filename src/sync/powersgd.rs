//! PowerSGD: low-rank factors of each matrix instead of the matrix (arXiv 1905.13727, algorithms 1 and 2).
//!
//! # What
//!
//! A tensor of the flat gradient is a matrix of `rows` x `columns`, row-major ([`Shape`]). With r = `low_rank`, every
//! rank j keeps an error E_j of the matrix' shape and a factor Q of columns x r, and in every step, all means weighted by
//! samples:
//!
//! | | where | |
//! |---|---|---|
//! | M_j = G_j + E_j | each rank | clamped to +-2^64 and counted as saturated |
//! | P = mean(M_j Q) | each word on its owner | |
//! | P = orthonormal(P) | every rank from the same bits | modified Gram-Schmidt, twice, in f64 |
//! | Q = mean(M_j^T P) | each word on its owner | |
//! | mean gradient = P Q^T | the owner of each parameter | |
//! | E_j = M_j - P Q^T | each rank | what the mean has not carried yet |
//!
//! The next step starts from this Q (*warm start*: one step of a power iteration per step of the training), each
//! column scaled by the power of two that puts its largest element in 1..2, which P does not see but keeps it far from
//! overflow and underflow. A column of P that is zero or depends on those before it becomes zero, the column of Q with
//! it; that one starts again from the random column of the first step, so that a direction which comes up later is found.
//!
//! Vectors, small matrices and elements that no shape covers go as they are, in f32, to the owner of their shard, with the
//! shares of P: those with `min_compression * r * (rows + columns) >= rows * columns`. A factor travels twice (to its
//! owner, and back as the mean) where an element of the gradient travels once, so less than the default of 2 sends more
//! bytes than f32 would.
//!
//! A step that is refused or skipped for elements that are not finite leaves E and Q as they were. A rank with 0
//! samples keeps its E: its gradient has not been in the mean.
//!
//! # Wire layout
//!
//! The P of all matrices, one behind the other and each column by column, are one vector that the ranks own slices of, in
//! groups of 8 ([`ShardLayout`](crate::shard::ShardLayout)); so are the Q. Four rounds:
//!
//! 1. all-to-all: a [packet](super::packet) per owner, of its slice of the own M_j Q, then the uncompressed
//!    elements of its shard in their order, f32 bits. The headers tell every rank all samples and counts.
//! 2. all-gather of the owned slice of the mean P; 3. all-to-all of the slices of M_j^T P; 4. all-gather of the mean Q:
//!    bare little-endian f32.
//!
//! A word of a factor beyond +-2^100, or any that is not finite though the header counts none, is refused and its sender
//! named: no rank within the clamp sends it, and nothing computed from smaller ones overflows. Without a matrix to
//! compress there is round 1 only.
//!
//! # Exactness
//!
//! Every rank has the same bits of P, Q and of the parameters: a mean is computed once, on its owner, by
//! [`cast::average_f32`](crate::codec::cast::average_f32), and what every rank computes from them is f32 and f64 additions,
//! multiplications, divisions and square roots in a fixed order, none fused. E and the local products have no twin
//! elsewhere, and repeat to the bit too.
//!
//! # Cost
//!
//! Per step and rank, N ranks, u uncompressed elements: (N-1)/N * 4 * (2 r * sum(rows + columns) + u) + 32 (N-1)
//! bytes each way in four rounds. Arithmetic: 3 r multiplications per element of a matrix, and 2 r^2 per row for
//! Gram-Schmidt. Memory: 8 bytes per element of a matrix. All of it runs on the CPU.

mod config;
mod exchange;
mod factor;
mod plan;
mod shape;
mod state;

pub use config::{Config, ConfigError};
pub(super) use exchange::PowerSgd;
pub use shape::{Shape, ShapeError, table};
pub use state::{State, StateError};

/// Elements on whose multiples the slices of the factors and the shards of the parameters start.
pub const GROUP: usize = 8;

/// Compensated elements are clamped to this magnitude, 2^64.
pub const ELEMENT_LIMIT: f32 = 18_446_744_073_709_551_616.0;

/// The largest magnitude of a factor's element that is taken from a peer, 2^100: with elements up to 2^64, even
/// 2^31 columns stay below it.
pub const FACTOR_LIMIT: f32 = f32::from_bits((127 + 100) << 23);

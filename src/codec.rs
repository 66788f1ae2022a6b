//! Codecs: one rank's gradient into packets and back. The CPU function is the definition.
//!
//! Every codec is a module with `encode` (gradient and residual into a packet) and `average` (the packets of
//! all ranks and their sample counts into the mean). Both work on slices and know no rank, device or clock.
//! A WGSL kernel of the same name gives the same bits; there is no tolerance anywhere.
//!
//! | codec | packet | state | module |
//! |---|---|---|---|
//! | `f32` | 32 bits per element | none | [`cast`] |
//! | `loco` | 4 bits per element | one signed byte per element | [`loco`] |

use std::fmt;
use std::iter::Sum;
use std::num::NonZeroU64;
use std::ops::{Add, AddAssign};

pub mod bits;
pub mod cast;
pub mod fixed;
pub mod loco;

/// Upper bound (exclusive) on `8 * sum(weights)` of one mean: below it, a weighted sum of 4-bit codes is an
/// integer that f32 holds exactly, whatever the order of the additions.
pub const WEIGHTED_SUM_LIMIT: u64 = 1 << 24;

/// Which codec made a packet; the value is the byte on the wire.
#[repr(u8)]
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CodecId {
    /// [`cast`]: f32 as it is, the baseline.
    F32 = 1,
    /// [`loco`]: 4-bit codes with 8-bit error feedback.
    Loco = 2,
}

impl CodecId {
    /// Every codec of this build, in the order of the wire byte.
    pub const ALL: [Self; 2] = [Self::F32, Self::Loco];

    /// The name in commands and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Loco => "loco",
        }
    }

    /// `u32` words of a packet of `elements` elements.
    #[must_use]
    pub const fn packet_words(self, elements: usize) -> usize {
        match self {
            Self::F32 => elements,
            Self::Loco => loco::packet_words(elements),
        }
    }
}

impl fmt::Display for CodecId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl From<CodecId> for u8 {
    fn from(id: CodecId) -> Self {
        id as u8
    }
}

impl TryFrom<u8> for CodecId {
    type Error = UnknownCodec;

    fn try_from(byte: u8) -> Result<Self, UnknownCodec> {
        Self::ALL.into_iter().find(|id| u8::from(*id) == byte).ok_or(UnknownCodec(byte))
    }
}

/// A peer sent a codec byte that this build does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("peer names codec {0}, this build knows 1 (f32) and 2 (loco)")]
pub struct UnknownCodec(pub u8);

/// One optimizer step, counted from 1.
///
/// The type holds no 0, so that "every 512th step" cannot mean two things.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Step(NonZeroU64);

impl Step {
    /// The first step.
    pub const FIRST: Self = Self(NonZeroU64::MIN);

    /// Step number `step`; `None` for 0.
    #[must_use]
    pub const fn new(step: u64) -> Option<Self> {
        match NonZeroU64::new(step) {
            Some(step) => Some(Self(step)),
            None => None,
        }
    }

    /// The number, at least 1.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    /// The step after this one (`u64::MAX` stays where it is: no run gets there).
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What one `encode` saw, in elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Elements that were NaN or infinite. They travel in the packet header, so that every rank decides alike.
    pub nonfinite: u64,
    /// Codes that the clamp to the code range changed. Always 0 for a codec without codes.
    pub saturated: u64,
}

impl Add for Stats {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { nonfinite: self.nonfinite + other.nonfinite, saturated: self.saturated + other.saturated }
    }
}

impl AddAssign for Stats {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sum for Stats {
    fn sum<I: Iterator<Item = Self>>(stats: I) -> Self {
        stats.fold(Self::default(), Add::add)
    }
}

/// Why packets could not be averaged. `index` counts packets as handed over, which is rank order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AverageError {
    /// The caller handed another number of packets than of weights.
    #[error("caller handed {packets} packets and {weights} weights")]
    Counts {
        /// Packets handed over.
        packets: usize,
        /// Weights handed over.
        weights: usize,
    },
    /// A peer's packet does not have the length that the shard needs.
    #[error("packet {index} has {words} words, a shard of {elements} elements needs {expected}")]
    PacketLength {
        /// Which packet.
        index: usize,
        /// Its length in `u32` words.
        words: usize,
        /// The length that the shard needs, in `u32` words.
        expected: usize,
        /// Elements of the shard.
        elements: usize,
    },
    /// No rank has a sample: there is no mean.
    #[error("all {weights} weights are 0, a mean needs at least 1 sample")]
    NoSamples {
        /// Weights handed over.
        weights: usize,
    },
    /// The sample counts are too large for an exact sum.
    #[error(
        "8 times the sum of the {weights} weights is {scaled_sum}, an exact sum needs less than {WEIGHTED_SUM_LIMIT}"
    )]
    WeightSum {
        /// Weights handed over.
        weights: usize,
        /// `8 * sum(weights)`.
        scaled_sum: u64,
    },
    /// The caller's configuration is out of range.
    #[error(transparent)]
    Config(#[from] loco::ConfigError),
}

impl AverageError {
    /// Checks what every codec asks of a mean and returns the sum of the weights.
    ///
    /// `expected` is the length in words of each packet of a shard of `elements` elements.
    ///
    /// # Errors
    ///
    /// Each of the variants but [`AverageError::Config`].
    pub fn check(
        packets: &[&[u32]],
        weights: &[u32],
        elements: usize,
        expected: usize,
    ) -> Result<u32, AverageError> {
        if packets.len() != weights.len() {
            return Err(Self::Counts { packets: packets.len(), weights: weights.len() });
        }
        if let Some(index) = packets.iter().position(|packet| packet.len() != expected) {
            return Err(Self::PacketLength { index, words: packets[index].len(), expected, elements });
        }
        Self::check_weights(weights)
    }

    /// The part of [`Self::check`] that looks at the weights alone, which every rank has the same of.
    ///
    /// # Errors
    ///
    /// [`AverageError::NoSamples`] and [`AverageError::WeightSum`].
    pub fn check_weights(weights: &[u32]) -> Result<u32, AverageError> {
        // Saturating: 2^32 weights of 2^32 samples would wrap, and must still be refused.
        let total = weights.iter().fold(0_u64, |sum, weight| sum.saturating_add(u64::from(*weight)));
        let scaled_sum = total.saturating_mul(8);
        if scaled_sum >= WEIGHTED_SUM_LIMIT {
            return Err(Self::WeightSum { weights: weights.len(), scaled_sum });
        }
        match u32::try_from(total) {
            Ok(0) | Err(_) => Err(Self::NoSamples { weights: weights.len() }),
            Ok(total) => Ok(total),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_codec_byte_comes_back_as_its_codec_and_all_others_are_refused_by_number() {
        for byte in 0..=u8::MAX {
            match CodecId::try_from(byte) {
                Ok(id) => assert_eq!(u8::from(id), byte),
                Err(error) => {
                    assert_eq!(error, UnknownCodec(byte));
                    assert!(!(1..=2).contains(&byte), "{byte} is a codec");
                }
            }
        }
    }

    #[test]
    fn a_mean_is_refused_with_both_numbers() {
        let word = [0_u32];
        let packets: [&[u32]; 2] = [&word, &word];
        let check = |packets: &[&[u32]], weights: &[u32]| AverageError::check(packets, weights, 8, 1);
        assert_eq!(check(&packets, &[3, 0]), Ok(3));
        assert_eq!(check(&packets, &[1]), Err(AverageError::Counts { packets: 2, weights: 1 }));
        assert_eq!(check(&[], &[]), Err(AverageError::NoSamples { weights: 0 }));
        assert_eq!(check(&packets, &[0, 0]), Err(AverageError::NoSamples { weights: 2 }));
        assert_eq!(check(&packets, &[(1 << 21) - 2, 1]), Ok((1 << 21) - 1));
        assert_eq!(
            check(&packets, &[(1 << 21) - 1, 1]),
            Err(AverageError::WeightSum { weights: 2, scaled_sum: WEIGHTED_SUM_LIMIT })
        );
        assert_eq!(
            check(&packets, &[u32::MAX, u32::MAX]),
            Err(AverageError::WeightSum { weights: 2, scaled_sum: 8 * 2 * u64::from(u32::MAX) })
        );
        assert_eq!(
            check(&[&word, &[]], &[1, 1]),
            Err(AverageError::PacketLength { index: 1, words: 0, expected: 1, elements: 8 })
        );
    }
}

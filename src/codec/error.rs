//! What codecs refuse, with both numbers.

use std::ops::RangeInclusive;

use super::{CodecId, loco};

/// Upper bound (exclusive) on `8 * sum(weights)` of one mean: below it, a weighted sum of 4-bit codes is an
/// integer that f32 holds exactly, whatever the order of the additions.
pub const WEIGHTED_SUM_LIMIT: u64 = 1 << 24;

/// A codec's parameters out of their range; the caller's fault, or a peer's when they came over the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// LoCo's, which depend on each other.
    #[error(transparent)]
    Loco(#[from] loco::ConfigError),
    /// A number outside its range.
    #[error("{name} is {value}, {codec} takes {least} to {most}")]
    Range {
        /// Whose parameter.
        codec: CodecId,
        /// Which.
        name: &'static str,
        /// The refused value.
        value: i64,
        /// The least that is taken.
        least: i64,
        /// The most that is taken.
        most: i64,
    },
    /// A number that must be a multiple of another.
    #[error("{name} is {value}, {codec} takes multiples of {of}")]
    Multiple {
        /// Whose parameter.
        codec: CodecId,
        /// Which.
        name: &'static str,
        /// The refused value.
        value: i64,
        /// What it must be a multiple of.
        of: i64,
    },
}

impl ConfigError {
    /// Whether `value` is in `range`; else the error that says so.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Range`].
    pub fn check_range(
        codec: CodecId,
        name: &'static str,
        value: impl Into<i64>,
        range: RangeInclusive<i64>,
    ) -> Result<(), Self> {
        let value = value.into();
        if range.contains(&value) {
            return Ok(());
        }
        Err(Self::Range { codec, name, value, least: *range.start(), most: *range.end() })
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
    /// A peer's packet has the right length but says something that no encoder says.
    #[error("packet {index}, unit {unit}: {what} is {found}, must be {expected}")]
    Malformed {
        /// Which packet.
        index: usize,
        /// Which unit of it (see [`Unit`](super::Unit)).
        unit: usize,
        /// What is wrong.
        what: &'static str,
        /// What stands there.
        found: u64,
        /// What may stand there.
        expected: u64,
    },
    /// The caller's configuration is out of range.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

impl From<loco::ConfigError> for AverageError {
    fn from(error: loco::ConfigError) -> Self {
        Self::Config(error.into())
    }
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

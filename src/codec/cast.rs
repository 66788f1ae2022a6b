//! f32 as it is: the baseline that every other codec is compared with.
//!
//! # What
//!
//! Element `i` of the gradient is word `i` of the packet. There is no residual.
//!
//! # Wire layout
//!
//! One `u32` per element, the IEEE 754 bits; 32 bits per element.
//!
//! # Exactness
//!
//! A packet carries every bit, also of NaN, infinity, subnormals and minus zero. The mean is
//! `sum_j(weight_j * x_j) / sum_j(weight_j)` in f64, added in the order of the packets (rank order), rounded
//! once to f32. Each product is exact (24 + 21 bits), nothing overflows, and no operation is fused, so that
//! the bits are the same on every CPU; but they depend on the rank order, which is why packets are handed over
//! in it. A packet of weight 0 is not read. A world of one gets its own gradient back. The mean of a
//! non-finite element is not finite; its payload is not promised, since `sync` refuses it before any use.
//!
//! # Cost
//!
//! `encode` reads and writes 4 bytes per element, `average` reads 4 per element and rank and writes 4.

use super::fixed::is_finite;
use super::{AverageError, CHUNK, CodecId, ConfigError, Gradient, Method, Parameter, Stats, Step, Unit};

/// Elements that one pass over all packets handles: the f64 sums (4 KiB) stay in the first-level cache.
const BLOCK: usize = 512;

/// What is encoded together: nothing binds elements, but shards of all codecs start on 8.
pub const F32_UNIT: Unit = Unit { elements: 8, words: 8, state_words: 0 };

/// Writes the bits of `gradient` into `packet` and counts non-finite elements.
///
/// Both have the same length; 0 is allowed. [`Stats::saturated`] is 0.
///
/// # Panics
///
/// If the lengths differ.
pub fn encode_f32(gradient: Gradient<'_>, packet: &mut [u32]) -> Stats {
    assert_eq!(
        packet.len(),
        gradient.len(),
        "packet of {} words for {} f32 elements",
        packet.len(),
        gradient.len()
    );
    let mut nonfinite = 0;
    // Chunks, so that the count runs in 32-bit lanes without ever wrapping.
    gradient.for_each_chunk(CHUNK, |start, values| {
        let mut count = 0_u32;
        for (value, word) in values.iter().zip(&mut packet[start..]) {
            *word = value.to_bits();
            count += u32::from(!is_finite(*word));
        }
        nonfinite += u64::from(count);
    });
    Stats { nonfinite, saturated: 0 }
}

/// The weighted mean of `packets` (one per rank, in rank order) into `mean`.
///
/// Every packet has `mean.len()` words. `weights` are samples per rank; a rank with 0 does not count.
///
/// # Errors
///
/// [`AverageError`] if counts or lengths do not fit, all weights are 0, or `8 * sum(weights) >= 2^24` (the
/// limit of the integer codecs, kept here so that a change of codec never makes a run invalid).
pub fn average_f32(packets: &[&[u32]], weights: &[u32], mean: &mut [f32]) -> Result<(), AverageError> {
    let total = AverageError::check(packets, weights, mean.len(), mean.len())?;
    for (index, means) in mean.chunks_mut(BLOCK).enumerate() {
        let start = index * BLOCK;
        // Minus zero is the neutral element of IEEE addition: plus zero would turn a mean of -0 into +0.
        let mut sums = [-0.0_f64; BLOCK];
        for (packet, weight) in packets.iter().zip(weights).filter(|(_, weight)| **weight > 0) {
            let weight = f64::from(*weight);
            for (sum, word) in sums.iter_mut().zip(&packet[start..start + means.len()]) {
                *sum += weight * f64::from(f32::from_bits(*word));
            }
        }
        for (mean, sum) in means.iter_mut().zip(&sums) {
            #[allow(clippy::cast_possible_truncation, reason = "the one rounding of the definition")]
            let rounded = (*sum / f64::from(total)) as f32;
            *mean = rounded;
        }
    }
    Ok(())
}

/// The codec `f32`, which has no parameters.
pub(super) struct F32;

impl Method for F32 {
    fn id(&self) -> CodecId {
        CodecId::F32
    }

    fn validate(&self) -> Result<(), ConfigError> {
        Ok(())
    }

    fn unit(&self) -> Unit {
        F32_UNIT
    }

    fn packet_words(&self, elements: usize) -> usize {
        elements
    }

    fn parameters(&self) -> Vec<Parameter> {
        Vec::new()
    }

    fn set_parameter(&mut self, _: &str, _: i64) -> bool {
        false
    }

    fn encode(&self, _: Step, gradient: Gradient<'_>, _: &mut [u32], packet: &mut [u32]) -> Stats {
        encode_f32(gradient, packet)
    }

    fn average(
        &self,
        packets: &[&[u32]],
        weights: &[u32],
        _: &mut [u32],
        mean: &mut [f32],
    ) -> Result<(), AverageError> {
        average_f32(packets, weights, mean)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ODD: [f32; 9] = [0.0, -0.0, 1.0, -1.5, f32::MAX, f32::MIN, f32::MIN_POSITIVE, 1.0e-45, 0.1];

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    #[test]
    fn a_packet_carries_every_bit_and_counts_what_is_not_finite() {
        let gradient =
            [1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::from_bits(0xFFFF_FFFF), -0.0, 1.0e-45];
        let mut packet = [0; 7];
        assert_eq!(encode_f32((&gradient).into(), &mut packet), Stats { nonfinite: 4, saturated: 0 });
        assert_eq!(packet.to_vec(), bits(&gradient));
    }

    #[test]
    fn a_world_of_one_gets_its_own_gradient_back_bit_for_bit_for_any_weight() {
        let packet = bits(&ODD);
        for weight in [1, 3, 7, 1000, (1 << 21) - 1] {
            let mut mean = [7.0; ODD.len()];
            assert_eq!(average_f32(&[&packet], &[weight], &mut mean), Ok(()));
            assert_eq!(bits(&mean), packet, "weight {weight}");
        }
    }

    #[test]
    fn the_mean_is_the_weighted_sum_in_rank_order_over_block_boundaries() {
        for elements in [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5] {
            let value = |rank: u16, i: usize| {
                f32::from(rank + 1) * 0.1 + f32::from(u16::try_from(i % 251).unwrap_or(0))
            };
            let weights = [2, 0, 5];
            let packets: Vec<Vec<u32>> =
                (0..3).map(|rank| (0..elements).map(|i| value(rank, i).to_bits()).collect()).collect();
            let packets: Vec<&[u32]> = packets.iter().map(Vec::as_slice).collect();
            let mut mean = vec![0.0; elements];
            assert_eq!(average_f32(&packets, &weights, &mut mean), Ok(()));
            for (i, got) in mean.iter().enumerate() {
                let want = (2.0 * f64::from(value(0, i)) + 5.0 * f64::from(value(2, i))) / 7.0;
                #[allow(clippy::cast_possible_truncation, reason = "the rounding of the definition")]
                let want = want as f32;
                assert_eq!(got.to_bits(), want.to_bits(), "element {i} of {elements}");
            }
        }
    }

    #[test]
    fn a_rank_without_samples_is_not_read_and_a_short_packet_is_named() {
        let (good, nan) = (bits(&[2.0, -0.0]), bits(&[f32::NAN, f32::NAN]));
        let mut mean = [0.0; 2];
        assert_eq!(average_f32(&[&nan, &good], &[0, 4], &mut mean), Ok(()));
        assert_eq!(bits(&mean), good);
        assert_eq!(
            average_f32(&[&good, &good[..1]], &[1, 1], &mut mean),
            Err(AverageError::PacketLength { index: 1, words: 1, expected: 2, elements: 2 })
        );
    }

    #[test]
    #[should_panic(expected = "packet of 2 words for 3 f32 elements")]
    fn a_packet_of_another_length_than_the_gradient_panics_with_both_numbers() {
        encode_f32((&[0.0_f32; 3]).into(), &mut [0; 2]);
    }
}

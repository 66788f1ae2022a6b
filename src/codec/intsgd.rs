//! Signed bytes with one power-of-two scale, which the mean gradient of the step before sets: IntSGD
//! (arXiv 2102.08374).
//!
//! # What
//!
//! ```text
//! code = clamp(round_half_even(g * alpha), -127, 127)        8 bits, alpha = 2^scale_log2
//! mean = sum_j(weight_j * code_j) / (alpha * sum_j(weight_j))
//! ```
//!
//! There is no state and no error feedback: the paper's point is an `alpha` that follows the size of the gradients, so
//! that the rounding error shrinks with them. Every rank must have the same: `sync` computes it before each step from
//! the mean of the step before, which all have ([`rescales`](super::Codec::rescales)), and puts the root mean square
//! at about 16 codes, so that the clamp is 5.6 standard deviations away or more. Two things differ from the paper:
//! `alpha` is a power of two, so that the product is exact, and rounding is to the nearest and not random. Codes are
//! bytes whatever the world size is, because the sum is taken in wider integers by the owner of the shard, not by
//! a reduction on the way.
//!
//! A code that the clamp changed counts as saturated. NaN and infinity send 0 and are counted; subnormals count as 0.
//!
//! # Wire layout
//!
//! `elements.div_ceil(4)` words; element `i` in bits `8(i%4)..` of word `i/4`, two's complement; unused bits of the
//! last word are 0 when written and not looked at when read. No encoder writes -128, which means -128.
//!
//! # Exactness
//!
//! Codes are rounded in integers ([`fixed`]). The sum is an `i32` (128 * 2^21 = 2^28 at most), then
//! it is rounded to f32, and so is its product with [`mean_scale`]: the same in any order and
//! on every device.
//!
//! # Cost
//!
//! `encode` reads 4 bytes per element and writes 1; `average` reads 1 per element and rank and writes 4.

use super::bits::signed;
use super::fixed::{FRACTION_BITS, fixed, is_finite, mean_scale};
use super::simd::for_this_cpu;
use super::{
    AverageError, CHUNK, CodecId, ConfigError, Gradient, Method, Parameter, Stats, Step, Unit, loco,
};

/// Eight codes in two words.
pub const UNIT: Unit = Unit { elements: 8, words: 2, state_words: 0 };

/// The largest code; the smallest is its negative.
pub const CODE_MAX: i32 = 127;

/// Beyond every code: there products stop before they are rounded.
const BOUND: f32 = 256.0;

/// 1.5 * 2^23: adding it to an f32 below 2^22 in magnitude rounds that to an integer, ties to even.
const ROUND: f32 = 12_582_912.0;

/// Elements whose sums stay in the first-level cache while all packets go by.
const PASS: usize = 1024;

/// Parameters of [`intsgd`](self), the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Codes per gradient unit: `alpha = 2^scale_log2`. Range -64..=64, default 22 (16 codes where `loco` has 2).
    pub scale_log2: i8,
}

impl Default for Config {
    fn default() -> Self {
        Self { scale_log2: 22 }
    }
}

impl Config {
    /// Checks the range.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Range`].
    pub fn validate(&self) -> Result<(), ConfigError> {
        let (least, most) = loco::Config::SCALE_LOG2.into_inner();
        ConfigError::check_range(CodecId::IntSgd, "scale_log2", self.scale_log2, least.into()..=most.into())
    }
}

/// Words of a packet of `elements` elements.
#[must_use]
pub const fn packet_words(elements: usize) -> usize {
    elements.div_ceil(4)
}

/// The definition: the code of a finite f32, and whether the clamp changed it.
#[must_use]
#[inline]
pub const fn encode_element(config: &Config, bits: u32) -> (i32, bool) {
    // `fixed` rounds to units of 2^-(scale + FRACTION_BITS), so a scale that is smaller by these digits gives whole
    // codes; it stops at 2^18 and so far above the clamp.
    #[allow(clippy::cast_possible_truncation, reason = "12")]
    let rounded = fixed(bits, config.scale_log2 - FRACTION_BITS as i8);
    let code = if rounded > CODE_MAX {
        CODE_MAX
    } else if rounded < -CODE_MAX {
        -CODE_MAX
    } else {
        rounded
    };
    (code, code != rounded)
}

/// Scales, rounds and packs `gradient` into `packet`, which has [`packet_words`] words.
///
/// Shader: `shaders/intsgd/encode.wgsl`.
///
/// # Panics
///
/// If the packet has another length, or `config` is not [valid](Config::validate).
pub fn encode(config: &Config, gradient: Gradient<'_>, packet: &mut [u32]) -> Stats {
    let (words, elements) = (packet.len(), gradient.len());
    let expected = packet_words(elements);
    assert_eq!(words, expected, "packet of {words} words for {elements} elements, which need {expected}");
    if let Err(error) = config.validate() {
        panic!("caller did not validate the configuration: {error}");
    }
    // -64..=64: always the exponent of a normal f32.
    let alpha = f32::from_bits((127 + i32::from(config.scale_log2)).cast_unsigned() << 23);
    let mut stats = Stats::default();
    gradient.for_each_chunk(CHUNK, |start, values| {
        let words = start / 4..(start + values.len()).div_ceil(4);
        stats += encode_chunk(alpha, values, &mut packet[words]);
    });
    stats
}

for_this_cpu! {
    /// At most [`CHUNK`] elements.
    fn encode_chunk(alpha: f32, values: &[f32], words: &mut [u32]) -> Stats = encode_lanes;
}

/// [`encode_element`] without a branch, so that it vectorises. The product is exact, or below the normal numbers and so a
/// code of 0.
#[inline(always)]
fn encode_lanes(alpha: f32, values: &[f32], words: &mut [u32]) -> Stats {
    let (mut nonfinite, mut saturated) = (0_u32, 0_u32);
    let mut codes = [0_u8; CHUNK];
    for (value, code) in values.iter().zip(&mut codes) {
        let finite = is_finite(value.to_bits());
        let scaled = if finite { value * alpha } else { 0.0 };
        let scaled = if scaled < BOUND { scaled } else { BOUND };
        let scaled = if scaled > -BOUND { scaled } else { -BOUND };
        let rounded = (scaled + ROUND).to_bits().cast_signed() - ROUND.to_bits().cast_signed();
        let clamped = rounded.clamp(-CODE_MAX, CODE_MAX);
        #[allow(clippy::cast_possible_truncation, reason = "the low byte of two's complement")]
        let low = clamped.cast_unsigned() as u8;
        *code = low;
        nonfinite += u32::from(!finite);
        saturated += u32::from(clamped != rounded);
    }
    // Zeros stand behind the last code.
    for (word, four) in words.iter_mut().zip(codes.as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*four);
    }
    Stats { nonfinite: nonfinite.into(), saturated: saturated.into() }
}

/// The weighted mean of one packet per rank into `mean`.
///
/// Every packet has [`packet_words`]`(mean.len())` words. `weights` are samples per rank; a rank with 0 does not count.
/// The bits do not depend on the order of the packets. Shader: `shaders/intsgd/average.wgsl`.
///
/// # Errors
///
/// [`AverageError`] if counts or lengths do not fit, all weights are 0, `8 * sum(weights) >= 2^24`, or `config` is out
/// of range.
pub fn average(
    config: &Config,
    packets: &[&[u32]],
    weights: &[u32],
    mean: &mut [f32],
) -> Result<(), AverageError> {
    config.validate()?;
    let total = AverageError::check(packets, weights, mean.len(), packet_words(mean.len()))?;
    let scale = mean_scale(config.scale_log2, total);
    for (pass, means) in mean.chunks_mut(PASS).enumerate() {
        let mut sums = [0_i32; PASS];
        let words = pass * PASS / 4..(pass * PASS + means.len()).div_ceil(4);
        for (packet, weight) in packets.iter().zip(weights) {
            let (fours, _) = sums.as_chunks_mut::<4>();
            for (four, word) in fours.iter_mut().zip(&packet[words.clone()]) {
                for (index, sum) in (0..).zip(four) {
                    *sum += weight.cast_signed() * signed::<8>(*word, index);
                }
            }
        }
        for (mean, sum) in means.iter_mut().zip(&sums) {
            *mean = *sum as f32 * scale;
        }
    }
    Ok(())
}

impl Method for Config {
    fn id(&self) -> CodecId {
        CodecId::IntSgd
    }

    fn validate(&self) -> Result<(), ConfigError> {
        Self::validate(self)
    }

    fn unit(&self) -> Unit {
        UNIT
    }

    fn packet_words(&self, elements: usize) -> usize {
        packet_words(elements)
    }

    fn scale_log2(&self) -> Option<i8> {
        Some(self.scale_log2)
    }

    fn set_scale_log2(&mut self, scale_log2: i8) {
        self.scale_log2 = scale_log2;
    }

    fn rms_log2(&self) -> i8 {
        4
    }

    fn rescales(&self) -> bool {
        true
    }

    fn parameters(&self) -> Vec<Parameter> {
        Vec::new()
    }

    fn set_parameter(&mut self, _: &str, _: i64) -> bool {
        false
    }

    fn encode(&self, _: Step, gradient: Gradient<'_>, _: &mut [u32], packet: &mut [u32]) -> Stats {
        encode(self, gradient, packet)
    }

    fn average(
        &self,
        packets: &[&[u32]],
        weights: &[u32],
        _: &mut [u32],
        mean: &mut [f32],
    ) -> Result<(), AverageError> {
        average(self, packets, weights, mean)
    }
}

#[cfg(test)]
mod tests {
    use super::super::bits::unpack;
    use super::*;

    #[test]
    fn every_code_is_that_of_the_definition_for_every_exponent_and_around_every_tie() {
        for scale_log2 in -64..=64 {
            let config = Config { scale_log2 };
            let unit = (-f32::from(scale_log2)).exp2();
            let ties = (-260_i16..=260).flat_map(|halves| {
                let bits = (f32::from(halves) / 2.0 * unit).to_bits();
                (-2..=2).map(move |ulp| bits.saturating_add_signed(ulp))
            });
            let edges = [0, 1, 0x3F_FFFF, 0x40_0000, 0x40_0001, 0x7F_FFFF];
            let all = (0..512).flat_map(|top| edges.map(|mantissa| top << 23 | mantissa));
            let values: Vec<f32> = ties.chain(all).map(f32::from_bits).collect();
            let mut packet = vec![0; packet_words(values.len())];
            let stats = encode(&config, (&values).into(), &mut packet);
            let mut codes = vec![0; values.len()];
            unpack::<8>(&packet, &mut codes);
            let mut want = Stats::default();
            for (value, code) in values.iter().zip(codes) {
                let finite = value.is_finite();
                let (expected, clamped) =
                    if finite { encode_element(&config, value.to_bits()) } else { (0, false) };
                assert_eq!(i32::from(code), expected, "{config:?} {:#010x}", value.to_bits());
                want += Stats { nonfinite: (!finite).into(), saturated: clamped.into() };
            }
            assert_eq!(stats, want, "{config:?}");
        }
    }
}

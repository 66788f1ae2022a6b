//! Floats as they are, or cast to 16 bits: the codecs `f32`, `f16` and `bf16`, the baselines of all others.
//!
//! # What
//!
//! Each element travels as a float of its own. There is no state. `f16` and `bf16` round to nearest, ties to even,
//! as [`narrow`](super::convert::narrow) does; a finite element beyond the largest number becomes that number and
//! counts as saturated, since no codec turns a finite gradient into infinity. NaN and infinity send 0 there and are
//! counted; `f32` sends them as they are and counts them.
//!
//! # Wire layout
//!
//! `f32`: one `u32` per element, the IEEE 754 bits; 32 bits per element. `f16`, `bf16`: `elements.div_ceil(2)` words;
//! element `i` in bits `16(i%2)..` of word `i/2`; unused bits of the last word are 0 when written and not looked at
//! when read.
//!
//! # Exactness
//!
//! An f32 packet carries every bit, also of NaN, infinity, subnormals and minus zero; the narrow ones are rounded in
//! integers, with subnormal f32 as zeros. The mean is [`mean`](super::mean::mean_bits): integers on a grid that the
//! largest term fixes, so it depends neither on the device nor on the order of the packets. A packet of weight 0 is
//! not read. A world of one gets its own numbers back, but for minus zero and subnormals, which become plus zero. An
//! element that is not finite in a packet makes the mean of that element NaN and disturbs no other; in `f16` and `bf16`
//! only a peer that lies sends one, and `sync` refuses the step of an `f32` one.
//!
//! # Cost
//!
//! `encode` reads 4 bytes per element and writes 4 or 2; `average` reads 4 or 2 per element and rank, and writes 4.

use super::convert::{BF16, F16, Format, widen_f16};
use super::fixed::is_finite;
use super::mean::{Load, PASS, weighted_mean};
use super::simd::for_this_cpu;
use super::{AverageError, CHUNK, CodecId, ConfigError, Gradient, Method, Parameter, Stats, Step, Unit};

/// What `f32` encodes together: nothing binds elements, but shards of all codecs start on 8.
pub const F32_UNIT: Unit = Unit { elements: 8, words: 8, state_words: 0 };

/// What `f16` and `bf16` encode together.
pub const HALF_UNIT: Unit = Unit { elements: 8, words: 4, state_words: 0 };

/// A float of 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Half {
    /// 5 bits of exponent, 10 of mantissa: 2^-24 to 65504.
    F16,
    /// 8 bits of exponent, 7 of mantissa: the range of f32.
    Bf16,
}

impl Half {
    /// Its bits.
    #[must_use]
    pub const fn format(self) -> Format {
        match self {
            Self::F16 => F16,
            Self::Bf16 => BF16,
        }
    }

    /// Words of a packet of `elements` elements.
    #[must_use]
    pub const fn packet_words(self, elements: usize) -> usize {
        elements.div_ceil(2)
    }
}

/// Writes the bits of `gradient` into `packet` and counts non-finite elements.
///
/// Both have the same length; 0 is allowed. [`Stats::saturated`] is 0. Shader: `shaders/cast/encode_f32.wgsl`.
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

/// The weighted mean of `packets` (one per rank) into `mean`.
///
/// Every packet has `mean.len()` words. `weights` are samples per rank; a rank with 0 does not count. Shader:
/// `shaders/cast/average_f32.wgsl`.
///
/// # Errors
///
/// [`AverageError`] if counts or lengths do not fit, all weights are 0, or `8 * sum(weights) >= 2^24`.
pub fn average_f32(packets: &[&[u32]], weights: &[u32], mean: &mut [f32]) -> Result<(), AverageError> {
    let total = AverageError::check(packets, weights, mean.len(), mean.len())?;
    mean_f32(packets, weights, total, mean);
    Ok(())
}

for_this_cpu! {
    /// The mean of checked packets of f32.
    fn mean_f32(packets: &[&[u32]], weights: &[u32], total: u32, mean: &mut [f32]) -> () = mean_f32_lanes;
}

#[inline(always)]
fn mean_f32_lanes(packets: &[&[u32]], weights: &[u32], total: u32, mean: &mut [f32]) {
    struct Words<'a>(&'a [&'a [u32]]);

    impl Load for Words<'_> {
        #[inline(always)]
        fn load(&self, rank: usize, start: usize, bits: &mut [u32]) {
            bits.copy_from_slice(&self.0[rank][start..start + bits.len()]);
        }
    }

    weighted_mean(weights, total, mean, &Words(packets));
}

/// Rounds `gradient` to 16 bits per element into `packet`.
///
/// `packet` has [`Half::packet_words`] words. Shader: `shaders/cast/encode_half.wgsl`.
///
/// # Panics
///
/// If the packet has another length.
pub fn encode_half(half: Half, gradient: Gradient<'_>, packet: &mut [u32]) -> Stats {
    let (words, elements) = (packet.len(), gradient.len());
    let expected = half.packet_words(elements);
    assert_eq!(words, expected, "packet of {words} words for {elements} elements, which need {expected}");
    let encode = match half {
        Half::F16 => encode_f16,
        Half::Bf16 => encode_bf16,
    };
    let mut stats = Stats::default();
    gradient.for_each_chunk(CHUNK, |start, values| {
        let words = start / 2..(start + values.len()).div_ceil(2);
        stats += encode(values, &mut packet[words]);
    });
    stats
}

for_this_cpu! {
    /// [`encode_half`] to f16, of at most [`CHUNK`] elements.
    fn encode_f16(values: &[f32], words: &mut [u32]) -> Stats = encode_f16_lanes;
}

for_this_cpu! {
    /// [`encode_half`] to bf16, of at most [`CHUNK`] elements.
    fn encode_bf16(values: &[f32], words: &mut [u32]) -> Stats = encode_bf16_lanes;
}

#[inline(always)]
fn encode_f16_lanes(values: &[f32], words: &mut [u32]) -> Stats {
    encode_as(f16_magnitude, F16, values, words)
}

#[inline(always)]
fn encode_bf16_lanes(values: &[f32], words: &mut [u32]) -> Stats {
    encode_as(bf16_magnitude, BF16, values, words)
}

/// [`narrow`](super::convert::narrow) of a finite f32 without its sign, going on above the largest number.
///
/// Numbers below 2^-14 are added to one half, whose last digit is 2^-24: that rounds them as the definition says.
#[inline(always)]
fn f16_magnitude(magnitude: u32) -> u32 {
    let small = (f32::from_bits(magnitude) + 0.5).to_bits() - 0.5_f32.to_bits();
    let near = (magnitude + 0xFFF + (magnitude >> 13 & 1)) >> 13;
    if magnitude < 113 << 23 { small } else { near - (112 << 10) }
}

/// The same for bf16, where subnormals count as zero.
#[inline(always)]
fn bf16_magnitude(magnitude: u32) -> u32 {
    let near = (magnitude + 0x7FFF + (magnitude >> 16 & 1)) >> 16;
    if magnitude < 1 << 23 { 0 } else { near }
}

/// [`encode_half`] with the rounding of a format. Branches would keep the loops from being vectorised.
#[inline(always)]
fn encode_as(magnitude: impl Fn(u32) -> u32, format: Format, values: &[f32], words: &mut [u32]) -> Stats {
    let largest = u32::from(format.largest());
    let (mut nonfinite, mut saturated) = (0_u32, 0_u32);
    let mut codes = [0_u16; CHUNK];
    for (value, code) in values.iter().zip(&mut codes) {
        let finite = is_finite(value.to_bits());
        let bits = if finite { value.to_bits() } else { 0 };
        let near = magnitude(bits & 0x7FFF_FFFF);
        let clamped = near.min(largest);
        #[allow(clippy::cast_possible_truncation, reason = "a sign and at most 15 bits")]
        let low = (bits >> 16 & 0x8000 | clamped) as u16;
        *code = low;
        nonfinite += u32::from(!finite);
        saturated += u32::from(near > largest);
    }
    for (word, [low, high]) in words.iter_mut().zip(codes.as_chunks::<2>().0) {
        *word = u32::from(*low) | u32::from(*high) << 16;
    }
    Stats { nonfinite: nonfinite.into(), saturated: saturated.into() }
}

/// The weighted mean of `packets` (one per rank) into `mean`.
///
/// Every packet has [`Half::packet_words`]`(mean.len())` words. `weights` are samples per rank; a rank with 0 does not
/// count. Shader: `shaders/cast/average_half.wgsl`.
///
/// # Errors
///
/// As [`average_f32`].
pub fn average_half(
    half: Half,
    packets: &[&[u32]],
    weights: &[u32],
    mean: &mut [f32],
) -> Result<(), AverageError> {
    let total = AverageError::check(packets, weights, mean.len(), half.packet_words(mean.len()))?;
    match half {
        Half::F16 => mean_f16(packets, weights, total, mean),
        Half::Bf16 => mean_bf16(packets, weights, total, mean),
    }
    Ok(())
}

for_this_cpu! {
    /// The mean of checked packets of f16.
    fn mean_f16(packets: &[&[u32]], weights: &[u32], total: u32, mean: &mut [f32]) -> () = mean_f16_lanes;
}

for_this_cpu! {
    /// The mean of checked packets of bf16.
    fn mean_bf16(packets: &[&[u32]], weights: &[u32], total: u32, mean: &mut [f32]) -> () = mean_bf16_lanes;
}

#[inline(always)]
fn mean_f16_lanes(packets: &[&[u32]], weights: &[u32], total: u32, mean: &mut [f32]) {
    weighted_mean(weights, total, mean, &Halves(packets, widen_f16));
}

#[inline(always)]
fn mean_bf16_lanes(packets: &[&[u32]], weights: &[u32], total: u32, mean: &mut [f32]) {
    weighted_mean(weights, total, mean, &Halves(packets, |code| u32::from(code) << 16));
}

/// Packets of halves, and what widens one.
struct Halves<'a, F>(&'a [&'a [u32]], F);

impl<F: Fn(u16) -> u32> Load for Halves<'_, F> {
    /// `start` is even.
    #[inline(always)]
    fn load(&self, rank: usize, start: usize, bits: &mut [u32]) {
        let mut codes = [0_u16; PASS];
        let words = &self.0[rank][start / 2..(start + bits.len()).div_ceil(2)];
        for ([low, high], word) in codes.as_chunks_mut::<2>().0.iter_mut().zip(words) {
            #[allow(clippy::cast_possible_truncation, reason = "one half of the word each")]
            let halves = (*word as u16, (*word >> 16) as u16);
            (*low, *high) = halves;
        }
        for (bits, code) in bits.iter_mut().zip(codes) {
            *bits = self.1(code);
        }
    }
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

impl Method for Half {
    fn id(&self) -> CodecId {
        match self {
            Self::F16 => CodecId::F16,
            Self::Bf16 => CodecId::Bf16,
        }
    }

    fn validate(&self) -> Result<(), ConfigError> {
        Ok(())
    }

    fn unit(&self) -> Unit {
        HALF_UNIT
    }

    fn packet_words(&self, elements: usize) -> usize {
        Self::packet_words(*self, elements)
    }

    fn parameters(&self) -> Vec<Parameter> {
        Vec::new()
    }

    fn set_parameter(&mut self, _: &str, _: i64) -> bool {
        false
    }

    fn encode(&self, _: Step, gradient: Gradient<'_>, _: &mut [u32], packet: &mut [u32]) -> Stats {
        encode_half(*self, gradient, packet)
    }

    fn average(
        &self,
        packets: &[&[u32]],
        weights: &[u32],
        _: &mut [u32],
        mean: &mut [f32],
    ) -> Result<(), AverageError> {
        average_half(*self, packets, weights, mean)
    }
}

#[cfg(test)]
mod tests;

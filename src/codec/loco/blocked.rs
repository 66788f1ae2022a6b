//! LoCo in blocks that a compiler vectorises on every baseline (SSE2, NEON): no branch, no table, no call.
//!
//! Fixed point comes from one f32 multiply by a power of two instead of shifting the mantissa: exact, or so
//! small that it rounds to zero anyway (a subnormal times at most 2^76 is below 2^-49), or clamped. Rounding
//! is the addition of 1.5 * 2^23, which leaves the integer, ties to even, in the low mantissa bits;
//! `f32::round_ties_even` is a library call on baseline x86-64 and 15 times slower (39 M elements/s).

use super::{CODES_PER_WORD, Config, check_average, check_encode, encode_by_element, packet_words};
use crate::codec::bits::pack_bytes;
use crate::codec::fixed::{EXPONENT_MASK, FIXED_MAX, FRACTION_BITS, rne_shift};
use crate::codec::{AverageError, Stats, Step};

/// Elements of one inner loop of `encode`: the codes wait in 64 bytes of stack for packing.
const BLOCK: usize = 64;
const BLOCK_WORDS: usize = BLOCK / CODES_PER_WORD;

/// Words per pass of `average`: the sums of 1024 elements (4 KiB) stay in the first-level cache while all
/// packets go by.
const PASS_WORDS: usize = 128;

/// 1.5 * 2^23: adding it to an f32 below 2^22 in magnitude rounds that to an integer, ties to even.
const ROUND: f32 = 12_582_912.0;

/// What stays the same over one call of `encode`.
#[derive(Clone, Copy)]
pub(super) struct Constants {
    /// `2^(scale_log2 + 12)`.
    pub(super) multiplier: f32,
    /// Shift that brings a residual to 12 fraction bits.
    pub(super) residual_shift: u32,
    /// `decay << 12`.
    pub(super) decay: i32,
    /// [`Config::gain`].
    pub(super) gain: i32,
}

impl Constants {
    pub(super) fn new(config: &Config) -> Self {
        // -52..=76 for a valid configuration: always the exponent of a normal f32.
        let exponent = 127 + i32::from(config.scale_log2) + FRACTION_BITS.cast_signed();
        Self {
            multiplier: f32::from_bits(exponent.cast_unsigned() << 23),
            residual_shift: FRACTION_BITS - u32::from(config.residual_scale_log2),
            decay: i32::from(config.decay) << FRACTION_BITS,
            gain: config.gain(),
        }
    }
}

/// [`encode`](super::encode), vectorised for the target's baseline.
pub(super) fn encode_blocked(
    config: &Config,
    step: Step,
    gradient: &[f32],
    residual: &mut [i8],
    packet: &mut [u32],
) -> Stats {
    check_encode(config, gradient.len(), residual, packet);
    let constants = Constants::new(config);
    let reset = config.is_reset(step);
    let whole = gradient.len() / BLOCK * BLOCK;
    let (values, last_values) = gradient.split_at(whole);
    let (residuals, last_residuals) = residual.split_at_mut(whole);
    let (words, last_words) = packet.split_at_mut(whole / CODES_PER_WORD);
    let (values, _) = values.as_chunks::<BLOCK>();
    let (residuals, _) = residuals.as_chunks_mut::<BLOCK>();
    let (words, _) = words.as_chunks_mut::<BLOCK_WORDS>();
    let blocks = values.iter().zip(residuals).zip(words);
    let stats: Stats = if reset {
        blocks.map(|((v, r), w)| encode_block::<true>(constants, v, r, w)).sum()
    } else {
        blocks.map(|((v, r), w)| encode_block::<false>(constants, v, r, w)).sum()
    };
    stats + encode_by_element(config, step, last_values, last_residuals, last_words)
}

/// The five lines of [`encode_element`](super::encode_element) without a branch.
#[inline]
fn encode_block<const RESET: bool>(
    constants: Constants,
    values: &[f32; BLOCK],
    residuals: &mut [i8; BLOCK],
    words: &mut [u32; BLOCK_WORDS],
) -> Stats {
    let Constants { multiplier, residual_shift, decay, gain } = constants;
    let bound = FIXED_MAX as f32;
    let mut codes = [0_u8; BLOCK];
    let (mut nonfinite, mut saturated) = (0_u32, 0_u32);
    for ((value, residual), byte) in values.iter().zip(residuals).zip(&mut codes) {
        let not_finite = value.to_bits() & EXPONENT_MASK == EXPONENT_MASK;
        // All ones for a finite element: a masked zero gradient with a zero residual gives code and residual 0.
        let keep = i32::from(not_finite) - 1;
        let scaled = value * multiplier;
        let scaled = if scaled < bound { scaled } else { bound };
        let scaled = if scaled > -bound { scaled } else { -bound };
        let fixed = ((scaled + ROUND).to_bits().cast_signed() - ROUND.to_bits().cast_signed()) & keep;
        let old = i32::from(*residual) & keep;
        let h = fixed + (old << residual_shift);
        let rounded = rne_shift(h, FRACTION_BITS);
        let code = rounded.clamp(-8, 7);
        let lost = h - (code << FRACTION_BITS);
        let averaged = decay * old + gain * lost;
        let new = if RESET { 0 } else { rne_shift(averaged, FRACTION_BITS + 8).clamp(-128, 127) };
        #[allow(clippy::cast_possible_truncation, reason = "clamped to a byte one line earlier")]
        let new = new as i8;
        *residual = new;
        #[allow(clippy::cast_possible_truncation, reason = "the low four bits count")]
        let low = code.cast_unsigned() as u8;
        *byte = low;
        nonfinite += u32::from(not_finite);
        saturated += u32::from(rounded != code);
    }
    let (eights, _) = codes.as_chunks::<CODES_PER_WORD>();
    for (word, eight) in words.iter_mut().zip(eights) {
        *word = pack_bytes(u64::from_le_bytes(*eight));
    }
    Stats { nonfinite: nonfinite.into(), saturated: saturated.into() }
}

/// [`average`](super::average), vectorised for the target's baseline.
pub(super) fn average_blocked(
    config: &Config,
    packets: &[&[u32]],
    weights: &[u32],
    mean: &mut [f32],
) -> Result<(), AverageError> {
    let scale = check_average(config, packets, weights, mean)?;
    average_checked(scale, packets, weights, mean);
    Ok(())
}

/// The mean of checked packets.
///
/// The sums are f32: |sum| < 2^24 is an integer that f32 holds exactly at every stage and in any order, and
/// baseline x86-64 multiplies four f32 in one instruction but four i32 in six. Inlined into its callers, so
/// that each compiles it for its own instruction set.
#[inline(always)]
pub(super) fn average_checked(scale: f32, packets: &[&[u32]], weights: &[u32], mean: &mut [f32]) {
    for (pass, means) in mean.chunks_mut(PASS_WORDS * CODES_PER_WORD).enumerate() {
        let start = pass * PASS_WORDS;
        let count = packet_words(means.len());
        // By place in the word, then by word: one uniform shift serves a whole vector of words.
        let mut sums = [[0.0_f32; PASS_WORDS]; CODES_PER_WORD];
        for (packet, weight) in packets.iter().zip(weights) {
            let weight = *weight as f32;
            let words = &packet[start..start + count];
            for (index, sums) in (0..).zip(&mut sums) {
                for (sum, word) in sums.iter_mut().zip(words) {
                    *sum += weight * ((word << (28 - 4 * index)).cast_signed() >> 28) as f32;
                }
            }
        }
        for (word, means) in means.chunks_mut(CODES_PER_WORD).enumerate() {
            for (mean, sums) in means.iter_mut().zip(&sums) {
                *mean = sums[word] * scale;
            }
        }
    }
}

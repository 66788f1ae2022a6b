//! One bit per element and one scale per block, with 8-bit error feedback: 1-bit SGD (Seide et al., Interspeech 2014)
//! and the compressor of 1-bit Adam (arXiv 2102.02888).
//!
//! # What
//!
//! ```text
//! h        = g + residual                          compensate, per block of `block` elements
//! scale    = the scale nearest to mean |h|          (4 + m) * 2^e, one byte
//! code     = -1 if h < 0, else 1                    1 bit
//! lost     = h - code * scale
//! residual = reset step ? 0 : round_half_even(lost / r), with r the least scale that is at least max|lost| / 127.5
//! mean     = sum_j(weight_j * code_j * scale_j) / sum_j(weight_j)
//! ```
//!
//! A block of zeros stays zero: its scale byte is 0, which decodes to 0 whatever the bits are. In any other block a zero
//! element is sent as `+scale`, and its residual takes that back. The residual is one signed byte per element and one
//! scale byte per block and rank. Its scale is rounded up, not to the nearest: the largest loss would otherwise clip,
//! step after step in the same direction, and an element far above its block would never get through. In
//! blocks of up to 64 even a lone element gets through in full. In larger ones its residual ends in steps as large as what is
//! missing, and a part of it is lost for good if no noise helps (measured: 22 % with 128, half of it with 256).
//!
//! A non-finite element counts as zero, clears its residual and is counted. No bit is left to say "nothing", so that
//! the receiver adds `+scale` for it: `sync` refuses or skips a step with such an element.
//!
//! # Wire layout
//!
//! A unit is 4 blocks: one word of 4 scale bytes (block `k` in bits `8k..`), then a bit per element, element `i` in bit
//! `i % 32` of word `1 + i / 32`, 1 for negative. The last unit ends after the word of its last element; bits and
//! bytes behind the last element are 0 when written and not looked at when read. 1 + 8 / `block` bits per element.
//!
//! State of a unit: one word of 4 residual scale bytes, then one signed byte per element.
//!
//! # Exactness
//!
//! Integers from the gradient's bits on. `h` is in units of 2^-19 of a power of two above the block's largest gradient
//! and residual (see [`scale`]); each of the two is rounded to that once, ties to even, and everything behind is
//! exact up to the stored byte. No scale is finer than 4 units. Subnormals count as zero. A mean above the largest scale
//! is sent as the largest, and its elements are counted as saturated. The mean over ranks is an integer sum in any
//! order ([`scale::Term`]), rounded to f32, times one f32.
//!
//! # Cost
//!
//! `encode` reads a block three times, of which twice from the first-level cache, and moves 6.1 bytes per element (4
//! gradient, 1 + 1 residual, 1/8 packet); `average` reads 1/8 byte per element and rank and writes 4.

use std::num::NonZeroU32;

use super::fixed::is_finite;
use super::method::{set, set_optional};
use super::scale::{self, Term};
use super::simd::for_this_cpu;
use super::{
    AverageError, CHUNK, CodecId, ConfigError, Gradient, Method, Parameter, StateError, Stats, Step, Unit,
    block,
};

mod fast;
mod ratio;

use ratio::Ratio;

/// Blocks of a unit: the scale bytes of one word.
pub const BLOCKS: usize = 4;

/// Elements of the largest block.
pub const BLOCK_MAX: usize = 1024;

/// Two digits less than [`scale::DIGITS`]: 1024 magnitudes of at most 2^20 have a sum of at most 2^30.
const SUM_DIGITS: i32 = 2;

/// The residual's base exponent is that of the scales. [`scale`] has it 2^8 lower, for losses of a fraction of a code; a
/// sign loses as much as it sends.
const RESIDUAL_LOG2: i8 = 8;

/// Parameters of [`sign`](self), the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Elements that share a scale: a multiple of 8, 32..=1024, default 256.
    pub block: u16,
    /// What the exponents of scale bytes count from: scales go from `5 * 2^base_log2` to `7 * 2^(63 + base_log2)`. Range
    /// [`scale::BASE_LOG2`], default -50.
    pub base_log2: i8,
    /// Every how many steps the residual is zeroed instead of kept; `None`, the default, is never.
    pub reset_every: Option<NonZeroU32>,
}

impl Default for Config {
    fn default() -> Self {
        Self { block: 256, base_log2: scale::BASE_LOG2_DEFAULT, reset_every: None }
    }
}

impl Config {
    /// Checks every range.
    ///
    /// # Errors
    ///
    /// The first field that is out of range, with its value and the range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let Self { block, base_log2, reset_every: _ } = *self;
        ConfigError::check_range(CodecId::Sign, "block", block, 32..=1024)?;
        if !block.is_multiple_of(8) {
            let (name, value) = ("block", block.into());
            return Err(ConfigError::Multiple { codec: CodecId::Sign, name, value, of: 8 });
        }
        let (least, most) = (*scale::BASE_LOG2.start(), *scale::BASE_LOG2.end());
        ConfigError::check_range(CodecId::Sign, "base_log2", base_log2, least.into()..=most.into())
    }
}

impl Method for Config {
    fn id(&self) -> CodecId {
        CodecId::Sign
    }

    fn validate(&self) -> Result<(), ConfigError> {
        Self::validate(self)
    }

    fn unit(&self) -> Unit {
        let block = block::at_least_1(self.block);
        Unit { elements: BLOCKS * block, words: 1 + BLOCKS * block / 32, state_words: 1 + block }
    }

    fn packet_words(&self, elements: usize) -> usize {
        let unit = self.unit();
        let rest = elements % unit.elements;
        elements / unit.elements * unit.words + if rest == 0 { 0 } else { 1 + rest.div_ceil(32) }
    }

    fn is_reset(&self, step: Step) -> bool {
        step.ends(self.reset_every)
    }

    fn parameters(&self) -> Vec<Parameter> {
        let parameter = |name, value| Parameter { name, value };
        vec![
            parameter("block", self.block.into()),
            parameter("base_log2", self.base_log2.into()),
            parameter("reset_every", self.reset_every.map_or(0, |steps| steps.get().into())),
        ]
    }

    fn set_parameter(&mut self, name: &str, value: i64) -> bool {
        match name {
            "block" => set(&mut self.block, value),
            "base_log2" => set(&mut self.base_log2, value),
            "reset_every" => set_optional(&mut self.reset_every, value, NonZeroU32::new),
            _ => false,
        }
    }

    fn check_state(&self, elements: usize, words: &[u32]) -> Result<(), StateError> {
        block::check_state(self.unit(), elements, words)
    }

    fn encode(&self, step: Step, gradient: Gradient<'_>, state: &mut [u32], packet: &mut [u32]) -> Stats {
        encode(self, step, gradient, state, packet)
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

/// Compensates, takes signs and scales, and packs one chunk, which starts on a unit; updates `state` in place.
///
/// `packet` has [`Method::packet_words`] of the gradient's elements and `state` [`Unit::state_words`] for each started
/// unit; 0 elements are allowed. [`Stats::saturated`] counts elements of blocks above the largest scale.
/// Shader: `shaders/sign/encode.wgsl`.
///
/// # Panics
///
/// If a length does not fit the gradient's, or `config` is not [valid](Config::validate).
pub fn encode(
    config: &Config,
    step: Step,
    gradient: Gradient<'_>,
    state: &mut [u32],
    packet: &mut [u32],
) -> Stats {
    if let Err(error) = config.validate() {
        panic!("{error}");
    }
    let (n, unit) = (gradient.len(), config.unit());
    let (words, expected) = (packet.len(), config.packet_words(n));
    assert_eq!(words, expected, "packet of {words} words for {n} elements, which need {expected}");
    let (words, expected) = (state.len(), n.div_ceil(unit.elements) * unit.state_words);
    assert_eq!(words, expected, "state of {words} words for {n} elements, which need {expected}");
    let reset = config.is_reset(step);
    let mut stats = Stats::default();
    let mut room = fast::Room::new();
    let mut units = state.chunks_exact_mut(unit.state_words).zip(packet.chunks_mut(unit.words));
    gradient.for_each_chunk((CHUNK / unit.elements).max(1) * unit.elements, |_, values| {
        for (values, (state, packet)) in values.chunks(unit.elements).zip(&mut units) {
            stats += encode_unit(config, reset, values, &mut room, state, packet);
        }
    });
    stats
}

/// One unit of at most four blocks; the last may be short.
fn encode_unit(
    config: &Config,
    reset: bool,
    values: &[f32],
    room: &mut fast::Room,
    state: &mut [u32],
    packet: &mut [u32],
) -> Stats {
    let block = usize::from(config.block);
    let (Some((state_scales, residuals)), Some((packet_scales, signs))) =
        (state.split_first_mut(), packet.split_first_mut())
    else {
        return Stats::default();
    };
    let residuals: &mut [i8] = bytemuck::cast_slice_mut(residuals);
    let (old_scales, mut new_scales, mut scales) = (state_scales.to_le_bytes(), [0; 4], [0; 4]);
    let mut stats = Stats::default();
    let mut negative = [0; BLOCK_MAX / 8];
    signs.fill(0);
    residuals[values.len()..].fill(0);
    let blocks = values.chunks(block).zip(residuals.chunks_exact_mut(block));
    for (k, (values, residuals)) in blocks.enumerate() {
        let residuals = &mut residuals[..values.len()];
        let negative = &mut negative[..values.len().div_ceil(8)];
        let coded = fast::encode(config, reset, values, room, residuals, old_scales[k], negative);
        (scales[k], new_scales[k]) = (coded.scale, coded.residual_scale);
        stats += coded.stats;
        for (byte, at) in negative.iter().zip(k * block / 8..) {
            signs[at / 4] |= u32::from(*byte) << (8 * (at % 4));
        }
    }
    *packet_scales = u32::from_le_bytes(scales);
    *state_scales = u32::from_le_bytes(new_scales);
    stats
}

/// What a block says besides its signs and residuals.
#[derive(Debug, PartialEq, Eq)]
struct Block {
    scale: u8,
    residual_scale: u8,
    stats: Stats,
}

/// The definition: one block of 1 to [`BLOCK_MAX`] elements with its stored residuals and their scale byte.
///
/// Writes the residuals to keep, and the signs into `negative`, which is zero: element `i` in bit `i % 8` of byte `i / 8`.
fn encode_block(
    config: &Config,
    reset: bool,
    values: &[f32],
    h: &mut [i32; BLOCK_MAX],
    residuals: &mut [i8],
    residual_scale: u8,
    negative: &mut [u8],
) -> Block {
    let count = values.len();
    let bad = values.iter().map(|value| u32::from(!is_finite(value.to_bits()))).sum::<u32>();
    let mut stats = Stats { nonfinite: bad.into(), saturated: 0 };
    let base = config.base_log2 + RESIDUAL_LOG2;
    let largest = values.iter().map(|value| scale::exponent(value.to_bits())).max().unwrap_or(0);
    let top = largest.max(scale::residual_exponent(residual_scale, base)) + SUM_DIGITS;

    // Zero in the place of what is not finite: such an element adds nothing, and loses nothing.
    let h = &mut h[..count];
    for ((h, value), residual) in h.iter_mut().zip(values).zip(residuals.iter()) {
        let bits = value.to_bits();
        let kept = if residual_scale != 0 && is_finite(bits) { *residual } else { 0 };
        *h = scale::fixed(bits, top) + scale::residual_fixed(kept, residual_scale, base, top);
    }
    residuals.fill(0);
    let sum: u32 = h.iter().map(|h| h.unsigned_abs()).sum();
    if sum == 0 {
        return Block { scale: 0, residual_scale: 0, stats };
    }

    let offset = scale::offset(top, config.base_log2);
    #[allow(clippy::cast_possible_truncation, reason = "at most 1024")]
    let index = Ratio::new(sum, count as u32).nearest();
    let byte = scale::to_byte(index, offset);
    if index + offset > 255 {
        stats.saturated = count as u64;
    }
    let sent = if byte == 0 { 0 } else { scale::units(scale::to_index(byte, offset)) };

    let mut largest = 0;
    for ((h, value), bits) in h.chunks_mut(8).zip(values.chunks(8)).zip(negative) {
        for (k, (h, value)) in h.iter_mut().zip(value).enumerate() {
            *bits |= u8::from(*h < 0) << k;
            let lost = *h - if *h < 0 { -sent } else { sent };
            *h = if is_finite(value.to_bits()) { lost } else { 0 };
            largest = largest.max(h.unsigned_abs());
        }
    }
    if reset || largest == 0 {
        return Block { scale: byte, residual_scale: 0, stats };
    }

    // Losses are below 2^21: twice 2^8 finer they are still below 2^30, and their scale is a whole number of units.
    let offset = offset - 4 * i32::from(RESIDUAL_LOG2);
    let index = Ratio::new(largest << (RESIDUAL_LOG2 + 1), 255).least();
    let residual_scale = scale::to_byte(index, offset);
    if residual_scale != 0 {
        let index = scale::to_index(residual_scale, offset);
        for (residual, lost) in residuals.iter_mut().zip(h.iter()) {
            let steps = scale::quotient(lost.unsigned_abs() << RESIDUAL_LOG2, index).min(127);
            #[allow(clippy::cast_possible_truncation, reason = "at most 127")]
            let steps = steps as i8;
            *residual = if *lost < 0 { -steps } else { steps };
        }
    }
    Block { scale: byte, residual_scale, stats }
}

/// The weighted mean of one packet per rank into `mean`.
///
/// Every packet has [`Method::packet_words`]`(mean.len())` words. `weights` are samples per rank; 0 is allowed for a rank
/// without samples, as long as the sum is positive. The bits do not depend on the order of the packets. Every word is one
/// that an encoder may write. Shader: `shaders/sign/average.wgsl`.
///
/// # Errors
///
/// [`AverageError`] if counts or lengths do not fit, all weights are 0, `8 * sum(weights) >= 2^24`, or `config`
/// is out of range.
pub fn average(
    config: &Config,
    packets: &[&[u32]],
    weights: &[u32],
    mean: &mut [f32],
) -> Result<(), AverageError> {
    config.validate()?;
    let unit = config.unit();
    let total = AverageError::check(packets, weights, mean.len(), config.packet_words(mean.len()))?;
    let headroom = scale::headroom(total, 1);
    let factor = scale::mean_scale(total, config.base_log2, headroom);
    let block = usize::from(config.block);
    let mut sums = [0_i32; BLOCK_MAX];
    for (index, means) in mean.chunks_mut(block).enumerate() {
        let (start, k) = (index / BLOCKS * unit.words, index % BLOCKS);
        let byte = |packet: &[u32]| packet[start].to_le_bytes()[k];
        let ranks = || packets.iter().copied().zip(weights.iter().copied());
        let reference = scale::reference(ranks().map(|(packet, weight)| (byte(packet), weight)));
        let sums = &mut sums[..means.len().next_multiple_of(8)];
        sums.fill(0);
        for (packet, weight) in ranks() {
            // The whole block adds or takes one number: below 2^31 for all ranks together.
            let term = Term::new(byte(packet), weight, reference, headroom).of(1);
            add(term, &packet[start + 1..], k * block, sums);
        }
        for (mean, sum) in means.iter_mut().zip(sums.iter()) {
            *mean = scale::mean(*sum, factor, reference);
        }
    }
    Ok(())
}

for_this_cpu! {
    /// Adds `term`, or takes it where the bit is set, to whole bytes of `sums`; the first bit is `first`, a multiple of 8.
    fn add(term: i32, words: &[u32], first: usize, sums: &mut [i32]) -> () = add_lanes;
}

#[inline(always)]
fn add_lanes(term: i32, words: &[u32], first: usize, sums: &mut [i32]) {
    for (sums, bit) in sums.as_chunks_mut::<8>().0.iter_mut().zip((first..).step_by(8)) {
        let negative = words[bit / 32] >> (bit % 32);
        let masks: [i32; 8] = std::array::from_fn(|place| (negative << (31 - place)).cast_signed() >> 31);
        for (sum, mask) in sums.iter_mut().zip(masks) {
            *sum += (term ^ mask) - mask;
        }
    }
}

//! Top-k with error feedback and 2-bit values: SparseLoCo (arXiv 2508.15706).
//!
//! # What
//!
//! Per chunk of 4096 elements (by default), with k = 64:
//!
//! ```text
//! sum      = decay * residual + g                    compensate, two f32 roundings
//! sent     = the k largest |sum|, of equal ones the lower index
//! levels   = mean |sum| of the larger half of them, and of the smaller half, each an f16
//! residual = sum - decoded value where sent, else sum
//! mean     = sum_j(weight_j * decoded_j) / sum_j(weight_j)
//! ```
//!
//! The odd one of an odd k is in the larger half. If less than k elements are not zero, all of those are the larger
//! half, and the zeros that fill up, of the lowest indices, have level 0. Non-finite elements count as zero, clear their
//! residual and are counted. The residual never travels; it is f32, or bytes with a power of two per 64 elements
//! ([`Residual`]). [`Mean`] divides by all ranks or by those that sent the element; [`Clip`] scales large packets down.
//!
//! # Wire layout
//!
//! Per chunk, each field from a word of its own, bits from the lowest up, unused bits zero:
//!
//! ```text
//! 1 word               levels: f16 of magnitude * 2^scale_log2, low in bits 0..16, high in bits 16..32
//! ceil(k / 16) words   codes of 2 bits, by ascending index: bit 0 the sign, bit 1 the level (1 is high)
//! Elias-Fano           indices, see `elias_fano`: for 64 of 4096, 12 words of low bits and 4 of high bits
//! ```
//!
//! 21 words for 4096 elements: 195 times less than f32. A shorter last chunk of r elements sends `floor(k * r / chunk)`
//! of them, at least 1, in a layout of its own of the same form.
//!
//! # Exactness
//!
//! Magnitudes are compared as integers. Sums, products and differences of f32 are those of [`float`]: rounded once as
//! IEEE 754 says, subnormals as zero, nothing beyond the largest f32. Levels are rounded once from exact integer sums
//! (19 binary digits below the largest of their half). A decoded value is an f16 times a power of two: an integer of
//! 2^-24, so that the weighted sum is exact in 64 bits in any order; it is rounded to f32, then multiplied by the f32
//! nearest to `1 / (total * 2^(24 + scale_log2))`. The kernels in `shaders/topk` give the same bits.
//!
//! # Cost
//!
//! `encode` moves 12 bytes per element (4 gradient, 4 + 4 residual), or 6 with bytes; `average` writes 4 per element. The
//! selection is linear in the chunk and never sorts more than k elements.

use std::ops::Range;

use super::{AverageError, Gradient, Stats, float};

mod clip;
mod config;
mod layout;
mod level;
mod residual;

pub use clip::clip;
pub use config::{Clip, Config, Mean, Residual};

use super::fixed::is_finite;
use layout::{Layout, chunks, levels};
use level::{Level, level_value, mean_level, units};

/// Compensates, selects, and packs; updates `state` in place.
///
/// `state` holds [`Config::unit`]'s words for each chunk of the gradient, also the last one; `packet`
/// [`Config::packet_words`]. Shader: `shaders/topk/encode.wgsl`.
///
/// # Panics
///
/// If a length does not fit the gradient's, or `config` is not [valid](Config::validate).
pub fn encode(config: &Config, gradient: Gradient<'_>, state: &mut [u32], packet: &mut [u32]) -> Stats {
    if let Err(error) = config.validate() {
        panic!("caller did not validate the configuration: {error}");
    }
    let (unit, elements) = (config.unit(), gradient.len());
    let lengths = [
        ("packet", packet.len(), config.packet_words(elements)),
        ("state", state.len(), elements.div_ceil(unit.elements) * unit.state_words),
    ];
    for (what, words, expected) in lengths {
        assert_eq!(words, expected, "{what} of {words} words for {elements} elements, which need {expected}");
    }
    let mut chunk = Chunk::default();
    let mut stats = Stats::default();
    let whole = Layout::new(config, unit.elements);
    gradient.for_each_chunk(unit.elements, |start, values| {
        let number = start / unit.elements;
        let layout = if values.len() == unit.elements { whole } else { Layout::new(config, values.len()) };
        let state = &mut state[number * unit.state_words..][..unit.state_words];
        let words = &mut packet[number * unit.words..][..layout.words()];
        stats += chunk.encode(config, &layout, values, state, words);
    });
    stats
}

/// The weighted mean of one packet per rank into `mean`.
///
/// Every packet has [`Config::packet_words`]`(mean.len())` words. `weights` are samples per rank; a packet of weight 0
/// is not looked at. The bits do not depend on the order of the packets. Shader: `shaders/topk/average.wgsl`.
///
/// # Errors
///
/// [`AverageError`] if counts or lengths do not fit, all weights are 0, `8 * sum(weights) >= 2^24`, `config` is out of
/// range, or a packet says what no encoder says.
pub fn average(
    config: &Config,
    packets: &[&[u32]],
    weights: &[u32],
    mean: &mut [f32],
) -> Result<(), AverageError> {
    let total = check(config, packets, weights, mean.len())?;
    let packets = clip(config, packets, weights, mean.len());
    let (mut sums, mut totals) = (vec![0_i64; config.chunk.into()], vec![0_u32; config.chunk.into()]);
    let all = config.mean_scale(total);
    for (elements, words, layout) in chunks(config, mean.len()) {
        sums.fill(0);
        totals.fill(0);
        for (packet, &weight) in packets.iter().zip(weights).filter(|(_, weight)| **weight > 0) {
            add(&layout, &packet[words.clone()], weight, &mut sums, &mut totals);
        }
        for ((mean, sum), total) in mean[elements].iter_mut().zip(&sums).zip(&totals) {
            *mean = match config.mean {
                _ if *sum == 0 => 0.0,
                Mean::AllRanks => *sum as f32 * all,
                Mean::Contributors => *sum as f32 * config.mean_scale(*total),
            };
        }
    }
    Ok(())
}

/// What [`average`] checks before it reads a packet; the result is the sum of the weights.
///
/// # Errors
///
/// Those of [`average`].
pub fn check(
    config: &Config,
    packets: &[&[u32]],
    weights: &[u32],
    elements: usize,
) -> Result<u32, AverageError> {
    config.validate()?;
    let total = AverageError::check(packets, weights, elements, config.packet_words(elements))?;
    for (index, packet) in packets.iter().enumerate().filter(|(index, _)| weights[*index] > 0) {
        layout::check(config, index, packet, elements)?;
    }
    Ok(total)
}

/// Adds a chunk's values times `weight` to `sums`, in units of 2^-24: below 2^21 * 2^40 in sum. `totals` gets the weight
/// where the value is not zero.
fn add(layout: &Layout, words: &[u32], weight: u32, sums: &mut [i64], totals: &mut [u32]) {
    // Below 2^40, so the cast keeps it.
    let levels = levels(words).map(|level| units(level).cast_signed());
    for (index, code) in layout.codes(words) {
        let level = levels[usize::from(code & 2 != 0)];
        let value = if code & 1 == 1 { -level } else { level };
        sums[index] += value * i64::from(weight);
        totals[index] += if level == 0 { 0 } else { weight };
    }
}

/// What the encoding of one chunk works on, kept from chunk to chunk.
#[derive(Debug, Default)]
struct Chunk {
    sums: Vec<f32>,
    /// One number per element that ascends as elements are less to be sent: the inverted magnitude above the index.
    keys: Vec<u64>,
    /// (index, whether of the larger half) of those sent.
    sent: Vec<(u32, bool)>,
}

impl Chunk {
    fn encode(
        &mut self,
        config: &Config,
        layout: &Layout,
        gradient: &[f32],
        state: &mut [u32],
        words: &mut [u32],
    ) -> Stats {
        let nonfinite = self.compensate(config, gradient, state);
        let (high, low) = self.select(layout);
        let level = |range: Range<usize>| {
            mean_level(self.keys[range].iter().map(|key| magnitude(*key)), config.scale_log2)
        };
        let [low_level, high_level] = [level(low.clone()), level(high.clone())];
        self.sent.clear();
        let keys = self.keys[..layout.count].iter().enumerate();
        self.sent.extend(keys.map(|(place, key)| (index(*key), place < high.end)));
        self.sent.sort_unstable();

        let sums = &self.sums;
        let codes = self.sent.iter().map(|&(index, high)| {
            let sign = sums[index as usize].to_bits() >> 31;
            (index, sign | u32::from(high) << 1)
        });
        layout.write([low_level.bits, high_level.bits], codes, words);

        let values = [low_level, high_level].map(|level| level_value(level.bits, config.scale_log2));
        for &(index, high) in &self.sent {
            let sum = &mut self.sums[index as usize];
            *sum = float::sub(*sum, values[usize::from(high)].copysign(*sum));
        }
        residual::store(config, &self.sums, state);
        let saturated =
            |level: Level, half: Range<usize>| if level.saturated { half.len() as u64 } else { 0 };
        Stats { nonfinite, saturated: saturated(low_level, low) + saturated(high_level, high) }
    }

    /// Fills `sums`; the result counts elements that are not finite.
    fn compensate(&mut self, config: &Config, gradient: &[f32], state: &[u32]) -> u64 {
        let decay = config.decay_factor();
        self.sums.resize(gradient.len(), 0.0);
        residual::load(config, state, &mut self.sums);
        let mut nonfinite = 0;
        for (sum, value) in self.sums.iter_mut().zip(gradient) {
            let finite = is_finite(value.to_bits());
            let compensated = float::add(float::mul(decay, *sum), if finite { *value } else { 0.0 });
            *sum = if finite { compensated } else { 0.0 };
            nonfinite += u64::from(!finite);
        }
        nonfinite
    }

    /// Puts the keys to send in front, those of the larger half first; the result is both halves. Zeros are in none.
    fn select(&mut self, layout: &Layout) -> (Range<usize>, Range<usize>) {
        self.keys.clear();
        let sums = (0..).zip(&self.sums);
        self.keys.extend(
            sums.map(|(index, sum): (u32, _)| u64::from(!sum.to_bits() << 1) << 32 | u64::from(index)),
        );
        let count = layout.count;
        first(&mut self.keys, count);
        let sent = &mut self.keys[..count];
        let nonzero = sent.iter().filter(|key| magnitude(**key) != 0).count();
        let high = if nonzero < count { nonzero } else { layout.high_count() };
        first(sent, high);
        (0..high, high..nonzero)
    }
}

/// Puts the `count` least keys in front, in any order.
fn first(keys: &mut [u64], count: usize) {
    if (1..keys.len()).contains(&count) {
        keys.select_nth_unstable(count - 1);
    }
}

/// The f32 bits, without sign, of a key's element.
fn magnitude(key: u64) -> u32 {
    #[allow(clippy::cast_possible_truncation, reason = "shifted to 32 bits")]
    let high = (key >> 32) as u32;
    !high >> 1
}

/// The index of a key's element.
fn index(key: u64) -> u32 {
    #[allow(clippy::cast_possible_truncation, reason = "the low half is the index")]
    let index = key as u32;
    index
}

#[cfg(test)]
mod tests;

//! EF21: 4-bit codes of what changed since the last step; sender and owner keep the same sum of them (arXiv 2106.05203).
//!
//! # What
//!
//! ```text
//! target  = g                                         or with momentum, eta = 2^-momentum_log2 (arXiv 2305.15155):
//!           v += eta * g - eta * v;  u += eta * v - eta * u;  target = u
//! code    = codes of target - tracked, as block4       one scale per block
//! tracked += code * scale                              by the sender, and by the owner of the shard for each rank
//! mean    = sum_j(factor_j * tracked_j)                factor_j = weight_j / sum(weights)
//! ```
//!
//! While a gradient changes slowly, what is sent is small and its scale fine: the error shrinks with the steps instead
//! of staying one 4-bit step, without a residual. `momentum_log2` 0 has no averages. With momentum (double momentum,
//! SGD2M of that paper) what is tracked is an average over steps, and the noise of a batch does not have to travel; all
//! starts at 0, so that the first steps are small. The momentum of the optimizer comes on top: with AdamW, 600 steps of the
//! `digits` task on 2 ranks end at 98.6 % for `momentum_log2` 1, at 96.7 % for 2, and at 97.5 % for f32.
//!
//! **Both ends must see the same packets.** [`encode`] moves the sender's `tracked` at once; the owner must follow with
//! [`average`], also in a step that is then not taken, and for a rank of weight 0. A rank that joins anew, or a step in
//! which a packet was lost, needs a resync: state of all encoders and owners back to 0.
//!
//! A non-finite element is counted; its difference counts as 0 and its averages stay, so that both ends stay equal and
//! finite.
//!
//! # Wire layout
//!
//! As [`block4`](super::block): per unit of 4 blocks a word of scale bytes, then 8 codes to a word.
//!
//! State of an encoder, per unit: `tracked`, then with momentum `v` and `u`, each one f32 per element. State of an owner:
//! per rank `tracked` of all units of the shard ([`Codec::mean_state_words`](super::Codec::mean_state_words)).
//!
//! # Exactness
//!
//! Every sum, difference and product is one operation of [`float`]: f32 rounded as IEEE 754 does, subnormals
//! as zero, the largest f32 in place of infinity. A code times its scale is an exact f32. The codes are
//! [`block::quantize`]. The mean adds in rank order, which packets are handed over in; `factor_j` is the f32 nearest to
//! `weight_j` times the f32 nearest to `1 / sum(weights)`, and 1 where no other rank has a weight.
//!
//! # Cost
//!
//! 4.125 bits per element. `encode` moves 12.5 bytes per element (4 gradient, 4 + 4 state, 0.5 packet), 28.5 with
//! momentum; `average` 8.5 per element and rank (0.5 packet, 4 + 4 state) and 4 for the mean.

use std::num::NonZeroU8;
use std::ops::Range;

use super::block::{self, BLOCKS, Bits, Format};
use super::fixed::is_finite;
use super::method::{set, set_optional};
use super::simd::for_this_cpu;
use super::state::Units;
use super::{
    AverageError, CodecId, ConfigError, Gradient, Method, Parameter, StateError, Stats, Step, Unit, float,
    scale,
};

/// Parameters of [`ef21`](self), the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Elements that share a scale: a multiple of 8, 32..=1024, default 64.
    pub block: u16,
    /// What the exponents of scale bytes count from, as [`Format::base_log2`]. Default -50.
    pub base_log2: i8,
    /// A new gradient weighs `2^-momentum_log2` in both averages, 1..=16; `None`, the default, is no momentum.
    pub momentum_log2: Option<NonZeroU8>,
}

impl Default for Config {
    fn default() -> Self {
        Self { block: 64, base_log2: scale::BASE_LOG2_DEFAULT, momentum_log2: None }
    }
}

impl Config {
    /// The format of its packets.
    #[must_use]
    pub const fn format(&self) -> Format {
        Format { bits: Bits::Four, block: self.block, base_log2: self.base_log2 }
    }

    /// What a new gradient weighs in the averages; `None` without momentum.
    pub(crate) fn eta(&self) -> Option<f32> {
        self.momentum_log2.map(|k| f32::from_bits((127 - u32::from(k.get())) << 23))
    }

    /// f32 of an encoder's state per element.
    const fn planes(&self) -> usize {
        if self.momentum_log2.is_some() { 3 } else { 1 }
    }
}

/// Tracks, quantizes and packs one chunk, which starts on a unit; moves `state` in place.
///
/// `packet` has [`Method::packet_words`] of the gradient's elements and `state` [`Unit::state_words`] for each started
/// unit; 0 elements are allowed. The step does not matter. Shader: `shaders/ef21/encode.wgsl`.
///
/// # Panics
///
/// If a length does not fit the gradient's.
pub fn encode(
    config: &Config,
    _: Step,
    gradient: Gradient<'_>,
    state: &mut [u32],
    packet: &mut [u32],
) -> Stats {
    let (format, n) = (config.format(), gradient.len());
    let Unit { elements, state_words, .. } = Method::unit(config);
    let (words, expected) = (state.len(), n.div_ceil(elements) * state_words);
    assert_eq!(words, expected, "state of {words} words for {n} elements, which need {expected}");
    let size = usize::from(config.block);
    let state: &mut [f32] = bytemuck::cast_slice_mut(state);
    let mut room = vec![0.0_f32; size];
    block::encode_units(&format, gradient, packet, |number, values, codes| {
        let (unit, k) = (number / BLOCKS, number % BLOCKS);
        let (tracked, averages) = state[unit * state_words..(unit + 1) * state_words].split_at_mut(elements);
        let tracked = &mut tracked[k * size..(k + 1) * size];
        let (v, u) = averages.split_at_mut(averages.len() / 2);
        let of_block = if v.is_empty() { 0..0 } else { k * size..(k + 1) * size };
        let (v, u) = (&mut v[of_block.clone()], &mut u[of_block]);
        encode_block(config, values, tracked, v, u, &mut room, codes)
    })
}

for_this_cpu! {
    /// The codes of one block, its scale byte, and how many codes the clamp changed. `v` and `u` are empty without momentum,
    /// and `room` is to work in.
    fn encode_block(
        config: &Config,
        values: &[f32],
        tracked: &mut [f32],
        v: &mut [f32],
        u: &mut [f32],
        room: &mut [f32],
        codes: &mut [i8],
    ) -> (u8, u32) = encode_block_lanes;
}

#[inline(always)]
fn encode_block_lanes(
    config: &Config,
    values: &[f32],
    tracked: &mut [f32],
    v: &mut [f32],
    u: &mut [f32],
    room: &mut [f32],
    codes: &mut [i8],
) -> (u8, u32) {
    let difference = &mut room[..values.len()];
    match config.eta() {
        None => {
            for ((difference, value), tracked) in difference.iter_mut().zip(values).zip(tracked.iter()) {
                *difference = if is_finite(value.to_bits()) { float::sub(*value, *tracked) } else { 0.0 };
            }
        }
        // A pass for each array that is written: more of them at once are not vectorised.
        Some(eta) => {
            for (v, value) in v.iter_mut().zip(values) {
                *v = if is_finite(value.to_bits()) { approach(*v, *value, eta) } else { *v };
            }
            for ((u, v), value) in u.iter_mut().zip(&*v).zip(values) {
                *u = if is_finite(value.to_bits()) { approach(*u, *v, eta) } else { *u };
            }
            let values = values.iter().zip(tracked.iter()).zip(&*u);
            for (difference, ((value, tracked), u)) in difference.iter_mut().zip(values) {
                *difference = if is_finite(value.to_bits()) { float::sub(*u, *tracked) } else { 0.0 };
            }
        }
    }
    let (byte, saturated) = block::fast::encode_values(&config.format(), difference, codes);
    let step = step(byte, config.base_log2);
    for (tracked, code) in tracked.iter_mut().zip(codes) {
        *tracked = float::add(*tracked, f32::from(*code) * step);
    }
    (byte, saturated)
}

/// `average + eta * value - eta * average`: two products first, so that the difference of two large numbers is small.
#[inline]
const fn approach(average: f32, value: f32, eta: f32) -> f32 {
    float::add(average, float::sub(float::mul(value, eta), float::mul(average, eta)))
}

/// The scale that `byte` stands for, as an f32: times a code it is exact.
const fn step(byte: u8, base_log2: i8) -> f32 {
    if byte == 0 {
        return 0.0;
    }
    // (4 + m) * 2^e = (1 + m / 4) * 2^(e + 2), with an exponent of -78..=120.
    let (e, m) = ((byte >> 2) as i32, (byte & 3) as u32);
    f32::from_bits((e + base_log2 as i32 + 2 + 127).cast_unsigned() << 23 | m << 21)
}

/// Follows one packet per rank in `state`, and puts the weighted mean of what is tracked into `mean`.
///
/// Every packet has [`Method::packet_words`]`(mean.len())` words, `state` a row of whole units of f32 per rank. `weights` are
/// samples per rank; a packet of weight 0 is followed too. Every word is one that an encoder may write.
/// Shader: `shaders/ef21/average.wgsl`.
///
/// # Errors
///
/// [`AverageError`] if counts or lengths do not fit, all weights are 0, `8 * sum(weights) >= 2^24`, or `config` is out of
/// range; then nothing was followed.
///
/// # Panics
///
/// If the state's length does not fit.
pub fn average(
    config: &Config,
    packets: &[&[u32]],
    weights: &[u32],
    state: &mut [u32],
    mean: &mut [f32],
) -> Result<(), AverageError> {
    average_part(config, packets, weights, state, mean.len(), 0, mean)
}

/// The same of the elements of a shard of `shard` that start at the unit of element `first`.
fn average_part(
    config: &Config,
    packets: &[&[u32]],
    weights: &[u32],
    state: &mut [u32],
    shard: usize,
    first: usize,
    mean: &mut [f32],
) -> Result<(), AverageError> {
    Method::validate(config)?;
    let Unit { elements, words, .. } = Method::unit(config);
    let total = AverageError::check(packets, weights, mean.len(), config.packet_words(mean.len()))?;
    let row = shard.div_ceil(elements) * elements;
    let (got, expected) = (state.len(), packets.len() * row);
    assert_eq!(got, expected, "state of {got} words for {} ranks, which need {expected}", packets.len());
    let state: &mut [f32] = bytemuck::cast_slice_mut(state);
    mean.fill(0.0);
    let rows = state.chunks_exact_mut(row.max(1)).zip(packets.iter().zip(weights));
    for (tracked, (packet, weight)) in rows {
        let factor = factor(*weight, total);
        let tracked = tracked[first..].chunks_exact_mut(elements);
        let units = tracked.zip(packet.chunks(words)).zip(mean.chunks_mut(elements));
        for ((tracked, packet), mean) in units {
            let factor = (*weight > 0).then_some(factor);
            follow(config, packet, tracked, factor, mean);
        }
    }
    Ok(())
}

/// What share of the mean a rank of `weight` has, of all ranks' `total`.
const fn factor(weight: u32, total: u32) -> f32 {
    // Both are below 2^21, so that they are exact; the largest f32 below 1 would change a lone rank's gradient.
    if weight == total { 1.0 } else { weight as f32 * (1.0 / total as f32) }
}

for_this_cpu! {
    /// Adds what one unit's packet says to `tracked`, a whole unit, and that times `factor` to the mean; the last packet may
    /// have less words, and the last mean less elements.
    fn follow(
        config: &Config,
        packet: &[u32],
        tracked: &mut [f32],
        factor: Option<f32>,
        mean: &mut [f32],
    ) -> () = follow_lanes;
}

#[inline(always)]
fn follow_lanes(config: &Config, packet: &[u32], tracked: &mut [f32], factor: Option<f32>, mean: &mut [f32]) {
    let Some((scales, codes)) = packet.split_first() else { return };
    let size = usize::from(config.block);
    let blocks = tracked.chunks_exact_mut(size).zip(codes.chunks(size / 8)).zip(scales.to_le_bytes());
    for ((tracked, words), byte) in blocks {
        let step = step(byte, config.base_log2);
        for (tracked, word) in tracked.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            let codes: [i32; 8] = std::array::from_fn(|index| (word << (28 - 4 * index)).cast_signed() >> 28);
            for (tracked, code) in tracked.iter_mut().zip(codes) {
                *tracked = float::add(*tracked, code as f32 * step);
            }
        }
    }
    if let Some(factor) = factor {
        for (mean, tracked) in mean.iter_mut().zip(tracked) {
            *mean = float::add(*mean, float::mul(*tracked, factor));
        }
    }
}

impl Method for Config {
    fn id(&self) -> CodecId {
        CodecId::Ef21
    }

    fn validate(&self) -> Result<(), ConfigError> {
        self.format().validate(CodecId::Ef21)?;
        let momentum_log2 = self.momentum_log2.map_or(0, NonZeroU8::get);
        ConfigError::check_range(CodecId::Ef21, "momentum_log2", momentum_log2, 0..=16)
    }

    fn unit(&self) -> Unit {
        let format = self.format();
        format.unit(self.planes() * format.unit(0).elements)
    }

    fn packet_words(&self, elements: usize) -> usize {
        self.format().packet_words(elements)
    }

    fn mean_state_words(&self, world_size: usize, elements: usize) -> usize {
        let unit = self.format().unit(0).elements;
        elements.div_ceil(unit).saturating_mul(unit).saturating_mul(world_size)
    }

    fn parameters(&self) -> Vec<Parameter> {
        let parameter = |name, value| Parameter { name, value };
        vec![
            parameter("block", self.block.into()),
            parameter("base_log2", self.base_log2.into()),
            parameter("momentum_log2", self.momentum_log2.map_or(0, |k| k.get().into())),
        ]
    }

    fn set_parameter(&mut self, name: &str, value: i64) -> bool {
        match name {
            "block" => set(&mut self.block, value),
            "base_log2" => set(&mut self.base_log2, value),
            "momentum_log2" => set_optional(&mut self.momentum_log2, value, NonZeroU8::new),
            _ => false,
        }
    }

    fn check_state(&self, elements: usize, words: &[u32]) -> Result<(), StateError> {
        StateError::check_finite("state", words)?;
        let unit = Method::unit(self);
        let units = Units::new(unit, elements, words);
        (0..self.planes()).try_for_each(|plane| {
            let first = plane * unit.elements;
            units.check_behind(|count| 4 * (first + count)..4 * (first + unit.elements))
        })
    }

    fn check_mean_state(&self, words: &[u32]) -> Result<(), StateError> {
        StateError::check_finite("mean state", words)
    }

    fn encode(&self, step: Step, gradient: Gradient<'_>, state: &mut [u32], packet: &mut [u32]) -> Stats {
        encode(self, step, gradient, state, packet)
    }

    fn average(
        &self,
        packets: &[&[u32]],
        weights: &[u32],
        state: &mut [u32],
        mean: &mut [f32],
    ) -> Result<(), AverageError> {
        average(self, packets, weights, state, mean)
    }

    fn average_part(
        &self,
        packets: &[&[u32]],
        weights: &[u32],
        state: &mut [u32],
        shard: usize,
        part: Range<usize>,
        mean: &mut [f32],
    ) -> Result<(), AverageError> {
        average_part(self, packets, weights, state, shard, part.start, mean)
    }
}

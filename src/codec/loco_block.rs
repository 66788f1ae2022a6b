//! `loco-block`: LoCo (arXiv 2407.04480) with one scale per block, for gradients whose magnitude is unknown or drifts.
//!
//! # What
//!
//! ```text
//! top      = largest exponent of the block's finite elements and of its residual    unit = 2^(top - 147)
//! h        = round_half_even(g / unit) + round_half_even(residual / unit)
//! code, scale                                          as in block, from absmax(h)
//! lost     = h - code * scale                          exact
//! kept     = decay * residual + (256 - decay) * lost   in units / 256, exact, below 2^30
//! residual = reset step ? 0 : round_half_even(kept / s), s = the next (4 + m) * 2^e above absmax(kept) / 128
//! ```
//!
//! The residual is one signed byte per element and one scale byte per block, relative to `base_log2 - 8`. Non-finite
//! elements send code 0, clear their residual, are counted and move neither scale.
//!
//! With `b = decay / 256`, `g - sent = lost - residual = (residual' - residual) / (1 - b)`: whatever was not sent in any number
//! of steps is the last residual over `1 - b`, but for what the bytes round away, half a step of theirs each time.
//!
//! # Wire layout
//!
//! That of [`block`]. The state of a unit is one word of the four residual scale bytes, then the residual
//! bytes of its elements, 4 to a word; both ends of every field as in the packet.
//!
//! # Exactness
//!
//! All of it in `i32` from the gradient's bits on; subnormals count as zero. The mean is that of [`block`].
//!
//! # Cost
//!
//! 4.125 bits per element for 4 bits and blocks of 64; the state is 8.125 bits per element.

use std::num::NonZeroU32;

use super::block::{self, BLOCKS, Bits, Format, quantize};
use super::method::{set, set_optional};
use super::scale::{self, Divisor};
use super::{AverageError, CodecId, ConfigError, Gradient, Method, Parameter, StateError, Stats, Step, Unit};

mod fast;

/// Parameters of `loco-block`, the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Bits of a code: 2, 4 or 8, default 4.
    pub bits: Bits,
    /// Elements that share a scale: 32..=1024, a multiple of 8. Default 64.
    pub block: u16,
    /// Base exponent of the scales, see [`Format::base_log2`]. Range -80..=55, default -50.
    pub base_log2: i8,
    /// Weight of the OLD residual in the running average, in 1/256; the new error gets the rest. Range 0..=255, default 128;
    /// 0 is classic error feedback.
    ///
    /// 128 and not the 205 of `loco`: over 500 steps on heavy-tailed means with noise of their size, the mean of what was
    /// sent is off by 0.06 % of the gradient's with 0, by 0.09 % with 128 and by 0.25 % with 205, and the squared error of a
    /// step is 4.0, 3.3 and 3.1 % of the norm. The residual follows its own largest element, so that no decay silences it.
    pub decay: u8,
    /// Every how many steps the residual is zeroed instead of updated; `None` is never. Default 512.
    pub reset_every: Option<NonZeroU32>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            bits: Bits::Four,
            block: 64,
            base_log2: scale::BASE_LOG2_DEFAULT,
            decay: 128,
            reset_every: NonZeroU32::new(512),
        }
    }
}

impl Config {
    /// The format of its packets.
    #[must_use]
    pub const fn format(&self) -> Format {
        Format { bits: self.bits, block: self.block, base_log2: self.base_log2 }
    }

    /// Whether `step` zeroes the residual: every `reset_every`-th step, counted from 1.
    #[must_use]
    pub fn is_reset(&self, step: Step) -> bool {
        step.ends(self.reset_every)
    }
}

/// Compensates, quantizes and packs one chunk; updates `state` in place.
///
/// `state` holds the [`Method::unit`]'s state words for each unit, also for one that is not full, and `packet`
/// [`Format::packet_words`]. Shader: `shaders/loco_block/encode.wgsl`. Source: arXiv 2407.04480, eqs. 2, 3, 5, 7.
///
/// # Panics
///
/// If a length does not fit the gradient's.
pub fn encode(
    config: &Config,
    step: Step,
    gradient: Gradient<'_>,
    state: &mut [u32],
    packet: &mut [u32],
) -> Stats {
    let Unit { elements, state_words, .. } = config.unit();
    let (words, expected) = (state.len(), gradient.len().div_ceil(elements) * state_words);
    assert_eq!(
        words,
        expected,
        "state of {words} words for {} elements, which need {expected}",
        gradient.len()
    );
    let (format, reset) = (config.format(), config.is_reset(step));
    let size = usize::from(config.block);
    let mut room = fast::Room::new(size);
    block::encode_units(&format, gradient, packet, |number, values, codes| {
        let state = &mut state[number / BLOCKS * state_words..][..state_words];
        let (bytes, residuals) = bytemuck::cast_slice_mut::<u32, i8>(state).split_at_mut(BLOCKS);
        let k = number % BLOCKS;
        let block = Block { config, values, residuals: &mut residuals[k * size..][..size] };
        let (byte, saturated, kept_byte) =
            fast::encode(block, bytes[k].cast_unsigned(), reset, &mut room, codes);
        bytes[k] = kept_byte.cast_signed();
        (byte, saturated)
    })
}

/// One block's input and residual.
struct Block<'a> {
    config: &'a Config,
    values: &'a [f32],
    residuals: &'a mut [i8],
}

impl Block<'_> {
    /// The definition: the scale byte, the number of saturated codes and the scale byte of the residual, from that of the old
    /// one. `h` and `old` are room to work in.
    fn encode(
        self,
        old_byte: u8,
        reset: bool,
        h: &mut [i32],
        old: &mut [i32],
        codes: &mut [i8],
    ) -> (u8, u32, u8) {
        let Self { config, values, residuals } = self;
        let base_log2 = config.base_log2;
        let bits = || values.iter().map(|value| value.to_bits());
        let top = bits().map(scale::exponent).fold(scale::residual_exponent(old_byte, base_log2), i32::max);
        for (((h, old), bits), residual) in h.iter_mut().zip(&mut *old).zip(bits()).zip(&*residuals) {
            let lives = old_byte != 0 && super::fixed::is_finite(bits);
            *old = if lives { scale::residual_fixed(*residual, old_byte, base_log2, top) } else { 0 };
            *h = scale::fixed(bits, top) + *old;
        }
        let (byte, saturated) = quantize(&config.format(), top, h, codes);
        let decay = i32::from(config.decay);
        for (lost, old) in h.iter_mut().zip(&*old) {
            // Both are below 2^22, so that this is below 2^30.
            *lost = decay * old + (256 - decay) * *lost;
        }
        let kept_byte = if reset { 0 } else { keep(scale::offset(top, base_log2), h, residuals) };
        if kept_byte == 0 {
            residuals.fill(0);
        }
        (byte, saturated, kept_byte)
    }
}

/// Stores `kept` as bytes with a scale of their own, which is returned; with 0 nothing is stored.
fn keep(offset: i32, kept: &[i32], residuals: &mut [i8]) -> u8 {
    let absmax = kept.iter().fold(0, |most, kept| most.max(kept.unsigned_abs()));
    let byte = if absmax == 0 { 0 } else { scale::to_byte(scale::choose(absmax, Divisor::BITS_8), offset) };
    if byte == 0 {
        return 0;
    }
    let index = scale::to_index(byte, offset);
    for (kept, residual) in kept.iter().zip(residuals) {
        let magnitude = scale::quotient(kept.unsigned_abs(), index).cast_signed();
        #[allow(clippy::cast_possible_truncation, reason = "clamped to a byte")]
        let narrow = (if *kept < 0 { -magnitude } else { magnitude }).clamp(-128, 127) as i8;
        *residual = narrow;
    }
    byte
}

impl Method for Config {
    fn id(&self) -> CodecId {
        CodecId::LocoBlock
    }

    fn validate(&self) -> Result<(), ConfigError> {
        self.format().validate(CodecId::LocoBlock)
    }

    fn unit(&self) -> Unit {
        self.format().unit(1 + block::at_least_1(self.block))
    }

    fn packet_words(&self, elements: usize) -> usize {
        self.format().packet_words(elements)
    }

    fn is_reset(&self, step: Step) -> bool {
        Self::is_reset(self, step)
    }

    fn parameters(&self) -> Vec<Parameter> {
        let parameter = |name, value| Parameter { name, value };
        vec![
            parameter("bits", self.bits.get().into()),
            parameter("block", self.block.into()),
            parameter("base_log2", self.base_log2.into()),
            parameter("decay", self.decay.into()),
            parameter("reset_every", self.reset_every.map_or(0, |steps| steps.get().into())),
        ]
    }

    fn set_parameter(&mut self, name: &str, value: i64) -> bool {
        match name {
            "bits" => set(&mut self.bits, value),
            "block" => set(&mut self.block, value),
            "base_log2" => set(&mut self.base_log2, value),
            "decay" => set(&mut self.decay, value),
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
        block::average(&self.format(), packets, weights, mean)
    }
}

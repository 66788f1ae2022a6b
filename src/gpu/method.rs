//! The one table of codecs on the device: which kernels, how many units a workgroup takes, which parameters.
//!
//! `Params` of every encode kernel begins with `units`, `columns`; of every average kernel with `units`, `columns`,
//! `ranks`, `elements`. What the functions here give stands behind.

use super::source::{self, Shader};
use crate::codec::block::Format;
use crate::codec::cast::Half;
use crate::codec::convert;
use crate::codec::fixed::{FRACTION_BITS, mean_scale};
use crate::codec::mean::reciprocal;
use crate::codec::topk::{Mean, Residual};
use crate::codec::{Codec, Step, fp8, loco, scale};
use crate::optim::Config;

/// Most words of `Params` that a codec has of its own.
pub(crate) const WORDS: usize = 12;

/// One kernel of a codec, ready for one dispatch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Method {
    pub(crate) shader: Shader,
    /// Units that one workgroup takes.
    pub(crate) per_workgroup: u32,
    /// The codec's own words of `Params`, zeros behind them.
    pub(crate) words: [u32; WORDS],
    /// Whether the first of an encode kernel's words is to be the number of elements of the dispatch: for a codec whose
    /// shorter last unit has a layout of its own. An average kernel always has that number.
    pub(crate) counts_elements: bool,
}

impl Method {
    fn new<const N: usize>(shader: Shader, per_workgroup: u32, own: [u32; N]) -> Self {
        const { assert!(N <= WORDS, "too many parameters of a kernel") };
        let mut words = [0; WORDS];
        words[..N].copy_from_slice(&own);
        Self { shader, per_workgroup, words, counts_elements: false }
    }

    /// `Params` of an encode kernel.
    pub(crate) fn encode_params(&self, units: u32, columns: u32, elements: usize) -> [u32; 2 + WORDS] {
        let mut params = [0; 2 + WORDS];
        params[..2].copy_from_slice(&[units, columns]);
        params[2..].copy_from_slice(&self.words);
        if self.counts_elements {
            params[2] = u32::try_from(elements).unwrap_or(u32::MAX);
        }
        params
    }

    /// `Params` of an average kernel.
    pub(crate) fn average_params(
        &self,
        units: u32,
        columns: u32,
        ranks: usize,
        elements: usize,
    ) -> [u32; 4 + WORDS] {
        let narrow = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let mut params = [0; 4 + WORDS];
        params[..4].copy_from_slice(&[units, columns, narrow(ranks), narrow(elements)]);
        params[4..].copy_from_slice(&self.words);
        params
    }
}

/// Turns a gradient into a packet at `step`.
pub(crate) fn encode(codec: &Codec, step: Step) -> Method {
    match codec {
        Codec::F32 => Method::new(source::CAST_ENCODE_F32, 256, []),
        Codec::F16 => encode_half(Half::F16),
        Codec::Bf16 => encode_half(Half::Bf16),
        Codec::Fp8(config) => {
            let [exponent_bits, digits] = bits(config.kind.format());
            let largest = config.kind.format().largest();
            let own = [config.block.into(), exponent_bits, digits, largest.into(), last(config)];
            Method::new(source::FP8_ENCODE, 8, own)
        }
        Codec::TopK(config) => {
            let own = [
                0,
                config.chunk.ilog2(),
                config.k.into(),
                config.decay_factor().to_bits(),
                i32::from(config.scale_log2).cast_unsigned(),
                u32::from(config.residual == Residual::Bits8),
            ];
            Method { counts_elements: true, ..Method::new(source::TOPK_ENCODE, 1, own) }
        }
        Codec::Ef(config) => encode_loco(&config.loco(), step),
        Codec::IntSgd(config) => {
            // Fixed point whose last digit is a whole code.
            let point = 138 + FRACTION_BITS.cast_signed() - i32::from(config.scale_log2);
            Method::new(source::INTSGD_ENCODE, 256, [point.cast_unsigned()])
        }
        Codec::Loco(config) => encode_loco(config, step),
        Codec::LocoBlock(config) => {
            let [bits, block, base_log2, step_up, exponent] = block_words(&config.format());
            let keep = if config.is_reset(step) { 0 } else { u32::MAX };
            let own = [bits, block, base_log2, step_up, exponent, config.decay.into(), keep];
            Method::new(source::LOCO_BLOCK_ENCODE, 16, own)
        }
        Codec::Block8(config) => block_encode(&config.format()),
        Codec::Block4(config) => block_encode(&config.format()),
        Codec::Ef21(config) => {
            let [bits, block, base_log2, step_up, exponent] = block_words(&config.format());
            let own = [bits, block, base_log2, step_up, exponent, config.eta().map_or(0, f32::to_bits)];
            Method::new(source::EF21_ENCODE, 16, own)
        }
        Codec::Sign(config) => {
            let base_log2 = i32::from(config.base_log2).cast_unsigned();
            let own = [0, config.block.into(), base_log2, u32::from(!codec.is_reset(step))];
            Method { counts_elements: true, ..Method::new(source::SIGN_ENCODE, 8, own) }
        }
    }
}

/// Turns packets into their mean, with weights whose sum is `total`.
pub(crate) fn average(codec: &Codec, total: u32) -> Method {
    match codec {
        // Two invocations to a unit.
        Codec::F32 => Method::new(source::CAST_AVERAGE_F32, 128, [total, reciprocal(total)]),
        Codec::F16 => average_half(Half::F16, total),
        Codec::Bf16 => average_half(Half::Bf16, total),
        Codec::Fp8(config) => {
            let [exponent_bits, digits] = bits(config.kind.format());
            let own = [total, reciprocal(total), config.block.into(), exponent_bits, digits, last(config)];
            Method::new(source::FP8_AVERAGE, 8, own)
        }
        Codec::TopK(config) => {
            let own = [
                config.chunk.ilog2(),
                config.k.into(),
                config.mean_scale(total).to_bits(),
                i32::from(config.scale_log2).cast_unsigned(),
                u32::from(config.mean == Mean::Contributors),
            ];
            Method::new(source::TOPK_AVERAGE, 1, own)
        }
        Codec::Ef(config) => average_loco(config.scale_log2, total),
        Codec::IntSgd(config) => {
            Method::new(source::INTSGD_AVERAGE, 256, [mean_scale(config.scale_log2, total).to_bits()])
        }
        Codec::LocoBlock(config) => block_average(&config.format(), total),
        Codec::Block8(config) => block_average(&config.format(), total),
        Codec::Block4(config) => block_average(&config.format(), total),
        Codec::Ef21(config) => {
            let base_log2 = i32::from(config.base_log2).cast_unsigned();
            let inverse = (1.0 / total as f32).to_bits();
            Method::new(source::EF21_AVERAGE, 8, [config.block.into(), base_log2, total, inverse])
        }
        Codec::Sign(config) => {
            let headroom = scale::headroom(total, 1);
            let factor = scale::mean_scale(total, config.base_log2, headroom);
            Method::new(source::SIGN_AVERAGE, 8, [config.block.into(), headroom, factor])
        }
        Codec::Loco(config) => average_loco(config.scale_log2, total),
    }
}

fn encode_loco(config: &loco::Config, step: Step) -> Method {
    let point = 138 - i32::from(config.scale_log2);
    let keep = if config.is_reset(step) { 0 } else { u32::MAX };
    let own = [point.cast_unsigned(), config.residual_scale_log2.into(), config.decay.into(), keep];
    Method::new(source::LOCO_ENCODE, 256, own)
}

fn average_loco(scale_log2: i8, total: u32) -> Method {
    Method::new(source::LOCO_AVERAGE, 256, [mean_scale(scale_log2, total).to_bits()])
}

fn encode_half(half: Half) -> Method {
    let [exponent_bits, digits] = bits(half.format());
    Method::new(source::CAST_ENCODE_HALF, 256, [exponent_bits, digits, half.format().largest().into()])
}

fn average_half(half: Half, total: u32) -> Method {
    let [exponent_bits, digits] = bits(half.format());
    Method::new(source::CAST_AVERAGE_HALF, 128, [total, reciprocal(total), exponent_bits, digits])
}

fn bits(format: convert::Format) -> [u32; 2] {
    [format.exponent_bits, format.mantissa_bits]
}

/// The f32 exponent field of the largest number.
fn last(config: &fp8::Config) -> u32 {
    (127 + config.kind.last()).cast_unsigned()
}

fn block_words(format: &Format) -> [u32; 5] {
    let [step, exponent] = format.bits.divisor().words();
    [format.bits.get(), format.block.into(), i32::from(format.base_log2).cast_unsigned(), step, exponent]
}

fn block_encode(format: &Format) -> Method {
    Method::new(source::BLOCK_ENCODE, 16, block_words(format))
}

fn block_average(format: &Format, total: u32) -> Method {
    let headroom = scale::headroom(total, format.bits.largest_code());
    let factor = scale::mean_scale(total, format.base_log2, headroom);
    Method::new(source::BLOCK_AVERAGE, 8, [format.bits.get(), format.block.into(), headroom, factor])
}

/// Turns packets into parameters: mean and optimizer in one kernel, whose `Params` has one word of the codec. `None` if
/// the optimizer's kernel goes on with the mean of [`average`].
pub(crate) fn average_step(codec: &Codec, optimizer: &Config, total: u32) -> Option<Method> {
    let shader = match (codec, optimizer) {
        (Codec::Loco(_), Config::Sgd(_)) => source::LOCO_SGD,
        (Codec::Loco(_), Config::AdamW(_)) => source::LOCO_ADAMW,
        _ => return None,
    };
    Some(Method { shader, ..average(codec, total) })
}

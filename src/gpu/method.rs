//! The one table of codecs on the device: which kernels, how many units a workgroup takes, which parameters.
//!
//! `Params` of every encode kernel begins with `units`, `columns`; of every average kernel with `units`, `columns`,
//! `ranks`, `elements`. What the functions here give stands behind.

use super::source::{self, Shader};
use crate::codec::block::Format;
use crate::codec::{Codec, Step, scale};

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
}

/// Turns a gradient into a packet at `step`; `None` if only the CPU does.
pub(crate) fn encode(codec: &Codec, step: Step) -> Option<Method> {
    match codec {
        Codec::F32 => None,
        Codec::Loco(config) => {
            let point = 138 - i32::from(config.scale_log2);
            let keep = if config.is_reset(step) { 0 } else { u32::MAX };
            let own = [point.cast_unsigned(), config.residual_scale_log2.into(), config.decay.into(), keep];
            Some(Method::new(source::LOCO_ENCODE, 256, own))
        }
        Codec::LocoBlock(config) => {
            let [bits, block, base_log2, step_up, exponent] = block_words(&config.format());
            let keep = if config.is_reset(step) { 0 } else { u32::MAX };
            let own = [bits, block, base_log2, step_up, exponent, config.decay.into(), keep];
            Some(Method::new(source::LOCO_BLOCK_ENCODE, 16, own))
        }
        Codec::Block8(config) => block_encode(&config.format()),
        Codec::Block4(config) => block_encode(&config.format()),
        Codec::Ef21(config) => {
            let [bits, block, base_log2, step_up, exponent] = block_words(&config.format());
            let own = [bits, block, base_log2, step_up, exponent, config.eta().map_or(0, f32::to_bits)];
            Some(Method::new(source::EF21_ENCODE, 16, own))
        }
        Codec::Sign(config) => {
            let base_log2 = i32::from(config.base_log2).cast_unsigned();
            let own = [0, config.block.into(), base_log2, u32::from(!codec.is_reset(step))];
            Some(Method { counts_elements: true, ..Method::new(source::SIGN_ENCODE, 8, own) })
        }
    }
}

/// Turns packets into their mean, with weights whose sum is `total`; `None` if only the CPU does.
pub(crate) fn average(codec: &Codec, total: u32) -> Option<Method> {
    match codec {
        Codec::F32 => None,
        Codec::Loco(config) => {
            Some(Method::new(source::LOCO_AVERAGE, 256, [config.mean_scale(total).to_bits()]))
        }
        Codec::LocoBlock(config) => block_average(&config.format(), total),
        Codec::Block8(config) => block_average(&config.format(), total),
        Codec::Block4(config) => block_average(&config.format(), total),
        Codec::Ef21(config) => {
            let base_log2 = i32::from(config.base_log2).cast_unsigned();
            let inverse = (1.0 / total as f32).to_bits();
            Some(Method::new(source::EF21_AVERAGE, 8, [config.block.into(), base_log2, total, inverse]))
        }
        Codec::Sign(config) => {
            let headroom = scale::headroom(total, 1);
            let factor = scale::mean_scale(total, config.base_log2, headroom);
            Some(Method::new(source::SIGN_AVERAGE, 8, [config.block.into(), headroom, factor]))
        }
    }
}

fn block_words(format: &Format) -> [u32; 5] {
    let [step, exponent] = format.bits.divisor().words();
    [format.bits.get(), format.block.into(), i32::from(format.base_log2).cast_unsigned(), step, exponent]
}

fn block_encode(format: &Format) -> Option<Method> {
    Some(Method::new(source::BLOCK_ENCODE, 16, block_words(format)))
}

fn block_average(format: &Format, total: u32) -> Option<Method> {
    let headroom = scale::headroom(total, format.bits.largest_code());
    let factor = scale::mean_scale(total, format.base_log2, headroom);
    Some(Method::new(source::BLOCK_AVERAGE, 8, [format.bits.get(), format.block.into(), headroom, factor]))
}

//! The one table of codecs on the device: which kernels, how many units a workgroup takes, which parameters.
//!
//! `Params` of every encode kernel begins with `units`, `columns`; of every average kernel with `units`, `columns`,
//! `ranks`, `elements`. What the functions here give stands behind.

use super::source::{self, Shader};
use crate::codec::topk::{Mean, Residual};
use crate::codec::{Codec, Step};

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
        Codec::TopK(config) => {
            let own = [
                0,
                config.chunk.ilog2(),
                config.k.into(),
                config.decay_factor().to_bits(),
                i32::from(config.scale_log2).cast_unsigned(),
                u32::from(config.residual == Residual::Bits8),
            ];
            Some(Method { counts_elements: true, ..Method::new(source::TOPK_ENCODE, 1, own) })
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
        Codec::TopK(config) => {
            let own = [
                config.chunk.ilog2(),
                config.k.into(),
                config.mean_scale(total).to_bits(),
                i32::from(config.scale_log2).cast_unsigned(),
                u32::from(config.mean == Mean::Contributors),
            ];
            Some(Method::new(source::TOPK_AVERAGE, 1, own))
        }
    }
}

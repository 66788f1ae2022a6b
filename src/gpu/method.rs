//! The one table of codecs on the device: which kernels, how many units a workgroup takes, which parameters.
//!
//! `Params` of every encode kernel begins with `units`, `columns`; of every average kernel with `units`, `columns`,
//! `ranks`, `elements`. What the functions here give stands behind.

use super::source::{self, Shader};
use crate::codec::{Codec, Step};
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
}

impl Method {
    fn new<const N: usize>(shader: Shader, per_workgroup: u32, own: [u32; N]) -> Self {
        const { assert!(N <= WORDS, "too many parameters of a kernel") };
        let mut words = [0; WORDS];
        words[..N].copy_from_slice(&own);
        Self { shader, per_workgroup, words }
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
    }
}

/// Turns packets into their mean, with weights whose sum is `total`; `None` if only the CPU does.
pub(crate) fn average(codec: &Codec, total: u32) -> Option<Method> {
    match codec {
        Codec::F32 => None,
        Codec::Loco(config) => {
            Some(Method::new(source::LOCO_AVERAGE, 256, [config.mean_scale(total).to_bits()]))
        }
    }
}

/// Turns packets into parameters: mean and optimizer in one kernel, whose `Params` has one word of the codec. `None` if
/// the optimizer's kernel goes on with the mean of [`average`].
pub(crate) fn average_step(codec: &Codec, optimizer: &Config, total: u32) -> Option<Method> {
    let shader = match (codec, optimizer) {
        (Codec::Loco(_), Config::Sgd(_)) => source::LOCO_SGD,
        (Codec::Loco(_), Config::AdamW(_)) => source::LOCO_ADAMW,
        _ => return None,
    };
    average(codec, total).map(|method| Method { shader, ..method })
}

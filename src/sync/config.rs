//! How to synchronise: what all ranks choose alike, and where each computes.

use super::Backend;
use crate::codec::loco;
use crate::optim;

/// What the gradient travels as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Codec {
    /// Uncompressed f32: the baseline.
    F32,
    /// LoCo in fixed point, 4 bits. With `scale` = [`Scale::Auto`], `config.scale_log2` is ignored.
    Loco {
        /// The codec's parameters.
        config: loco::Config,
        /// Where the scale comes from.
        scale: Scale,
    },
}

/// Where LoCo's scale comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// From the first step's root mean square over all ranks: about two codes.
    Auto,
    /// From the configuration.
    Fixed,
}

/// What to do with a step in which any rank's gradient has an element that is not finite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NonFinite {
    /// The same typed error on every rank, before any optimizer step. The default.
    #[default]
    Fail,
    /// No rank takes the step; the report says so, with the counts. What the step's codes stood for is lost: the
    /// residual has moved on as if they had been used.
    Skip,
}

/// How to synchronise. All but `backend` must be equal on all ranks, and is compared before the first step.
#[derive(Clone, Debug)]
pub struct Config {
    /// What the gradient travels as.
    pub codec: Codec,
    /// What computes the codec on this rank.
    pub backend: Backend,
    /// What turns the mean gradient into parameters.
    pub optimizer: optim::Config,
    /// What to do about NaN and infinity.
    pub nonfinite: NonFinite,
}

impl Config {
    /// The codec on the CPU, and an error for a gradient that is not finite. Written as `Config { backend,
    /// ..Config::new(codec, optimizer) }`, a caller's code outlives new fields.
    #[must_use]
    pub fn new(codec: Codec, optimizer: optim::Config) -> Self {
        Self { codec, backend: Backend::Cpu, optimizer, nonfinite: NonFinite::default() }
    }
}

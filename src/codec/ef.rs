//! Classic error feedback: 4-bit codes, and what a step loses is added to the next gradient (Seide et al., "1-Bit
//! Stochastic Gradient Descent and its Application to Data-Parallel Distributed Training of Speech DNNs",
//! Interspeech 2014).
//!
//! # What
//!
//! [`loco`] with decay 0 and no reset: the residual is not an average of errors but the whole error of the
//! last step, so that nothing is lost in the long run: the sum of what was sent is the sum of what came in, but for
//! the residual that waits and its rounding.
//!
//! # Wire layout, Exactness, Cost
//!
//! Those of `loco`, whose functions and kernels these are. `residual_scale_log2` ends at 4, since a new error with
//! its whole weight of 256 may weigh 4096 at most.

use std::ops::RangeInclusive;

use super::method::set;
use super::{
    AverageError, CodecId, ConfigError, Gradient, Method, Parameter, StateError, Stats, Step, Unit, loco,
};

/// Parameters of [`ef`](self), the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Codes per gradient unit: `s = 2^scale_log2`. Range -64..=64, default 19.
    pub scale_log2: i8,
    /// Residual steps per code: `s * 2^residual_scale_log2`. Range 0..=4, default 4.
    pub residual_scale_log2: u8,
}

impl Default for Config {
    fn default() -> Self {
        let loco::Config { scale_log2, residual_scale_log2, .. } = loco::Config::default();
        Self { scale_log2, residual_scale_log2 }
    }
}

impl Config {
    /// Allowed [`Config::residual_scale_log2`].
    pub const RESIDUAL_SCALE_LOG2: RangeInclusive<i64> = 0..=4;

    /// The `loco` that this is.
    #[must_use]
    pub const fn loco(&self) -> loco::Config {
        let Self { scale_log2, residual_scale_log2 } = *self;
        loco::Config { scale_log2, residual_scale_log2, decay: 0, reset_every: None }
    }

    /// Checks every range.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Range`] of the first parameter that is out of its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let (least, most) = loco::Config::SCALE_LOG2.into_inner();
        ConfigError::check_range(CodecId::Ef, "scale_log2", self.scale_log2, least.into()..=most.into())?;
        let residual = self.residual_scale_log2;
        ConfigError::check_range(CodecId::Ef, "residual_scale_log2", residual, Self::RESIDUAL_SCALE_LOG2)
    }
}

/// [`loco::encode`] with decay 0 and no reset. Shader: `shaders/loco/encode.wgsl`.
///
/// # Panics
///
/// As there.
pub fn encode(config: &Config, gradient: Gradient<'_>, residual: &mut [i8], packet: &mut [u32]) -> Stats {
    loco::encode(&config.loco(), Step::FIRST, gradient, residual, packet)
}

/// [`loco::average`]. Shader: `shaders/loco/average.wgsl`.
///
/// # Errors
///
/// As there, and [`ConfigError::Range`].
pub fn average(
    config: &Config,
    packets: &[&[u32]],
    weights: &[u32],
    mean: &mut [f32],
) -> Result<(), AverageError> {
    config.validate()?;
    loco::average(&config.loco(), packets, weights, mean)
}

impl Method for Config {
    fn id(&self) -> CodecId {
        CodecId::Ef
    }

    fn validate(&self) -> Result<(), ConfigError> {
        Self::validate(self)
    }

    fn unit(&self) -> Unit {
        loco::UNIT
    }

    fn packet_words(&self, elements: usize) -> usize {
        loco::packet_words(elements)
    }

    fn scale_log2(&self) -> Option<i8> {
        Some(self.scale_log2)
    }

    fn set_scale_log2(&mut self, scale_log2: i8) {
        self.scale_log2 = scale_log2;
    }

    fn parameters(&self) -> Vec<Parameter> {
        vec![Parameter { name: "residual_scale_log2", value: self.residual_scale_log2.into() }]
    }

    fn set_parameter(&mut self, name: &str, value: i64) -> bool {
        name == "residual_scale_log2" && set(&mut self.residual_scale_log2, value)
    }

    fn check_state(&self, elements: usize, words: &[u32]) -> Result<(), StateError> {
        loco::check_state(elements, words)
    }

    fn encode(&self, _: Step, gradient: Gradient<'_>, state: &mut [u32], packet: &mut [u32]) -> Stats {
        let residual = &mut bytemuck::cast_slice_mut(state)[..gradient.len()];
        encode(self, gradient, residual, packet)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_what_loco_takes_with_decay_zero_is_valid() {
        for scale_log2 in i8::MIN..=i8::MAX {
            for residual_scale_log2 in 0..=9 {
                let config = Config { scale_log2, residual_scale_log2 };
                assert_eq!(config.validate().is_ok(), config.loco().validate().is_ok(), "{config:?}");
            }
        }
    }
}

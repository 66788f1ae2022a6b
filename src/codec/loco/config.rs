//! The parameters of LoCo: exponents and 256ths, so that an inexact scale cannot be written down.

use std::num::NonZeroU32;
use std::ops::RangeInclusive;

use super::UNIT;
use crate::codec::method::{set, set_optional};
use crate::codec::{self, AverageError, CodecId, Gradient, Method, Parameter, StateError, Stats, Step, Unit};

/// Parameters of [`loco`](super), the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Codes per gradient unit: `s = 2^scale_log2`. Range -64..=64, default 19 (the paper's, for the gradients
    /// of large language models; other models want the scale that puts their root mean square at about 2 codes).
    pub scale_log2: i8,
    /// Residual steps per code: `s_e = s * 2^residual_scale_log2`. Range 0..=6, default 4.
    ///
    /// 4 and not the paper's 2: with 4 steps per code and decay 0.8 an unsaturated element adds at most
    /// 0.2 * 4 / 2 = 0.4 steps, which rounds away, so that the error feedback would be dead.
    pub residual_scale_log2: u8,
    /// Weight of the OLD residual in the running average, in 1/256; the new error gets the rest.
    /// Range 0..=255, default 205 (0.80). 0 is classic error feedback.
    /// `(256 - decay) << residual_scale_log2` must not exceed 4096.
    pub decay: u8,
    /// Every how many steps the residual is zeroed instead of updated; `None` is never. Default 512.
    pub reset_every: Option<NonZeroU32>,
}

impl Default for Config {
    fn default() -> Self {
        Self { scale_log2: 19, residual_scale_log2: 4, decay: 205, reset_every: NonZeroU32::new(512) }
    }
}

/// A [`Config`] out of its range; the caller's fault, or a peer's when it came over the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// `scale_log2` is not in -64..=64.
    #[error("scale_log2 is {scale_log2}, loco takes -64 to 64")]
    Scale {
        /// The refused value.
        scale_log2: i8,
    },
    /// `residual_scale_log2` is not in 0..=6.
    #[error("residual_scale_log2 is {residual_scale_log2}, loco takes 0 to 6")]
    ResidualScale {
        /// The refused value.
        residual_scale_log2: u8,
    },
    /// A new error would weigh so much that 32 bits overflow.
    #[error(
        "decay {decay} with residual_scale_log2 {residual_scale_log2} weighs a new error {gain}, loco takes up to 4096"
    )]
    Gain {
        /// The refused decay.
        decay: u8,
        /// The residual scale it came with.
        residual_scale_log2: u8,
        /// `(256 - decay) << residual_scale_log2`.
        gain: i32,
    },
}

impl Config {
    /// Allowed [`Config::scale_log2`].
    pub const SCALE_LOG2: RangeInclusive<i8> = -64..=64;

    /// Largest allowed [`Config::gain`].
    pub const GAIN_MAX: i32 = 4096;

    /// Checks every range.
    ///
    /// # Errors
    ///
    /// The first field that is out of range, with its value and the range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let Self { scale_log2, residual_scale_log2, decay, reset_every: _ } = *self;
        if !Self::SCALE_LOG2.contains(&scale_log2) {
            return Err(ConfigError::Scale { scale_log2 });
        }
        if residual_scale_log2 > 6 {
            return Err(ConfigError::ResidualScale { residual_scale_log2 });
        }
        if self.gain() > Self::GAIN_MAX {
            return Err(ConfigError::Gain { decay, residual_scale_log2, gain: self.gain() });
        }
        Ok(())
    }

    /// What a lost unit adds to the averaged residual before the shift by 20:
    /// `(256 - decay) << residual_scale_log2`.
    #[must_use]
    pub fn gain(&self) -> i32 {
        (256 - i32::from(self.decay)) << self.residual_scale_log2.min(16)
    }

    /// Whether `step` zeroes the residual: every `reset_every`-th step, counted from 1.
    #[must_use]
    pub fn is_reset(&self, step: Step) -> bool {
        step.ends(self.reset_every)
    }

    /// [`mean_scale`](codec::fixed::mean_scale) of this scale.
    #[must_use]
    pub fn mean_scale(&self, total: u32) -> f32 {
        codec::fixed::mean_scale(self.scale_log2, total)
    }
}

impl Method for Config {
    fn id(&self) -> CodecId {
        CodecId::Loco
    }

    fn validate(&self) -> Result<(), codec::ConfigError> {
        Ok(Self::validate(self)?)
    }

    fn unit(&self) -> Unit {
        UNIT
    }

    fn packet_words(&self, elements: usize) -> usize {
        super::packet_words(elements)
    }

    fn scale_log2(&self) -> Option<i8> {
        Some(self.scale_log2)
    }

    fn set_scale_log2(&mut self, scale_log2: i8) {
        self.scale_log2 = scale_log2;
    }

    fn is_reset(&self, step: Step) -> bool {
        Self::is_reset(self, step)
    }

    fn parameters(&self) -> Vec<Parameter> {
        let parameter = |name, value| Parameter { name, value };
        vec![
            parameter("residual_scale_log2", self.residual_scale_log2.into()),
            parameter("decay", self.decay.into()),
            parameter("reset_every", self.reset_every.map_or(0, |steps| steps.get().into())),
        ]
    }

    fn set_parameter(&mut self, name: &str, value: i64) -> bool {
        match name {
            "residual_scale_log2" => set(&mut self.residual_scale_log2, value),
            "decay" => set(&mut self.decay, value),
            "reset_every" => set_optional(&mut self.reset_every, value, NonZeroU32::new),
            _ => false,
        }
    }

    fn check_state(&self, elements: usize, words: &[u32]) -> Result<(), StateError> {
        super::check_state(elements, words)
    }

    fn encode(&self, step: Step, gradient: Gradient<'_>, state: &mut [u32], packet: &mut [u32]) -> Stats {
        let residual = &mut bytemuck::cast_slice_mut(state)[..gradient.len()];
        super::encode(self, step, gradient, residual, packet)
    }

    fn average(
        &self,
        packets: &[&[u32]],
        weights: &[u32],
        _: &mut [u32],
        mean: &mut [f32],
    ) -> Result<(), AverageError> {
        super::average(self, packets, weights, mean)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn the_default_is_the_table_of_the_specification() {
        let reset_every = NonZeroU32::new(512);
        assert_eq!(
            Config::default(),
            Config { scale_log2: 19, residual_scale_log2: 4, decay: 205, reset_every }
        );
        assert_eq!(Config::default().validate(), Ok(()));
    }

    #[test]
    fn each_range_is_refused_just_outside_and_taken_just_inside() {
        let config = Config::default();
        for (scale_log2, good) in [(-65, false), (-64, true), (64, true), (65, false), (i8::MIN, false)] {
            assert_eq!(Config { scale_log2, ..config }.validate().is_ok(), good, "scale {scale_log2}");
        }
        for (residual_scale_log2, decay, good) in [
            (4, 0, true),
            (5, 127, false),
            (5, 128, true),
            (6, 191, false),
            (6, 192, true),
            (7, 255, false),
            (255, 255, false),
        ] {
            let got = Config { residual_scale_log2, decay, ..config }.validate();
            assert_eq!(got.is_ok(), good, "residual scale {residual_scale_log2} decay {decay}: {got:?}");
        }
    }

    #[test]
    fn a_reset_comes_on_every_multiple_and_never_without_a_period() {
        let config = |every| Config { reset_every: NonZeroU32::new(every), ..Config::default() };
        let resets =
            |every| (1..=9).filter(|n| config(every).is_reset(Step::new(*n).unwrap())).collect::<Vec<_>>();
        assert_eq!(resets(0), []);
        assert_eq!(resets(1), (1..=9).collect::<Vec<_>>());
        assert_eq!(resets(4), [4, 8]);
    }
}

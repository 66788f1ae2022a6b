//! What a gradient travels as: packets of a codec, or a collective of its own.

use super::powersgd::{self, Shape};
use crate::codec::{Codec, CodecId, ConfigError, Parameter, Step};

/// How the mean gradient comes about, the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Method {
    /// One packet of a codec per owner of a shard.
    Codec(Codec),
    /// Low-rank factors of each matrix, in two all-reduces.
    PowerSgd(powersgd::Config),
}

impl From<Codec> for Method {
    fn from(codec: Codec) -> Self {
        Self::Codec(codec)
    }
}

impl From<powersgd::Config> for Method {
    fn from(config: powersgd::Config) -> Self {
        Self::PowerSgd(config)
    }
}

impl Method {
    /// The name in settings, packets and reports.
    #[must_use]
    pub const fn id(&self) -> CodecId {
        match self {
            Self::Codec(codec) => codec.id(),
            Self::PowerSgd(_) => CodecId::PowerSgd,
        }
    }

    /// Checks every parameter.
    ///
    /// # Errors
    ///
    /// The first parameter that is out of its range, with its value and the range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        match self {
            Self::Codec(codec) => codec.validate(),
            Self::PowerSgd(config) => config.validate(),
        }
    }

    /// Elements on whose multiples shards start.
    #[must_use]
    pub const fn group(&self) -> usize {
        match self {
            Self::Codec(codec) => codec.unit().elements,
            Self::PowerSgd(_) => powersgd::GROUP,
        }
    }

    /// The power of two of codes per gradient unit, for a codec that has one for the whole gradient.
    #[must_use]
    pub const fn scale_log2(&self) -> Option<i8> {
        match self {
            Self::Codec(codec) => codec.scale_log2(),
            Self::PowerSgd(_) => None,
        }
    }

    /// Whether `step` zeroes the residual.
    #[must_use]
    pub fn is_reset(&self, step: Step) -> bool {
        match self {
            Self::Codec(codec) => codec.is_reset(step),
            Self::PowerSgd(_) => false,
        }
    }

    /// All parameters but the scale, at most 10, each fitting 32 bits: what ranks compare before the first step.
    #[must_use]
    pub fn parameters(&self, shapes: &[Shape]) -> Vec<Parameter> {
        match self {
            Self::Codec(codec) => codec.parameters(),
            Self::PowerSgd(config) => config.parameters(shapes),
        }
    }
}

//! Any codec with its parameters, for code that must not care which one it is.

use super::{AverageError, CodecId, ConfigError, Gradient, Stats, Step, cast, loco};

/// What a codec encodes together: the smallest piece of a gradient that has words of its own in the packet.
///
/// A shard starts on a unit, so that the packet of a shard is a run of the words of the whole gradient, and
/// work may be cut between any two units without changing a bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Elements, a multiple of 8.
    pub elements: usize,
    /// `u32` words of the packet.
    pub words: usize,
    /// `u32` words of encoder state.
    pub state_words: usize,
}

/// One number of a codec's configuration, by the name that it has there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// Its value; `None` of an optional number is 0.
    pub value: i64,
}

/// A codec and its parameters, the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Codec {
    /// Uncompressed f32: the baseline.
    F32,
    /// LoCo in fixed point, 4 bits.
    Loco(loco::Config),
}

impl Codec {
    /// The byte on the wire.
    #[must_use]
    pub const fn id(&self) -> CodecId {
        match self {
            Self::F32 => CodecId::F32,
            Self::Loco(_) => CodecId::Loco,
        }
    }

    /// Checks every parameter.
    ///
    /// # Errors
    ///
    /// The first parameter that is out of its range, with its value and the range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        match self {
            Self::F32 => Ok(()),
            Self::Loco(config) => Ok(config.validate()?),
        }
    }

    /// What is encoded together.
    #[must_use]
    pub const fn unit(&self) -> Unit {
        match self {
            Self::F32 => cast::F32_UNIT,
            Self::Loco(_) => loco::UNIT,
        }
    }

    /// `u32` words of a packet of `elements` elements: [`Unit::words`] for each whole unit, and what the rest needs.
    #[must_use]
    pub const fn packet_words(&self, elements: usize) -> usize {
        match self {
            Self::F32 => elements,
            Self::Loco(_) => loco::packet_words(elements),
        }
    }

    /// `u32` words of encoder state for `elements` elements, all 0 in the beginning. Device and CPU keep the same.
    #[must_use]
    pub const fn state_words(&self, elements: usize) -> usize {
        let unit = self.unit();
        elements.div_ceil(unit.elements) * unit.state_words
    }

    /// `u32` words that the owner of a shard of `elements` keeps between means, all 0 in the beginning; 0 for all
    /// codecs whose packets stand for themselves.
    #[must_use]
    pub const fn mean_state_words(&self, _world_size: usize, _elements: usize) -> usize {
        match self {
            Self::F32 | Self::Loco(_) => 0,
        }
    }

    /// The power of two of codes per gradient unit, for a codec that has one for the whole gradient.
    #[must_use]
    pub const fn scale_log2(&self) -> Option<i8> {
        match self {
            Self::F32 => None,
            Self::Loco(config) => Some(config.scale_log2),
        }
    }

    /// Sets what [`Self::scale_log2`] tells; nothing for a codec without it.
    pub const fn set_scale_log2(&mut self, scale_log2: i8) {
        match self {
            Self::F32 => {}
            Self::Loco(config) => config.scale_log2 = scale_log2,
        }
    }

    /// Whether `step` zeroes the residual.
    #[must_use]
    pub fn is_reset(&self, step: Step) -> bool {
        match self {
            Self::F32 => false,
            Self::Loco(config) => config.is_reset(step),
        }
    }

    /// All parameters but the scale, at most 10, each fitting 32 bits: what ranks compare before the first step.
    #[must_use]
    pub fn parameters(&self) -> Vec<Parameter> {
        let parameter = |name, value: i64| Parameter { name, value };
        match self {
            Self::F32 => Vec::new(),
            Self::Loco(config) => vec![
                parameter("residual_scale_log2", config.residual_scale_log2.into()),
                parameter("decay", config.decay.into()),
                parameter("reset_every", config.reset_every.map_or(0, |steps| steps.get().into())),
            ],
        }
    }

    /// Encodes one chunk, which starts on a [`Unit`]; updates `state` in place.
    ///
    /// `state` has [`Self::state_words`] and `packet` [`Self::packet_words`] of the gradient's elements (0 is allowed).
    ///
    /// # Panics
    ///
    /// If a length does not fit the gradient's, or the parameters are not [valid](Self::validate).
    pub fn encode(&self, step: Step, gradient: Gradient<'_>, state: &mut [u32], packet: &mut [u32]) -> Stats {
        let n = gradient.len();
        let (words, expected) = (state.len(), self.state_words(n));
        assert_eq!(words, expected, "state of {words} words for {n} elements, which need {expected}");
        match self {
            Self::F32 => cast::encode_f32(gradient, packet),
            Self::Loco(config) => {
                let residual = &mut bytemuck::cast_slice_mut(state)[..n];
                loco::encode(config, step, gradient, residual, packet)
            }
        }
    }

    /// What [`Self::average`] checks before it reads a packet, for a mean of `elements` that is computed elsewhere; the
    /// result is the sum of the weights.
    ///
    /// # Errors
    ///
    /// Those of [`Self::average`].
    pub fn check(&self, packets: &[&[u32]], weights: &[u32], elements: usize) -> Result<u32, AverageError> {
        self.validate()?;
        let total = AverageError::check(packets, weights, elements, self.packet_words(elements))?;
        match self {
            // Every word is one that an encoder may write.
            Self::F32 | Self::Loco(_) => Ok(total),
        }
    }

    /// The weighted mean of one packet per rank, in rank order, into `mean`.
    ///
    /// Every packet has [`Self::packet_words`]`(mean.len())` words; `weights` are samples per rank (0 is allowed as long
    /// as the sum is positive); `state` has [`Self::mean_state_words`].
    ///
    /// # Errors
    ///
    /// [`AverageError`] if counts or lengths do not fit, all weights are 0, `8 * sum(weights) >= 2^24`, a packet says
    /// what no encoder says, or the parameters are out of range.
    ///
    /// # Panics
    ///
    /// If `state` has another length.
    pub fn average(
        &self,
        packets: &[&[u32]],
        weights: &[u32],
        state: &mut [u32],
        mean: &mut [f32],
    ) -> Result<(), AverageError> {
        let (words, expected) = (state.len(), self.mean_state_words(packets.len(), mean.len()));
        assert_eq!(words, expected, "state of {words} words for a mean that needs {expected}");
        match self {
            Self::F32 => cast::average_f32(packets, weights, mean),
            Self::Loco(config) => loco::average(config, packets, weights, mean),
        }
    }
}

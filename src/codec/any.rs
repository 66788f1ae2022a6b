//! Any codec with its parameters, for code that must not care which one it is.

use std::borrow::Cow;
use std::ops::Range;

use super::cast::{F32, Half};
use super::{
    AverageError, CodecId, ConfigError, Gradient, Method, StateError, Stats, Step, block, ef, ef21, fp8,
    intsgd, loco, loco_block, sign, topk,
};

mod text;

pub use text::ParseCodecError;
pub(crate) use text::{Named, accepted};

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
///
/// As text: `name` for the defaults, or `name:parameter=value,parameter=value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Codec {
    /// Uncompressed f32: the baseline.
    F32,
    /// LoCo in fixed point, 4 bits.
    Loco(loco::Config),
    /// The largest of each chunk, 2 bits each, with error feedback.
    TopK(topk::Config),
    /// IEEE 754 half precision.
    F16,
    /// The upper half of an f32.
    Bf16,
    /// 8-bit floats with one exponent per block.
    Fp8(fp8::Config),
    /// Classic error feedback: LoCo without decay and reset.
    Ef(ef::Config),
    /// Signed bytes with one scale.
    IntSgd(intsgd::Config),
    /// LoCo with one scale per block; 2, 4 or 8 bits.
    LocoBlock(loco_block::Config),
    /// One scale per block, 8 bits.
    Block8(block::Block8),
    /// One scale per block, 4 bits.
    Block4(block::Block4),
    /// What changed, in 4 bits with one scale per block.
    Ef21(ef21::Config),
    /// One bit per element and a scale per block.
    Sign(sign::Config),
}

impl Codec {
    /// The codec of this byte with its default parameters.
    #[must_use]
    pub fn new(id: CodecId) -> Self {
        match id {
            CodecId::F32 => Self::F32,
            CodecId::Loco => Self::Loco(loco::Config::default()),
            CodecId::TopK => Self::TopK(topk::Config::default()),
            CodecId::F16 => Self::F16,
            CodecId::Bf16 => Self::Bf16,
            CodecId::Fp8 => Self::Fp8(fp8::Config::default()),
            CodecId::Ef => Self::Ef(ef::Config::default()),
            CodecId::IntSgd => Self::IntSgd(intsgd::Config::default()),
            CodecId::LocoBlock => Self::LocoBlock(loco_block::Config::default()),
            CodecId::Block8 => Self::Block8(block::Config::default()),
            CodecId::Block4 => Self::Block4(block::Config::default()),
            CodecId::Ef21 => Self::Ef21(ef21::Config::default()),
            CodecId::Sign => Self::Sign(sign::Config::default()),
        }
    }

    fn method(&self) -> &dyn Method {
        match self {
            Self::F32 => &F32,
            Self::Loco(config) => config,
            Self::TopK(config) => config,
            Self::F16 => &Half::F16,
            Self::Bf16 => &Half::Bf16,
            Self::Fp8(config) => config,
            Self::Ef(config) => config,
            Self::IntSgd(config) => config,
            Self::LocoBlock(config) => config,
            Self::Block8(config) => config,
            Self::Block4(config) => config,
            Self::Ef21(config) => config,
            Self::Sign(config) => config,
        }
    }

    fn method_mut(&mut self) -> Option<&mut dyn Method> {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => None,
            Self::Loco(config) => Some(config),
            Self::TopK(config) => Some(config),
            Self::Fp8(config) => Some(config),
            Self::Ef(config) => Some(config),
            Self::IntSgd(config) => Some(config),
            Self::LocoBlock(config) => Some(config),
            Self::Block8(config) => Some(config),
            Self::Block4(config) => Some(config),
            Self::Ef21(config) => Some(config),
            Self::Sign(config) => Some(config),
        }
    }

    /// The byte on the wire.
    #[must_use]
    pub fn id(&self) -> CodecId {
        self.method().id()
    }

    /// Checks every parameter.
    ///
    /// # Errors
    ///
    /// The first parameter that is out of its range, with its value and the range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.method().validate()
    }

    /// What is encoded together.
    #[must_use]
    pub fn unit(&self) -> Unit {
        self.method().unit()
    }

    /// `u32` words of a packet of `elements` elements: [`Unit::words`] for each whole unit, and what the rest needs.
    #[must_use]
    pub fn packet_words(&self, elements: usize) -> usize {
        self.method().packet_words(elements)
    }

    /// `u32` words of encoder state for `elements` elements, all 0 in the beginning. Device and CPU keep the same.
    #[must_use]
    pub fn state_words(&self, elements: usize) -> usize {
        let unit = self.unit();
        elements.div_ceil(unit.elements).saturating_mul(unit.state_words)
    }

    /// `u32` words that the owner of a shard of `elements` keeps between means, all 0 in the beginning; 0 for all
    /// codecs whose packets stand for themselves.
    #[must_use]
    pub fn mean_state_words(&self, world_size: usize, elements: usize) -> usize {
        self.method().mean_state_words(world_size, elements)
    }

    /// The power of two of codes per gradient unit, for a codec that has one for the whole gradient.
    #[must_use]
    pub fn scale_log2(&self) -> Option<i8> {
        self.method().scale_log2()
    }

    /// Sets what [`Self::scale_log2`] tells; nothing for a codec without it.
    pub fn set_scale_log2(&mut self, scale_log2: i8) {
        if let Some(method) = self.method_mut() {
            method.set_scale_log2(scale_log2);
        }
    }

    /// Where an automatic scale puts the root mean square of the gradient: at about 2 to this power, in codes.
    #[must_use]
    pub fn rms_log2(&self) -> i8 {
        self.method().rms_log2()
    }

    /// Whether an automatic scale is set anew before every step, from the mean gradient of the step before.
    #[must_use]
    pub fn rescales(&self) -> bool {
        self.method().rescales()
    }

    /// Whether `step` zeroes the residual.
    #[must_use]
    pub fn is_reset(&self, step: Step) -> bool {
        self.method().is_reset(step)
    }

    /// All parameters but the scale, at most 10, each fitting 32 bits: what ranks compare before the first step.
    #[must_use]
    pub fn parameters(&self) -> Vec<Parameter> {
        self.method().parameters()
    }

    /// Sets the parameter of this name among [`Self::parameters`]; false if there is none, or it cannot hold `value`.
    /// Ranges are for [`Self::validate`].
    pub fn set_parameter(&mut self, name: &str, value: i64) -> bool {
        self.method_mut().is_some_and(|method| method.set_parameter(name, value))
    }

    /// Whether `words` are a state that [`Self::encode`] can go on from, for words that come from outside: a checkpoint.
    ///
    /// Refused is what no encoder leaves and would do harm: bits behind the last element (of `loco`, `ef`, `topk`,
    /// `loco-block`, `sign` and `ef21`; there CPU and kernel differ, or a packet gets codes that no element has), a float
    /// that is not finite (`topk`, `ef21`), and of `topk` in bytes an exponent of 255 or a byte of -128, whose value may
    /// be no f32. Every other word is read as it stands, alike on every device: any residual byte, any scale byte.
    ///
    /// # Errors
    ///
    /// [`StateError`]: the first word that is refused, with what is there and what may be.
    pub fn check_state(&self, elements: usize, words: &[u32]) -> Result<(), StateError> {
        self.validate()?;
        StateError::check_length("state", words.len(), self.state_words(elements), elements)?;
        self.method().check_state(elements, words)
    }

    /// The same for the state of [`Self::average`], for the owner of a shard of `elements`: `ef21`'s floats are finite.
    ///
    /// What is behind the last element is not looked at, since no mean shows it.
    ///
    /// # Errors
    ///
    /// As [`Self::check_state`].
    pub fn check_mean_state(
        &self,
        world_size: usize,
        elements: usize,
        words: &[u32],
    ) -> Result<(), StateError> {
        self.validate()?;
        let expected = self.mean_state_words(world_size, elements);
        StateError::check_length("mean state", words.len(), expected, elements)?;
        self.method().check_mean_state(words)
    }

    /// Encodes one chunk, which starts on a [`Unit`]; updates `state` in place.
    ///
    /// `state` has [`Self::state_words`] and `packet` [`Self::packet_words`] of the gradient's elements (0 is allowed).
    /// A state that was not all 0 in the beginning, nor left by an encoder, is for [`Self::check_state`]: here it is read as
    /// it stands.
    ///
    /// # Panics
    ///
    /// If a length does not fit the gradient's, or the parameters are not [valid](Self::validate).
    pub fn encode(&self, step: Step, gradient: Gradient<'_>, state: &mut [u32], packet: &mut [u32]) -> Stats {
        let n = gradient.len();
        if let Err(error) = self.validate() {
            panic!("caller did not validate the codec: {error}");
        }
        for (what, words, expected) in
            [("state", state.len(), self.state_words(n)), ("packet", packet.len(), self.packet_words(n))]
        {
            assert_eq!(words, expected, "{what} of {words} words for {n} elements, which need {expected}");
        }
        self.method().encode(step, gradient, state, packet)
    }

    /// What [`Self::average`] checks before it reads a packet, for a mean of `elements` that is computed elsewhere; the
    /// result is the sum of the weights.
    ///
    /// # Errors
    ///
    /// Those of [`Self::average`].
    pub fn check(&self, packets: &[&[u32]], weights: &[u32], elements: usize) -> Result<u32, AverageError> {
        self.validate()?;
        self.method().check(packets, weights, elements)
    }

    /// The packets that a mean computed elsewhere takes in place of those that came and passed [`Self::check`]; `None`
    /// if it takes those.
    #[must_use]
    pub fn clip<'a>(
        &self,
        packets: &[&'a [u32]],
        weights: &[u32],
        elements: usize,
    ) -> Option<Vec<Cow<'a, [u32]>>> {
        self.method().clip(packets, weights, elements)
    }

    /// The weighted mean of one packet per rank, in rank order, into `mean`.
    ///
    /// Every packet has [`Self::packet_words`]`(mean.len())` words; `weights` are samples per rank (0 is allowed as long
    /// as the sum is positive); `state` has [`Self::mean_state_words`], which one from outside must have passed
    /// [`Self::check_mean_state`].
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
        self.validate()?;
        let (words, expected) = (state.len(), self.mean_state_words(packets.len(), mean.len()));
        assert_eq!(words, expected, "state of {words} words for a mean that needs {expected}");
        self.method().average(packets, weights, state, mean)
    }

    /// Whether the mean of a shard can be computed part by part, with the same bits as in one go.
    #[must_use]
    pub fn averages_in_parts(&self) -> bool {
        self.method().averages_in_parts()
    }

    /// [`Self::average`] of the elements `part` of a shard of `shard` elements: `packets` have the words of those elements
    /// only, `mean` has as many elements, and `state` is the whole shard's. A part starts on a [`Unit`], and ends on one or
    /// with the shard; parts may come in any order.
    ///
    /// The bits are those of the whole if [`Self::averages_in_parts`].
    ///
    /// # Errors
    ///
    /// As [`Self::average`]; units are counted from the start of the shard.
    ///
    /// # Panics
    ///
    /// If `part` does not lie in the shard, on units, or a length does not fit.
    pub fn average_part(
        &self,
        packets: &[&[u32]],
        weights: &[u32],
        state: &mut [u32],
        shard: usize,
        part: Range<usize>,
        mean: &mut [f32],
    ) -> Result<(), AverageError> {
        self.validate()?;
        let unit = self.unit().elements;
        let on_units =
            part.start.is_multiple_of(unit) && (part.end == shard || part.end.is_multiple_of(unit));
        assert!(
            part.start <= part.end && part.end <= shard && (on_units || part.is_empty()),
            "part {part:?} of {shard} elements in units of {unit}"
        );
        assert_eq!(mean.len(), part.len(), "a mean of {} elements for {}", mean.len(), part.len());
        let (words, expected) = (state.len(), self.mean_state_words(packets.len(), shard));
        assert_eq!(words, expected, "state of {words} words for a mean that needs {expected}");
        let first = part.start / unit;
        self.method().average_part(packets, weights, state, shard, part, mean).map_err(|error| match error {
            AverageError::Malformed { index, unit, what, found, expected } => {
                AverageError::Malformed { index, unit: first + unit, what, found, expected }
            }
            other => other,
        })
    }
}

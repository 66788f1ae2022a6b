//! What every codec can do, whichever it is.

use std::borrow::Cow;
use std::ops::Range;

use super::{AverageError, CodecId, ConfigError, Gradient, Parameter, StateError, Stats, Step, Unit};

/// A codec with its parameters: implemented by the `Config` of each codec, in its module.
///
/// Lengths and parameters have been checked when `encode` and `average` are called through [`Codec`](super::Codec).
pub trait Method {
    /// The byte on the wire.
    fn id(&self) -> CodecId;

    /// Checks every parameter.
    ///
    /// # Errors
    ///
    /// The first parameter that is out of its range, with its value and the range.
    fn validate(&self) -> Result<(), ConfigError>;

    /// What is encoded together.
    fn unit(&self) -> Unit;

    /// `u32` words of a packet of `elements` elements: [`Unit::words`] for each whole unit, and what the rest needs.
    fn packet_words(&self, elements: usize) -> usize;

    /// `u32` words that the owner of a shard of `elements` keeps between means, all 0 in the beginning; 0 for a codec
    /// whose packets stand for themselves.
    fn mean_state_words(&self, world_size: usize, elements: usize) -> usize {
        let _ = (world_size, elements);
        0
    }

    /// The power of two of codes per gradient unit, for a codec that has one for the whole gradient.
    fn scale_log2(&self) -> Option<i8> {
        None
    }

    /// Sets what [`Self::scale_log2`] tells; nothing for a codec without it.
    fn set_scale_log2(&mut self, scale_log2: i8) {
        let _ = scale_log2;
    }

    /// Where an automatic scale puts the root mean square of the gradient: at about 2 to this power, in codes.
    fn rms_log2(&self) -> i8 {
        1
    }

    /// Whether an automatic scale is set anew before every step, from the mean gradient of the step before.
    fn rescales(&self) -> bool {
        false
    }

    /// Whether `step` zeroes the residual.
    fn is_reset(&self, step: Step) -> bool {
        let _ = step;
        false
    }

    /// All parameters but the scale, at most 10, each fitting 32 bits: what ranks compare before the first step.
    fn parameters(&self) -> Vec<Parameter>;

    /// Sets the parameter of this name among [`Self::parameters`]; false if there is none, or it cannot hold `value`.
    /// Ranges are for [`Self::validate`].
    fn set_parameter(&mut self, name: &str, value: i64) -> bool;

    /// See [`Codec::check_state`](super::Codec::check_state); the length fits. A codec with a state looks into it.
    ///
    /// # Errors
    ///
    /// As there.
    fn check_state(&self, elements: usize, words: &[u32]) -> Result<(), StateError> {
        let _ = (elements, words);
        Ok(())
    }

    /// See [`Codec::check_mean_state`](super::Codec::check_mean_state); the length fits.
    ///
    /// # Errors
    ///
    /// As there.
    fn check_mean_state(&self, words: &[u32]) -> Result<(), StateError> {
        let _ = words;
        Ok(())
    }

    /// See [`Codec::encode`](super::Codec::encode).
    fn encode(&self, step: Step, gradient: Gradient<'_>, state: &mut [u32], packet: &mut [u32]) -> Stats;

    /// See [`Codec::check`](super::Codec::check). A codec whose packets may say what no encoder says looks into them.
    ///
    /// # Errors
    ///
    /// As there.
    fn check(&self, packets: &[&[u32]], weights: &[u32], elements: usize) -> Result<u32, AverageError> {
        AverageError::check(packets, weights, elements, self.packet_words(elements))
    }

    /// See [`Codec::clip`](super::Codec::clip). Only `topk` changes packets, on request.
    fn clip<'a>(
        &self,
        packets: &[&'a [u32]],
        weights: &[u32],
        elements: usize,
    ) -> Option<Vec<Cow<'a, [u32]>>> {
        let _ = (packets, weights, elements);
        None
    }

    /// See [`Codec::average`](super::Codec::average).
    ///
    /// # Errors
    ///
    /// As there.
    fn average(
        &self,
        packets: &[&[u32]],
        weights: &[u32],
        state: &mut [u32],
        mean: &mut [f32],
    ) -> Result<(), AverageError>;

    /// See [`Codec::averages_in_parts`](super::Codec::averages_in_parts). Only `topk` looks at whole packets, on request.
    fn averages_in_parts(&self) -> bool {
        true
    }

    /// See [`Codec::average_part`](super::Codec::average_part). A codec with a state for means finds the part in it.
    ///
    /// # Errors
    ///
    /// As there.
    fn average_part(
        &self,
        packets: &[&[u32]],
        weights: &[u32],
        state: &mut [u32],
        shard: usize,
        part: Range<usize>,
        mean: &mut [f32],
    ) -> Result<(), AverageError> {
        let _ = (shard, part);
        self.average(packets, weights, state, mean)
    }
}

/// Puts `value` into `field` if it fits: the body of a [`Method::set_parameter`].
pub(crate) fn set<T: TryFrom<i64>>(field: &mut T, value: i64) -> bool {
    T::try_from(value).map(|value| *field = value).is_ok()
}

/// The same for an optional number, where 0 is none.
pub(super) fn set_optional<T, U: TryFrom<i64>>(
    field: &mut Option<T>,
    value: i64,
    new: fn(U) -> Option<T>,
) -> bool {
    U::try_from(value).map(|value| *field = new(value)).is_ok()
}

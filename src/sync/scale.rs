//! A scale that every rank agrees on: from a root mean square over all ranks.
//!
//! The paper's 2^19 fits the gradients of large language models. Here each rank sends the sum of squares of
//! its first gradient; the scale is the power of two that puts the root mean square of all of them at
//! about as many codes as the codec asks for. LoCo's are two, so that a code step is half a standard deviation and 99.98 %
//! of a Gaussian is not clamped.
//!
//! A codec without error feedback that [rescales](crate::codec::Codec::rescales) (IntSGD, arXiv 2102.08374) does so before
//! every step, from the mean gradient of the step before, of which each rank has its own shard.
//!
//! **Exactness.** All ranks compute the scale from the same N numbers in rank order, in f64 additions and
//! comparisons with powers of two, without a library function whose last bit differs between platforms.
//!
//! **Wire layout** of a moment: sum of squares as f64 bits, then the number of elements as `u64`, little-endian.

use super::packet::PacketError;
use crate::codec::loco::Config;
use crate::codec::{CHUNK, Gradient};

/// Bytes of a [`Moment`] on the wire.
pub const BYTES: usize = 16;

/// The second moment of one rank's gradient. Elements that are not finite do not count.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moment {
    /// Sum of squares, finite.
    pub sum_of_squares: f64,
    /// Finite elements.
    pub elements: u64,
}

impl Moment {
    /// Of `gradient`, added in order. No f32 square overflows f64.
    #[must_use]
    pub fn of(gradient: Gradient<'_>) -> Self {
        let (mut sum_of_squares, mut elements) = (0.0, 0);
        gradient.for_each_chunk(CHUNK, |_, values| {
            for value in values.iter().filter(|value| value.is_finite()) {
                let value = f64::from(*value);
                sum_of_squares += value * value;
                elements += 1;
            }
        });
        Self { sum_of_squares, elements }
    }

    pub(super) fn encode(&self) -> [u8; BYTES] {
        let mut out = [0; BYTES];
        out[..8].copy_from_slice(&self.sum_of_squares.to_bits().to_le_bytes());
        out[8..].copy_from_slice(&self.elements.to_le_bytes());
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, PacketError> {
        let Some((&[sum, elements], [])) = bytes.as_chunks::<8>().0.split_first_chunk::<2>() else {
            return Err(PacketError::Length { have: bytes.len(), need: BYTES });
        };
        let sum_of_squares = f64::from_bits(u64::from_le_bytes(sum));
        if !(sum_of_squares.is_finite() && sum_of_squares >= 0.0) {
            return Err(PacketError::Moment { found: sum_of_squares });
        }
        Ok(Self { sum_of_squares, elements: u64::from_le_bytes(elements) })
    }
}

/// The largest `scale_log2` for which the root mean square is at most sqrt(2) * 2^`rms_log2` codes, within the codec's
/// range; so it is above that bound's half. `None` while every gradient is zero.
#[must_use]
pub fn agree(moments: &[Moment], rms_log2: i8) -> Option<i8> {
    let sum: f64 = moments.iter().map(|moment| moment.sum_of_squares).sum();
    let elements: u64 = moments.iter().fold(0, |sum, moment| sum.saturating_add(moment.elements));
    if !(sum.is_finite() && sum > 0.0) || elements == 0 {
        return None;
    }
    #[expect(clippy::cast_precision_loss, reason = "the same rounding on every rank")]
    let mean_square = sum / elements as f64;
    let range = Config::SCALE_LOG2;
    // One code first: what is asked for comes on top, so the search goes beyond the range on both sides.
    // Multiplying by 4 is exact (2^-128 squared is far above the subnormals of f64), so is the comparison.
    let mut scale_log2 = 2 * i16::from(*range.start());
    let mut scaled = mean_square * 2.0_f64.powi(2 * i32::from(scale_log2));
    while scale_log2 < 2 * i16::from(*range.end()) && scaled * 4.0 <= 2.0 {
        scaled *= 4.0;
        scale_log2 += 1;
    }
    let asked = scale_log2 + i16::from(rms_log2);
    i8::try_from(asked.clamp((*range.start()).into(), (*range.end()).into())).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agreed(rms: f64) -> Option<i8> {
        agree(&[Moment { sum_of_squares: rms * rms * 10.0, elements: 10 }], 1)
    }

    #[test]
    fn the_root_mean_square_lands_at_about_two_codes() {
        for exponent in -60..60 {
            for mantissa in [1.0, 1.2, 1.4, 1.5, 1.9] {
                let rms = mantissa * 2.0_f64.powi(exponent);
                let codes = agreed(rms).map(|scale| rms * 2.0_f64.powi(scale.into()));
                assert!(codes.is_some_and(|c| (1.414..2.829).contains(&c)), "{rms}: {codes:?}");
            }
        }
    }

    #[test]
    fn a_codec_of_more_bits_gets_more_codes() {
        let moments = [Moment { sum_of_squares: 10.0, elements: 10 }];
        assert_eq!([-1, 0, 1, 4, 100].map(|rms_log2| agree(&moments, rms_log2)), [-1, 0, 1, 4, 64].map(Some));
    }

    #[test]
    fn the_scale_stays_in_the_codecs_range_and_is_open_while_all_is_zero() {
        assert_eq!(agreed(1e-30), Some(64));
        assert_eq!(agreed(1e30), Some(-64));
        assert_eq!(agreed(0.0), None);
        assert_eq!(agree(&[], 1), None);
    }

    #[test]
    fn elements_that_are_not_finite_do_not_count() {
        let moment = Moment::of((&[3.0, f32::NAN, f32::INFINITY, -4.0]).into());
        assert_eq!(moment, Moment { sum_of_squares: 25.0, elements: 2 });
    }

    #[test]
    fn moments_travel_as_their_bits_and_lies_are_refused() {
        let moment = Moment { sum_of_squares: 0.1, elements: 7 };
        assert_eq!(Moment::decode(&moment.encode()), Ok(moment));
        assert_eq!(Moment::decode(&[0; 15]), Err(PacketError::Length { have: 15, need: 16 }));
        for lie in [-1.0, f64::INFINITY] {
            let bytes = Moment { sum_of_squares: lie, elements: 1 }.encode();
            assert_eq!(Moment::decode(&bytes), Err(PacketError::Moment { found: lie }));
        }
    }
}

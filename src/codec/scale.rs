//! One byte of scale for a block, and block floating point around it: integers only, so that every device agrees.
//!
//! A scale is `(4 + m) * 2^e` with `m` in `0..4`. On the wire it is one byte, `4 * (e - base_log2) + m`, relative to
//! a base exponent that the whole packet shares; byte 0 says "this block is zero". In arithmetic it is an *index*
//! `4 * e + m` relative to the unit of the fixed point, never below 0 there.
//!
//! A block's gradient, residual and losses are integers in units of `2^unit`, where [`unit_log2`] follows from the
//! largest exponent in the block alone ([`exponent`], [`residual_exponent`]). With 21 digits below it nothing in a block
//! reaches 2^30. The residual is one signed byte per element with a scale byte per block, of a base that is 2^8 lower:
//! what is lost is as a rule at most half a scale, and a 128th of that
//! a 256th of the scale.
//!
//! Fragment: `shaders/lib/scale.wgsl`.

use std::ops::RangeInclusive;

use super::fixed::{is_finite, rne_shift};

/// Base exponents that a configuration may have.
///
/// Below -80 the smallest mean, `2^(base_log2 - 29)`, would come close to the subnormals that devices flush; above 55
/// the largest, `128 * 7 * 2^(63 + base_log2)`, is no f32.
pub const BASE_LOG2: RangeInclusive<i8> = -80..=55;

/// The default: scales from `5 * 2^-50` to `7 * 2^13` take every gradient that f16 holds.
pub const BASE_LOG2_DEFAULT: i8 = -50;

/// Binary digits of the fixed point below the largest exponent of a block.
pub const DIGITS: i32 = 21;

/// A gradient of biased exponent `x` is below `2^(x - 126)`.
const EXPONENT_BIAS: i32 = 126;

/// The residual's base exponent is lower by this.
const RESIDUAL_LOG2: i32 = 8;

/// `2^16 / (4 + m)`, rounded up. Times `t < 1024` it is off by less than `1024 / 2^16 = 1/64`, and a quotient of
/// integers lies at least 1/7 below the next integer: the floor is exact.
const RECIPROCAL: [u32; 4] = [16_384, 13_108, 10_923, 9_363];

/// Larger quotients are clamped by any code range, so that their value does not matter: `1023 / 7 = 146 > 128`.
const QUOTIENT_INPUT_MAX: u32 = 1023;

/// How a block's largest magnitude becomes its scale: divided by `factor * 2^log2`, then the nearest scale or the next
/// above. The four thresholds of one octave of magnitudes, `factor` times 9, 11, 13 and 15 (or 8, 10, 12 and 14), do not
/// straddle a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Divisor {
    factor: u32,
    log2: i32,
    /// 1: nearest, 0: above.
    half: u32,
}

impl Divisor {
    /// The scale nearest to the magnitude itself, for codes -1 and 1.
    pub const ONE: Self = Self { factor: 1, log2: 0, half: 1 };
    /// The scale nearest to `absmax / 2`, for codes -2..=1.
    pub const BITS_2: Self = Self { factor: 1, log2: 1, half: 1 };
    /// The scale nearest to `absmax / 7.5`, for codes -8..=7.
    pub const BITS_4: Self = Self { factor: 15, log2: -1, half: 1 };
    /// The next scale above `absmax / 128`, for codes -128..=127 and for residuals. The nearest would clip the largest
    /// element by up to an eighth, which is 16 steps: 5.6 times the squared error on Gaussian data.
    pub const BITS_8: Self = Self { factor: 1, log2: 7, half: 0 };

    /// Where the first threshold has its leading one at bit 31.
    const fn place(self) -> u32 {
        ((8 + self.half) * self.factor).leading_zeros()
    }

    /// What stands for this divisor in a kernel, which knows itself whether it rounds or goes up: the factor at its place,
    /// which the thresholds are multiples of, and the exponent of a magnitude whose leading one is bit 31.
    #[must_use]
    pub const fn words(self) -> [u32; 2] {
        let exponent = self.place().cast_signed() - self.log2 + 1;
        [self.factor << self.place(), exponent.cast_unsigned()]
    }
}

/// The index of the scale of `magnitude` by `divisor`: the nearest, the larger one halfway between two; or the next above.
///
/// `magnitude` is at least 1. The result is relative to its unit and at least 0: a scale is never finer than four units.
#[must_use]
#[inline]
pub const fn choose(magnitude: u32, divisor: Divisor) -> i32 {
    let [step, exponent] = divisor.words();
    let zeros = magnitude.leading_zeros();
    let normal = magnitude << zeros;
    // Halfway between scales 4, 5, 6, 7 and 8: at 9/2, 11/2, 13/2, 15/2 of the divisor; or at them, 8/2, 10/2, 12/2, 14/2.
    let first = (8 + divisor.half) * step;
    let count = (normal >= first) as i32
        + (normal >= first + 2 * step) as i32
        + (normal >= first + 4 * step) as i32
        + (normal >= first + 6 * step) as i32;
    let index = 4 * (exponent.cast_signed() - zeros.cast_signed()) + count;
    if index < 0 { 0 } else { index }
}

/// The byte of the scale with `index` in units that are `offset / 4` powers of two above the base: 255 if it is above the
/// largest, 0 if it is below the smallest.
#[must_use]
#[inline]
pub const fn to_byte(index: i32, offset: i32) -> u8 {
    let byte = index + offset;
    #[allow(clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "in 1..=255")]
    match byte {
        ..1 => 0,
        1..=255 => byte as u8,
        _ => 255,
    }
}

/// The index of the scale that `byte` (not 0) stands for, at least 0.
///
/// Below 0 only where [`to_byte`] met a block above the largest scale by 2^13 and more, in which every code and every
/// residual is at its clamp.
#[must_use]
#[inline]
pub const fn to_index(byte: u8, offset: i32) -> i32 {
    let index = byte as i32 - offset;
    if index < 0 { 0 } else { index }
}

/// The scale of `index` in units: `(4 + m) << e`. `index` is below 112.
#[must_use]
#[inline]
pub const fn units(index: i32) -> i32 {
    (4 + (index & 3)) << (index >> 2)
}

/// `magnitude` over the scale of `index`, rounded to nearest, ties to even; where that is above 146, anything above it.
///
/// `magnitude < 2^30`, and `0 <= index < 100`. The floor comes from the reciprocal and is exact, and so is the remainder.
#[must_use]
#[inline]
pub const fn quotient(magnitude: u32, index: i32) -> u32 {
    Quotient::by(index).of(magnitude)
}

/// [`quotient`] by one scale, for a loop.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quotient {
    shift: u32,
    reciprocal: u32,
    scale: u32,
}

impl Quotient {
    /// By the scale of `index`.
    #[inline(always)]
    pub(super) const fn by(index: i32) -> Self {
        let (shift, reciprocal) = ((index >> 2).cast_unsigned(), RECIPROCAL[(index & 3) as usize]);
        Self { shift, reciprocal, scale: units(index).cast_unsigned() }
    }

    /// See [`quotient`].
    #[inline(always)]
    pub(super) const fn of(self, magnitude: u32) -> u32 {
        let shifted = magnitude >> self.shift;
        let input = if shifted < QUOTIENT_INPUT_MAX { shifted } else { QUOTIENT_INPUT_MAX };
        let floor = (input * self.reciprocal) >> 16;
        let twice = 2 * (magnitude - floor * self.scale);
        // Above half, or at half and odd: `twice + 1 > scale` and `twice > scale` differ at half alone.
        floor + (twice + (floor & 1) > self.scale) as u32
    }
}

/// The biased exponent of an f32's bits, 0 for zero and subnormals, which count as zero, and for NaN and infinity.
#[must_use]
#[inline]
pub const fn exponent(bits: u32) -> i32 {
    if is_finite(bits) { ((bits >> 23) & 0xFF).cast_signed() } else { 0 }
}

/// The biased exponent that bounds a block of residual bytes with scale `byte`, as [`exponent`] bounds a gradient's;
/// 0 if the block is zero.
#[must_use]
#[inline]
pub const fn residual_exponent(byte: u8, base_log2: i8) -> i32 {
    // 128 * 7 * 2^e < 2^(10 + e).
    if byte == 0 { 0 } else { (byte >> 2) as i32 + base_log2 as i32 - RESIDUAL_LOG2 + 10 + EXPONENT_BIAS }
}

/// The unit of the fixed point of a block whose largest biased exponent is `top`: `2^` this.
#[must_use]
#[inline]
pub const fn unit_log2(top: i32) -> i32 {
    top - EXPONENT_BIAS - DIGITS
}

/// Four times the powers of two from the base to the unit: what [`to_byte`] and [`to_index`] take, for codes and, since
/// both its unit and its base are 2^8 lower, for the residual.
#[must_use]
#[inline]
pub const fn offset(top: i32, base_log2: i8) -> i32 {
    4 * (unit_log2(top) - base_log2 as i32)
}

/// A gradient in units, ties to even; at most `2^21` in magnitude. NaN, infinity, zero and subnormals give 0.
///
/// `top` is at least the gradient's [`exponent`].
#[must_use]
#[inline]
pub const fn fixed(bits: u32, top: i32) -> i32 {
    let exponent = exponent(bits);
    let mantissa = ((bits & 0x007F_FFFF) | 0x0080_0000).cast_signed();
    // The value is mantissa * 2^(exponent - 150), the unit 2^(top - 147): shift by 3 or more; by 25 it rounds to 0.
    let shift = top - exponent + 3;
    let shift = if shift < 25 { shift } else { 25 };
    let magnitude = if exponent == 0 { 0 } else { rne_shift(mantissa, shift.cast_unsigned()) };
    if bits >> 31 == 1 { -magnitude } else { magnitude }
}

/// A residual byte of a block with scale `byte` (not 0) in units, ties to even; below `2^21` in magnitude.
///
/// `top` is at least the block's [`residual_exponent`].
#[must_use]
#[inline]
pub const fn residual_fixed(residual: i8, byte: u8, base_log2: i8, top: i32) -> i32 {
    let value = residual as i32 * (4 + (byte & 3) as i32);
    // Below 2^10; where the residual sets the top, a unit is 2^-11 of its. One place more, so that there is a shift.
    let shift = top - residual_exponent(byte, base_log2) + 1;
    rne_shift(value << 12, if shift < 24 { shift } else { 24 }.cast_unsigned())
}

/// Moves a mean's terms up by this many places before those of smaller scales lose theirs: as many as leave the sum of
/// weights of `total` with codes of at most `largest_code` below 2^31, in any order.
///
/// `8 * total < 2^24`, `1 <= largest_code <= 128`, so that there is always room for 0.
#[must_use]
pub const fn headroom(total: u32, largest_code: u32) -> u32 {
    (0x7FFF_FFFF / (total * 7 * largest_code)).ilog2()
}

/// What one rank's codes of a block are multiplied by, and by how many places the products are then shifted down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Term {
    /// `weight * (4 + m) << headroom`, or 0 for a block that cannot show.
    pub factor: u32,
    /// Places, 0..=31.
    pub shift: u32,
}

impl Term {
    /// The term of scale `byte` in a mean whose largest exponent is `reference`, see [`reference`](reference()).
    #[must_use]
    #[inline]
    pub const fn new(byte: u8, weight: u32, reference: u32, headroom: u32) -> Self {
        let exponent = (byte >> 2) as u32;
        // A product is below 2^31, so that 32 places and more leave nothing.
        if byte == 0 || weight == 0 || reference - exponent > 31 {
            return Self { factor: 0, shift: 0 };
        }
        Self { factor: (weight * (4 + (byte & 3) as u32)) << headroom, shift: reference - exponent }
    }

    /// `code * factor / 2^shift`, rounded to nearest, ties to even.
    #[must_use]
    #[inline]
    pub const fn of(self, code: i32) -> i32 {
        let product = code.unsigned_abs() * self.factor;
        let odd = (product >> self.shift) & 1 & (self.shift != 0) as u32;
        // Below 2^31 + 2^30 + 1.
        let rounded = (product + (((1 << self.shift) - 1) >> 1) + odd) >> self.shift;
        if code < 0 { -rounded.cast_signed() } else { rounded.cast_signed() }
    }
}

/// The largest exponent field of `(byte, weight)` of all ranks that count: weight above 0 and a block that is not zero.
#[must_use]
pub fn reference(terms: impl Iterator<Item = (u8, u32)>) -> u32 {
    terms
        .filter(|(byte, weight)| *byte != 0 && *weight != 0)
        .map(|(byte, _)| u32::from(byte >> 2))
        .max()
        .unwrap_or(0)
}

/// The f32 bits of `f32(1 / total) * 2^(base_log2 - headroom)`: times `2^reference` (add it to the exponent) it turns a
/// sum of [`Term`]s, rounded to f32, into the mean.
#[must_use]
pub fn mean_scale(total: u32, base_log2: i8, headroom: u32) -> u32 {
    // The division is IEEE 754's on every CPU; kernels take the number.
    let shift = i32::from(base_log2) - headroom.cast_signed();
    (1.0 / total as f32).to_bits().wrapping_add_signed(shift << 23)
}

/// The mean of a sum of [`Term`]s: two roundings, of the sum to f32 and of the product.
#[must_use]
#[inline]
pub const fn mean(sum: i32, scale: u32, reference: u32) -> f32 {
    sum as f32 * f32::from_bits(scale + (reference << 23))
}

#[cfg(test)]
mod tests;

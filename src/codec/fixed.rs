//! f32 into fixed point, and rounding there: integers only, so that every device agrees.
//!
//! WGSL promises neither a rounding mode, nor subnormals, nor that a NaN arrives; integer arithmetic it does
//! promise. Fragment: `shaders/lib/fixed.wgsl`.

/// Binary digits below one code.
pub const FRACTION_BITS: u32 = 12;

/// Magnitudes are clamped here: 64 codes of `1 << FRACTION_BITS`. It keeps every later product below 2^31.
pub const FIXED_MAX: i32 = 1 << 18;

/// The exponent field of an f32; all ones means NaN or infinity.
pub const EXPONENT_MASK: u32 = 0x7F80_0000;

/// Whether the f32 with these bits is finite. A comparison cannot tell: `x != x` is false for NaN on every
/// Vulkan path that was tried.
#[must_use]
#[inline]
pub const fn is_finite(bits: u32) -> bool {
    bits & EXPONENT_MASK != EXPONENT_MASK
}

/// `v / 2^n` rounded to the nearest integer, ties to even.
///
/// `1 <= n <= 30`, and `|v| + 2^(n-1) < 2^31`.
#[must_use]
#[inline]
pub const fn rne_shift(v: i32, n: u32) -> i32 {
    (v + ((1 << (n - 1)) - 1) + ((v >> n) & 1)) >> n
}

/// The f32 with these bits in units of `2^-(scale_log2 + FRACTION_BITS)`, ties to even, clamped to
/// `-FIXED_MAX..=FIXED_MAX`.
///
/// Subnormals count as zero, so that a device that flushes them agrees. For NaN and infinity the result is
/// plus or minus `FIXED_MAX`; callers ask [`is_finite`] first.
#[must_use]
#[inline]
pub const fn fixed(bits: u32, scale_log2: i8) -> i32 {
    let exponent = ((bits >> 23) & 0xFF).cast_signed();
    if exponent == 0 {
        return 0;
    }
    let mantissa = ((bits & 0x007F_FFFF) | 0x0080_0000).cast_signed();
    // The value is mantissa * 2^shift, with 2^23 <= mantissa < 2^24.
    let shift = exponent - 150 + scale_log2 as i32 + FRACTION_BITS.cast_signed();
    let magnitude = if shift > -6 {
        FIXED_MAX
    } else if shift < -25 {
        0
    } else {
        rne_shift(mantissa, (-shift).cast_unsigned())
    };
    if bits >> 31 == 1 { -magnitude } else { magnitude }
}

/// The f32 nearest to `1 / (total * 2^scale_log2)`, which turns a weighted sum of codes into the mean.
///
/// `total` is the sum of the weights, at least 1. Rounded once in f64 and once to f32, as every twin does: kernels take
/// it as a number and divide nothing.
#[must_use]
pub fn mean_scale(scale_log2: i8, total: u32) -> f32 {
    // From the bits, since `exp2` is a library call whose last digit no platform promises.
    let exponent = 1023 - i64::from(scale_log2);
    let unit = f64::from_bits(exponent.cast_unsigned() << 52);
    #[allow(clippy::cast_possible_truncation, reason = "the rounding of the definition")]
    let scale = (unit / f64::from(total)) as f32;
    scale
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the words of the documentation say, in f64, where every step but the rounding is exact.
    fn fixed_by_float(bits: u32, scale_log2: i8) -> i32 {
        let value = f32::from_bits(bits);
        if value.is_subnormal() {
            return 0;
        }
        let scaled = f64::from(value) * (f64::from(scale_log2) + f64::from(FRACTION_BITS)).exp2();
        let bound = f64::from(FIXED_MAX);
        #[allow(clippy::cast_possible_truncation, reason = "clamped to 2^18 one call earlier")]
        let rounded = scaled.round_ties_even().clamp(-bound, bound) as i32;
        rounded
    }

    #[test]
    fn fixed_is_the_rounded_product_for_every_exponent_scale_and_edge_of_the_mantissa() {
        let mantissas = [0, 1, 2, 0x3F_FFFF, 0x40_0000, 0x40_0001, 0x55_5555, 0x7F_FFFE, 0x7F_FFFF];
        for scale_log2 in -64..=64 {
            for top in 0..512_u32 {
                // Powers of two plus and minus one sit on and around the ties of every shift.
                let powers = (0..23).flat_map(|k| [1 << k, (1 << k) + 1, (1 << k) - 1, 0x80_0000 - (1 << k)]);
                for mantissa in mantissas.into_iter().chain(powers) {
                    let bits = top << 23 | mantissa;
                    if is_finite(bits) {
                        let (got, want) = (fixed(bits, scale_log2), fixed_by_float(bits, scale_log2));
                        assert_eq!(got, want, "bits {bits:#010x} scale {scale_log2}");
                    }
                }
            }
        }
    }

    #[test]
    fn rne_shift_sends_ties_to_even_on_both_sides_of_zero() {
        for n in 1..=20 {
            let half = 1 << (n - 1);
            for quotient in -9..=9 {
                let v = quotient << n;
                assert_eq!(rne_shift(v, n), quotient);
                assert_eq!(rne_shift(v + half - 1, n), quotient);
                assert_eq!(rne_shift(v + half, n), quotient + (quotient & 1));
                if n > 1 {
                    assert_eq!(rne_shift(v + half + 1, n), quotient + 1);
                }
            }
        }
    }

    #[test]
    fn exactly_the_all_ones_exponent_is_not_finite() {
        for top in 0..512_u32 {
            for mantissa in [0, 1, 0x40_0000, 0x7F_FFFF] {
                let bits = top << 23 | mantissa;
                assert_eq!(is_finite(bits), f32::from_bits(bits).is_finite(), "bits {bits:#010x}");
            }
        }
    }
}

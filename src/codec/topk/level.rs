//! Levels: f16 numbers made from exact integer means, and taken apart into integers.
//!
//! Fragment: `shaders/lib/level.wgsl`.

use crate::codec::widen_f16;

/// The bits of the largest finite f16.
pub(super) const LARGEST: u16 = 0x7BFF;

/// Binary digits of the largest magnitude of a half that count in its mean.
const DIGITS: u32 = 19;

/// A level, and whether the mean was beyond the largest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Level {
    pub(super) bits: u16,
    pub(super) saturated: bool,
}

/// The mean of magnitudes times `2^scale_log2`, as an f16.
///
/// `magnitudes` are bits of normal f32 or zeros, up to 4096 of them. Each is cut to 19 binary digits below the largest
/// exponent among them; their sum is exact, and the quotient is rounded once, to nearest, ties to even.
pub(super) fn mean_level(magnitudes: impl Iterator<Item = u32> + Clone, scale_log2: i8) -> Level {
    let top = magnitudes.clone().max().unwrap_or(0) >> 23;
    let (mut sum, mut count) = (0_u32, 0_u32);
    for bits in magnitudes {
        // At most 4096 * (2^19 - 1) < 2^31.
        sum += fixed(bits, top);
        count += 1;
    }
    if sum == 0 {
        return Level::default();
    }
    // The leading one to place 30: the quotient by at most 2^12 keeps 18 digits or more, of which 11 stay.
    let lift = sum.leading_zeros() - 1;
    let (lifted, count) = (u64::from(sum << lift), u64::from(count));
    // Of a unit in the last of the 19 digits: 2^(top - 127 - 18); of an f16: 2^-24.
    let exponent = top.cast_signed() - 145 + 24 + i32::from(scale_log2) - lift.cast_signed();
    round(lifted / count, !lifted.is_multiple_of(count), exponent)
}

/// A magnitude in units of the last of the 19 digits below exponent `top`.
fn fixed(bits: u32, top: u32) -> u32 {
    let exponent = bits >> 23;
    if exponent == 0 {
        return 0;
    }
    (bits & 0x7F_FFFF | 0x80_0000) >> (24 - DIGITS + top - exponent).min(31)
}

/// A level times `factor / 2^16`, rounded.
pub(super) fn scale_level(bits: u16, factor: u16) -> u16 {
    round(units(bits) * u64::from(factor), false, -16).bits
}

/// The f16 nearest to `(quotient + something below 1 if more) * 2^exponent` units of 2^-24.
///
/// `quotient` has more than 11 digits, or `exponent` is below 0; it is below 2^57.
fn round(quotient: u64, more: bool, exponent: i32) -> Level {
    let digits = (64 - quotient.leading_zeros()).cast_signed();
    // So many digits go that 11 stay, and none below the last one of an f16.
    let drop = (digits - 11).max(-exponent);
    if drop > 60 {
        return Level::default();
    }
    let place = exponent + drop;
    let (kept, lost) = (quotient >> drop, quotient & ((1 << drop) - 1));
    let half = 1 << (drop - 1);
    let up = lost > half || lost == half && (more || kept & 1 == 1);
    // The leading one of `kept`, unless subnormal, is added on top of the exponent, and so is a carry to 2^11.
    let bits = (u64::from(place.cast_unsigned()) << 10) + kept + u64::from(up);
    match u16::try_from(bits) {
        Ok(bits) if bits <= LARGEST => Level { bits, saturated: false },
        _ => Level { bits: LARGEST, saturated: true },
    }
}

/// A level in units of 2^-24, exact: below 2^40. Any bits without a sign have such a number.
pub(super) fn units(bits: u16) -> u64 {
    let (exponent, mantissa) = (u32::from(bits >> 10), u64::from(bits & 0x3FF));
    if exponent == 0 { mantissa } else { (mantissa | 0x400) << (exponent - 1) }
}

/// `level / 2^scale_log2`, exact and normal.
pub(super) fn level_value(bits: u16, scale_log2: i8) -> f32 {
    let scale = f32::from_bits((127 - i32::from(scale_log2)).cast_unsigned() << 23);
    f32::from_bits(widen_f16(bits)) * scale
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    #[test]
    fn a_level_of_one_value_is_the_f16_nearest_to_it_cut_to_19_digits() {
        for top in 90..150_u32 {
            for mantissa in (0..0x80_0000_u32).step_by(997).chain([0x7F_FFFF, 0x1000, 0x3000, 0x1001, 0x1020])
            {
                let bits = top << 23 | mantissa;
                let cut = f64::from(f32::from_bits(bits & !0x1F));
                let want = f16::from_f64(cut);
                let got = mean_level([bits].into_iter(), 0);
                let saturated = want.is_infinite();
                let want = if saturated { LARGEST } else { want.to_bits() };
                assert_eq!(got, Level { bits: want, saturated }, "{bits:#010x}");
            }
        }
    }

    #[test]
    fn a_level_is_the_mean_whatever_the_scale() {
        for scale_log2 in [-64, -10, 0, 19, 64] {
            let unit = f32::from_bits((127 - i32::from(scale_log2)).cast_unsigned() << 23);
            for values in [vec![1.0_f32, 2.0, 3.0, 4.0], vec![5.0; 7], vec![1.0e-6, 1.0], vec![0.0, 0.0, 3.0]]
            {
                let mean = values.iter().sum::<f32>() / values.len() as f32;
                let bits = values.iter().map(|value| (value * unit).to_bits());
                let level = mean_level(bits, scale_log2);
                assert_eq!(level.bits, f16::from_f32(mean).to_bits(), "{values:?}");
                let value = level_value(level.bits, scale_log2);
                assert_eq!(value, f16::from_f32(mean).to_f32() * unit, "{values:?}");
            }
        }
    }

    #[test]
    fn the_largest_sums_do_not_overflow_and_a_mean_beyond_f16_stops_there() {
        let largest = std::iter::repeat_n(f32::MAX.to_bits(), 4096);
        assert_eq!(mean_level(largest.clone(), 64), Level { bits: LARGEST, saturated: true });
        assert_eq!(mean_level(largest, -64), Level { bits: LARGEST, saturated: true });
        assert_eq!(
            mean_level([65_519.0_f32.to_bits()].into_iter(), 0),
            Level { bits: LARGEST, saturated: false }
        );
        assert_eq!(
            mean_level([65_520.0_f32.to_bits()].into_iter(), 0),
            Level { bits: LARGEST, saturated: true }
        );
        assert_eq!(mean_level([f32::MIN_POSITIVE.to_bits()].into_iter(), -64), Level::default());
        assert_eq!(mean_level(std::iter::empty(), 0), Level::default());
    }

    #[test]
    fn units_and_factors_agree_with_floats_for_every_level() {
        for bits in 0..=LARGEST {
            let value = f16::from_bits(bits).to_f64();
            assert_eq!(units(bits) as f64 / f64::from(1 << 24), value, "{bits:#06x}");
            for factor in [0, 1, 0x7FFF, 0x8000, 0xB504, 0xFFFF_u16] {
                let want = f16::from_f64(value * f64::from(factor) / 65_536.0);
                assert_eq!(scale_level(bits, factor), want.to_bits(), "{bits:#06x} {factor}");
            }
        }
    }
}

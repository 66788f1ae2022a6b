//! Block floating point ([`scale`](super::scale)) in f32, in loops that a compiler vectorises on every baseline: no
//! shift by a lane's own count, no branch, no table.
//!
//! Every number of a block is an integer below 2^24 in units of a power of two, which f32 holds exactly:
//!
//! - A gradient times a power of two is exact, or so small that it rounds to zero anyway. Blocks whose largest exponent
//!   is below [`LEAST_TOP`] would need a power above the largest f32: they go the way of the definition.
//! - [`nearest`] rounds to an integer, ties to even.
//! - A quotient by a scale, rounded to f32 and then to an integer, is the exact one rounded once. With `x = X * 2^a`,
//!   `|X| < 2^24`, and the scale `S * 2^e`, `4 <= S <= 7`: a tie is an f32. If `a >= e - 1`, any other quotient is at least
//!   `1 / 2S` away from it, far more than f32 rounds off below 256; else at least `2^(a - e) / S`, and half a
//!   unit in the last place is at most `2^-24 * |x| / (S * 2^e)`, less than that. From 256 on every code is at its clamp.

use super::fixed::is_finite;
use super::scale::{self, residual_exponent};

/// Blocks with a largest exponent from here on have a multiplier that is a normal f32 and below 2^116, which takes every
/// subnormal to less than 2^-10.
pub(super) const LEAST_TOP: i32 = 32;

/// 1.5 * 2^23: adding it to an f32 of at most 2^22 in magnitude rounds that to an integer, ties to even, which then
/// stands in the low bits.
const ROUND: f32 = 12_582_912.0;

/// Whether the definition must be asked for a block with this largest exponent. With 0 all is zero in any unit.
#[inline(always)]
pub(super) const fn is_too_small(top: i32) -> bool {
    top != 0 && top < LEAST_TOP
}

/// `value`, at most 2^22 in magnitude, as the nearest integer, ties to even.
#[inline(always)]
pub(super) const fn nearest(value: f32) -> f32 {
    (value + ROUND) - ROUND
}

/// An integer of at most 2^22 in magnitude; `as` would look at the ends of its range.
#[inline(always)]
pub(super) const fn integer(value: f32) -> i32 {
    (value + ROUND).to_bits().cast_signed() - ROUND.to_bits().cast_signed()
}

/// The low byte of two's complement of an integer of at most 2^22 in magnitude.
#[inline(always)]
pub(super) const fn low_byte(value: f32) -> i8 {
    #[allow(clippy::cast_possible_truncation, reason = "the low byte")]
    let byte = (value + ROUND).to_bits() as u8;
    byte.cast_signed()
}

/// `least` or `most` where `value` is beyond; one instruction each.
#[inline(always)]
pub(super) const fn clamp(value: f32, least: f32, most: f32) -> f32 {
    let value = if value < most { value } else { most };
    if value > least { value } else { least }
}

/// The largest biased exponent of the finite elements.
#[inline(always)]
pub(super) fn largest_exponent(values: &[f32]) -> i32 {
    let magnitudes = values.iter().map(|value| {
        let bits = value.to_bits();
        if is_finite(bits) { (bits & 0x7FFF_FFFF).cast_signed() } else { 0 }
    });
    magnitudes.fold(0, i32::max) >> 23
}

/// What brings a gradient to units of a block with largest exponent `top`; any power of two where that is 0.
#[inline(always)]
pub(super) const fn multiplier(top: i32) -> f32 {
    let top = if top < LEAST_TOP { LEAST_TOP } else { top };
    // 2^(147 - top): -107..=115.
    f32::from_bits((127 + 147 - top).cast_unsigned() << 23)
}

/// [`scale::fixed`]: a gradient in units.
#[inline(always)]
pub(super) const fn fixed(value: f32, multiplier: f32) -> f32 {
    let value = if is_finite(value.to_bits()) { value } else { 0.0 };
    nearest(value * multiplier)
}

/// What brings a residual byte to units, before it is rounded, as [`scale::residual_fixed`] does; 0 for byte 0.
#[inline(always)]
pub(super) const fn residual_multiplier(byte: u8, base_log2: i8, top: i32) -> f32 {
    if byte == 0 {
        return 0.0;
    }
    let shift = top - residual_exponent(byte, base_log2) + 1;
    let shift = if shift < 24 { shift } else { 24 };
    // At most 2^10 times 2^11.
    f32::from_bits((127 + 12 - shift).cast_unsigned() << 23) * (4 + (byte & 3) as u32) as f32
}

/// The largest magnitude of integers.
#[inline(always)]
pub(super) fn absmax(values: &[f32]) -> u32 {
    let largest = values.iter().map(|value| (value.to_bits() & 0x7FFF_FFFF).cast_signed()).fold(0, i32::max);
    integer(f32::from_bits(largest.cast_unsigned())).cast_unsigned()
}

/// The scale of `index` as an f32.
#[inline(always)]
pub(super) const fn units(index: i32) -> f32 {
    scale::units(index) as f32
}

/// Blocks for tests that hold a loop to its definition.
#[cfg(test)]
pub(super) mod arbitrary {
    /// SplitMix64, so that a failure comes back.
    pub(in crate::codec) struct Random(u64);

    impl Random {
        pub(in crate::codec) fn new(seed: u64) -> Self {
            Self(seed)
        }

        pub(in crate::codec) fn below(&mut self, bound: u64) -> u32 {
            self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            u32::try_from((z ^ (z >> 31)) % bound).unwrap_or(u32::MAX)
        }

        /// A block of one of six kinds: multiples of a quarter of a step (ties in number), any bits at all, few binades with
        /// mantissas at their edges, one huge among tiny, almost all zero, ordinary; some with NaN and infinity.
        pub(in crate::codec) fn block(&mut self, count: usize) -> Vec<f32> {
            let exponent =
                [0, 1, 2, 30, 31, 32, 33, 60, 100, 127, 127, 127, 160, 200, 240][self.below(15) as usize];
            let (kind, bad) = (self.below(6), self.below(4) == 0);
            let power = |field: u32| f32::from_bits(field.min(254) << 23);
            let mut values: Vec<f32> = (0..count)
                .map(|at| {
                    let sign = if self.below(2) == 0 { 1.0 } else { -1.0 };
                    let edges =
                        [0, 1, 2, 3, 4, 0x3F_FFFF, 0x40_0000, 0x40_0001, 0x7F_FFFB, 0x7F_FFFC, 0x7F_FFFF];
                    sign * match kind {
                        0 => self.below(64) as f32 * 0.25 * power(exponent),
                        1 => f32::from_bits(self.below(0x7F80_0000)),
                        2 => {
                            f32::from_bits((exponent + self.below(12)) << 23 | edges[self.below(11) as usize])
                        }
                        3 if at == count / 3 => power(exponent + 14),
                        3 => self.below(1000) as f32 * 1.0e-6 * power(exponent),
                        4 if self.below(40) > 0 => 0.0,
                        _ => (self.below(1 << 24) as f32 / 16_777_216.0) * power(exponent),
                    }
                })
                .collect();
            if bad {
                let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1.0e-45, f32::MAX, f32::MIN];
                for _ in 0..=self.below(3) {
                    values[self.below(count as u64) as usize] = odd[self.below(6) as usize];
                }
            }
            values
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gradient_and_a_residual_become_what_the_definition_says_for_every_top() {
        let edges =
            [0, 1, 2, 3, 4, 5, 12, 13, 0x3F_FFFF, 0x40_0000, 0x40_0001, 0x7F_FFFB, 0x7F_FFFC, 0x7F_FFFF];
        for top in LEAST_TOP..255 {
            for exponent in (0..=top).chain([255]) {
                for mantissa in edges.into_iter().chain((0..23).map(|k| 1 << k)) {
                    for sign in [0, 1 << 31] {
                        let bits = sign | exponent.cast_unsigned() << 23 | mantissa;
                        let got = integer(fixed(f32::from_bits(bits), multiplier(top)));
                        assert_eq!(got, scale::fixed(bits, top), "{bits:#010x} top {top}");
                    }
                }
            }
        }
        for base_log2 in [-80, -50, -42, 0, 55, 63] {
            for byte in 1..=u8::MAX {
                for top in residual_exponent(byte, base_log2).max(LEAST_TOP)..=256 {
                    let multiplier = residual_multiplier(byte, base_log2, top);
                    for residual in i8::MIN..=i8::MAX {
                        let got = integer(nearest(f32::from(residual) * multiplier));
                        let want = scale::residual_fixed(residual, byte, base_log2, top);
                        assert_eq!(got, want, "{residual} byte {byte} base {base_log2} top {top}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_quotient_is_the_definitions_at_every_tie_and_beside_it() {
        for index in 0..100 {
            let scale = scale::units(index).unsigned_abs();
            for half in 0..=300_u64 {
                let at = u64::from(scale) * half / 2;
                let near = [at.saturating_sub(1), at, at + 1].into_iter().filter(|value| *value < 1 << 22);
                for magnitude in near.filter_map(|value| u32::try_from(value).ok()) {
                    let want = scale::quotient(magnitude, index).min(146);
                    for sign in [1.0, -1.0] {
                        let got = nearest(sign * magnitude as f32 / units(index));
                        assert_eq!(
                            integer(got.abs()).min(146).cast_unsigned(),
                            want,
                            "{magnitude} index {index}"
                        );
                    }
                    // Of a fraction of a unit, as the residual of a sign is.
                    let want = scale::quotient(magnitude << 8, index).min(127);
                    if magnitude < 1 << 21 {
                        let got = nearest(clamp(magnitude as f32 * 256.0 / units(index), -127.0, 127.0));
                        assert_eq!(integer(got).cast_unsigned(), want, "{magnitude} << 8 index {index}");
                    }
                }
            }
        }
    }
}

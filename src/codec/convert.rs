//! f32 bits to narrower floats and back, in integers.
//!
//! One [`Format`] says how many bits an exponent and a mantissa have; [`narrow`] and [`widen`] are the same few lines
//! for all of them. Rounding is to nearest, ties to even, also into the subnormals of the narrow format, and what
//! happens beyond its largest number is an argument. Subnormal f32 count as zero, since devices flush them: below the
//! smallest number of every format here but bf16, where the f32 below 2^-126 are lost.
//!
//! | format | exponent, mantissa bits | largest | smallest | source |
//! |---|---|---|---|---|
//! | [`F16`] | 5, 10 | 65504 | 2^-24 | IEEE 754 binary16 |
//! | [`BF16`] | 8, 7 | 2^128 - 2^120 | 2^-126 | the upper half of an f32 |
//! | [`E4M3`] | 4, 3 | 448 | 2^-9 | OCP 8-bit floating point (arXiv 2209.05433): no infinity, one NaN |
//! | [`E5M2`] | 5, 2 | 57344 | 2^-16 | the same, with infinity |
//!
//! Fragments: `shaders/lib/narrow.wgsl`, `shaders/lib/widen.wgsl`.

/// A float of up to 16 bits: a sign, an exponent, a mantissa, from the top.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Format {
    /// Bits of the exponent.
    pub exponent_bits: u32,
    /// Bits of the mantissa.
    pub mantissa_bits: u32,
    /// Whether the exponent of all ones means infinity and NaN, as in IEEE 754; else only all ones in exponent and
    /// mantissa mean NaN, and there is no infinity.
    pub infinity: bool,
}

/// IEEE 754 binary16.
pub const F16: Format = Format { exponent_bits: 5, mantissa_bits: 10, infinity: true };

/// The upper half of an f32.
pub const BF16: Format = Format { exponent_bits: 8, mantissa_bits: 7, infinity: true };

/// OCP E4M3, also called E4M3FN.
pub const E4M3: Format = Format { exponent_bits: 4, mantissa_bits: 3, infinity: false };

/// OCP E5M2.
pub const E5M2: Format = Format { exponent_bits: 5, mantissa_bits: 2, infinity: true };

/// What becomes of a number beyond the largest one after rounding, and of infinity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Overflow {
    /// Infinity, as IEEE 754 says; NaN in a format without infinity.
    Infinity,
    /// The largest finite number.
    Saturate,
}

impl Format {
    /// Bits of one number, 8 or 16.
    #[must_use]
    pub const fn bits(self) -> u32 {
        1 + self.exponent_bits + self.mantissa_bits
    }

    /// What the exponent field is above the exponent.
    #[must_use]
    pub const fn bias(self) -> i32 {
        (1 << (self.exponent_bits - 1)) - 1
    }

    /// The sign bit of a number.
    #[must_use]
    pub const fn sign(self) -> u16 {
        1 << (self.exponent_bits + self.mantissa_bits)
    }

    /// The largest finite number; every code above it, the sign aside, is infinity or NaN.
    #[must_use]
    pub const fn largest(self) -> u16 {
        if self.infinity { self.infinite() - 1 } else { self.sign() - 2 }
    }

    /// A NaN without a sign: quiet where the format knows that, else the only one.
    #[must_use]
    pub const fn nan(self) -> u16 {
        if self.infinity { self.infinite() | 1 << (self.mantissa_bits - 1) } else { self.sign() - 1 }
    }

    /// Whether `code` is a finite number; bits above the sign are not looked at.
    #[must_use]
    pub const fn is_finite(self, code: u16) -> bool {
        code & (self.sign() - 1) <= self.largest()
    }

    /// All ones in the exponent: infinity where there is one.
    const fn infinite(self) -> u16 {
        ((1 << self.exponent_bits) - 1) << self.mantissa_bits
    }
}

/// The number of `format` nearest to the f32 with these bits, ties to even.
///
/// A subnormal f32 becomes a zero of its sign. A NaN stays NaN, with its sign and the top of its payload where the
/// format has room for one, and quiet.
#[must_use]
#[inline]
pub const fn narrow(format: Format, overflow: Overflow, bits: u32) -> u16 {
    let (exponent, mantissa) = ((bits >> 23) & 0xFF, bits & 0x007F_FFFF);
    #[allow(clippy::cast_possible_truncation, reason = "one bit, shifted to at most place 15")]
    let sign = (bits >> 31 << (format.exponent_bits + format.mantissa_bits)) as u16;
    if exponent == 0xFF && mantissa != 0 {
        #[allow(clippy::cast_possible_truncation, reason = "at most 10 bits of the mantissa stay")]
        let payload = if format.infinity { (mantissa >> (23 - format.mantissa_bits)) as u16 } else { 0 };
        return sign | format.nan() | payload;
    }
    let magnitude = match exponent {
        0 => 0,
        0xFF => u32::MAX,
        _ => narrow_magnitude(format, exponent.cast_signed(), mantissa),
    };
    if magnitude <= format.largest() as u32 {
        #[allow(clippy::cast_possible_truncation, reason = "at most the largest code of the format")]
        let code = magnitude as u16;
        return sign | code;
    }
    sign | match overflow {
        Overflow::Saturate => format.largest(),
        Overflow::Infinity if format.infinity => format.infinite(),
        Overflow::Infinity => format.nan(),
    }
}

/// The code of `(1 + mantissa * 2^-23) * 2^(exponent - 127)` without a sign, ties to even, and without an end: above
/// [`Format::largest`] it goes on counting as if the exponent had more values.
///
/// `exponent` is that of a normal f32, or what a scaling by a power of two makes of one: any number from -300 to 300.
#[must_use]
#[inline]
pub const fn narrow_magnitude(format: Format, exponent: i32, mantissa: u32) -> u32 {
    let target = exponent - 127 + format.bias();
    // The leading one is added on top of the exponent below, and so is the carry of rounding up to the next power.
    let significand = mantissa | 0x0080_0000;
    let (below, base) = if target >= 1 {
        (0, (target - 1).cast_unsigned() << format.mantissa_bits)
    } else {
        ((1 - target).cast_unsigned(), 0)
    };
    // 24 bits shifted by 25 or more round to 0.
    let shift = 23 - format.mantissa_bits + below;
    let shift = if shift > 25 { 25 } else { shift };
    let half = 1 << (shift - 1);
    base + ((significand + half - 1 + ((significand >> shift) & 1)) >> shift)
}

/// The f32 bits of a number of `format`, exactly; bits of `code` above the sign are not looked at.
///
/// Subnormals of bf16 are subnormals of f32. The payload of a NaN moves to the top as it is; the one NaN of a format
/// without infinity becomes a quiet one.
#[must_use]
#[inline]
pub const fn widen(format: Format, code: u16) -> u32 {
    let code = code as u32;
    let digits = format.mantissa_bits;
    let sign = (code >> (format.exponent_bits + digits) & 1) << 31;
    let (exponent, mantissa) =
        ((code >> digits) & ((1 << format.exponent_bits) - 1), code & ((1 << digits) - 1));
    let up = 23 - digits;
    let last = exponent == (1 << format.exponent_bits) - 1;
    // What an exponent field of f32 is above one of the format: 112 for f16 and E5M2, 120 for E4M3, 0 for bf16.
    let rebias = (127 - format.bias()).cast_unsigned();
    let magnitude = if last && format.infinity {
        0x7F80_0000 | mantissa << up
    } else if last && mantissa == (1 << digits) - 1 {
        0x7FC0_0000
    } else if exponent > 0 || rebias == 0 {
        (exponent + rebias) << 23 | mantissa << up
    } else if mantissa == 0 {
        0
    } else {
        // Normal in f32: the leading one goes to place 23, where it adds one to the exponent.
        let shift = mantissa.leading_zeros() - 8;
        ((rebias + up - shift) << 23) + (mantissa << shift)
    };
    sign | magnitude
}

/// [`widen`] of an f16, without a branch, so that a loop over it vectorises.
///
/// Subnormals are the digits of a number from 2^-14 on, from which 2^-14 is taken away: exact. `F16C` would quieten
/// signalling NaNs.
#[must_use]
#[inline]
pub const fn widen_f16(bits: u16) -> u32 {
    const LEAST: u32 = 113 << 23;
    let magnitude = (bits as u32 & 0x7FFF) << 13;
    let small = f32::from_bits(LEAST | magnitude) - f32::from_bits(LEAST);
    // Infinity and NaN get the last exponent, 112 further up.
    let up = if magnitude < 0x7C00 << 13 { 112 << 23 } else { 224 << 23 };
    let wide = if magnitude < 0x400 << 13 { small.to_bits() } else { magnitude + up };
    (bits as u32 & 0x8000) << 16 | wide
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    const FORMATS: [Format; 4] = [F16, BF16, E4M3, E5M2];

    fn codes(format: Format) -> impl Iterator<Item = u16> {
        (0..1_u32 << format.bits()).map(|code| u16::try_from(code).unwrap_or(0))
    }

    /// The value of a finite code from the words of the documentation, in f64.
    fn value(format: Format, code: u16) -> f64 {
        let exponent = i32::from(code >> format.mantissa_bits) & ((1 << format.exponent_bits) - 1);
        let mantissa =
            f64::from(code & ((1 << format.mantissa_bits) - 1)) / f64::from(1 << format.mantissa_bits);
        let magnitude = if exponent == 0 {
            mantissa * 2_f64.powi(1 - format.bias())
        } else {
            (1.0 + mantissa) * 2_f64.powi(exponent - format.bias())
        };
        if code & format.sign() == 0 { magnitude } else { -magnitude }
    }

    /// Round to nearest by search: every finite magnitude and, one step behind, where the next would be.
    struct Table(Vec<f64>);

    impl Table {
        fn new(format: Format) -> Self {
            let mut values: Vec<f64> = (0..=format.largest()).map(|code| value(format, code)).collect();
            let last = values.len() - 1;
            values.push(2.0 * values[last] - values[last - 1]);
            Self(values)
        }

        /// The code of the nearest magnitude, ties to the even code; `None` beyond the largest.
        fn nearest(&self, magnitude: f64) -> Option<usize> {
            let above = self.0.partition_point(|value| *value < magnitude);
            let code = if above == 0 {
                0
            } else {
                let (low, high) = (magnitude - self.0[above - 1], self.0.get(above)? - magnitude);
                let up = high < low || high == low && above % 2 == 0;
                if up { above } else { above - 1 }
            };
            (code + 1 < self.0.len()).then_some(code)
        }
    }

    /// Every code, every tie between neighbours, and two f32 on each side of both, with both signs.
    fn aimed(format: Format) -> impl Iterator<Item = u32> {
        let Table(values) = Table::new(format);
        let pairs = (1..values.len()).flat_map(move |k| {
            #[allow(
                clippy::cast_possible_truncation,
                reason = "a tie has 12 significant bits at most: exact in f32"
            )]
            let near =
                [values[k - 1], (values[k - 1] + values[k]) / 2.0, values[k]].map(|value| value as f32);
            near.into_iter()
        });
        pairs
            .flat_map(|value| {
                (-2..=2).map(move |ulp| (value.to_bits() & 0x7FFF_FFFF).saturating_add_signed(ulp))
            })
            .flat_map(|bits| [bits, bits | 0x8000_0000])
    }

    /// f32 of every exponent, at the edges of the mantissa.
    fn every_exponent() -> impl Iterator<Item = u32> {
        let edges =
            [0, 1, 2, 0xFFF, 0x1000, 0x1001, 0x1FFF, 0x2000, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x1_0000];
        let high = [
            0x10_0000, 0x3F_FFFF, 0x40_0000, 0x40_0001, 0x68_0000, 0x70_0000, 0x7F_EFFF, 0x7F_F000, 0x7F_FFFF,
        ];
        (0..512).flat_map(move |top| edges.into_iter().chain(high).map(move |mantissa| top << 23 | mantissa))
    }

    #[test]
    fn every_code_comes_back_from_the_f32_of_its_value() {
        for format in FORMATS {
            for code in codes(format) {
                let wide = widen(format, code);
                if format.is_finite(code) {
                    assert_eq!(f64::from(f32::from_bits(wide)), value(format, code), "{format:?} {code:#x}");
                    assert_eq!(wide >> 31 == 1, code & format.sign() != 0, "sign of {format:?} {code:#x}");
                }
                let subnormal = f32::from_bits(wide).is_subnormal();
                let want = if subnormal { code & format.sign() } else { code };
                for overflow in [Overflow::Infinity, Overflow::Saturate] {
                    let back = narrow(format, overflow, wide);
                    if f32::from_bits(wide).is_nan() {
                        assert_eq!(back, code | format.nan(), "NaN {format:?} {code:#x}");
                    } else if f32::from_bits(wide).is_infinite() && overflow == Overflow::Saturate {
                        assert_eq!(back, code & format.sign() | format.largest());
                    } else {
                        assert_eq!(back, want, "{format:?} {overflow:?} {code:#x}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_limits_are_those_of_the_table() {
        let limits = FORMATS.map(|format| (value(format, format.largest()), value(format, 1)));
        assert_eq!(limits[0], (65504.0, 2_f64.powi(-24)));
        assert_eq!(limits[1].0, 2_f64.powi(128) - 2_f64.powi(120));
        assert_eq!(limits[2], (448.0, 2_f64.powi(-9)));
        assert_eq!(limits[3], (57344.0, 2_f64.powi(-16)));
        assert_eq!(FORMATS.map(Format::nan), [0x7E00, 0x7FC0, 0x7F, 0x7E]);
        assert_eq!(FORMATS.map(Format::largest), [0x7BFF, 0x7F7F, 0x7E, 0x7B]);
    }

    #[test]
    fn narrowing_finds_the_nearest_number_on_and_around_every_tie_and_at_every_exponent() {
        for format in FORMATS {
            let table = Table::new(format);
            let mut ends = [0_u32; 2];
            for bits in aimed(format).chain(every_exponent()) {
                let float = f32::from_bits(bits);
                if float.is_nan() {
                    let code = narrow(format, Overflow::Saturate, bits);
                    assert!(!format.is_finite(code), "{format:?} {bits:#010x}");
                    assert_eq!(
                        code >> (format.bits() - 1),
                        u16::from(bits >> 31 == 1),
                        "{format:?} {bits:#010x}"
                    );
                    continue;
                }
                let magnitude = if float.is_subnormal() { 0.0 } else { f64::from(float.abs()) };
                let sign = if float.is_sign_negative() { format.sign() } else { 0 };
                let beyond = if format.infinity { format.infinite() } else { format.nan() };
                let found = table.nearest(magnitude).and_then(|code| u16::try_from(code).ok());
                ends[usize::from(found.is_none())] += 1;
                let (want, saturated) = (found.unwrap_or(beyond), found.unwrap_or(format.largest()));
                assert_eq!(narrow(format, Overflow::Infinity, bits), sign | want, "{format:?} {bits:#010x}");
                assert_eq!(
                    narrow(format, Overflow::Saturate, bits),
                    sign | saturated,
                    "{format:?} {bits:#010x}"
                );
            }
            assert!(ends[0] > 1000 && ends[1] > 10, "{format:?} met {ends:?} inside and beyond");
        }
    }

    #[test]
    fn f16_and_bf16_are_what_the_half_crate_says() {
        for bits in aimed(F16).chain(aimed(BF16)).chain(every_exponent()) {
            let float = f32::from_bits(bits);
            if float.is_subnormal() {
                continue;
            }
            assert_eq!(
                narrow(F16, Overflow::Infinity, bits),
                f16::from_f32(float).to_bits(),
                "f16 {bits:#010x}"
            );
            assert_eq!(
                narrow(BF16, Overflow::Infinity, bits),
                bf16::from_f32(float).to_bits(),
                "bf16 {bits:#010x}"
            );
        }
        for code in 0..=u16::MAX {
            let (half, brain) = (f16::from_bits(code).to_f32(), bf16::from_bits(code).to_f32());
            if half.is_nan() {
                assert!(f32::from_bits(widen_f16(code)).is_nan(), "f16 {code:#06x}");
                assert_eq!(widen_f16(code) >> 13 & 0x3FF, u32::from(code & 0x3FF), "payload of {code:#06x}");
            } else {
                assert_eq!(widen_f16(code), half.to_bits(), "f16 {code:#06x}");
            }
            assert_eq!(widen(F16, code), widen_f16(code), "f16 {code:#06x}");
            if !brain.is_nan() {
                assert_eq!(widen(BF16, code), brain.to_bits(), "bf16 {code:#06x}");
            }
        }
    }
}

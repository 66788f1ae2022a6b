//! The gradient of the probe: aimed at the places where drivers and compilers differ.

use crate::codec::Codec;

/// Codes per unit of a block's scale that decide: those of the scales `(4 + m) * 2^e`, and powers of two.
const SCALES: [f32; 5] = [1.0, 4.0, 5.0, 6.0, 7.0];

/// Elements of a run that is one or more whole blocks of every codec with small blocks.
const RUN: usize = 64;

/// For `codec`: ties of its codes and their neighbours at its scale, of blocks that have scales of their own, and of
/// casts; every exponent; equal magnitudes; non-finite values among all of them.
///
/// The parts begin at multiples of [`RUN`], so that blocks are what they are meant to be; the end is no whole unit.
pub(super) fn gradient(codec: &Codec) -> Vec<f32> {
    let mut values = Vec::new();
    for part in [whole_scale(codec), blocks(), equal(), casts(), exponents()] {
        values.extend(part);
        values.resize(values.len().next_multiple_of(RUN), 0.0);
    }
    values.extend([1.5, -0.5, f32::NAN, 2.5, 0.75]);
    values
}

/// `value` and both neighbours, with both signs.
fn around(values: &mut Vec<f32>, value: f32) {
    for bits in [value.to_bits(), value.to_bits().wrapping_add(1), value.to_bits().wrapping_sub(1)] {
        values.extend([f32::from_bits(bits), -f32::from_bits(bits)]);
    }
}

/// `2^exponent`, for the normal ones.
fn power(exponent: i32) -> f32 {
    f32::from_bits((127 + exponent).cast_unsigned() << 23)
}

/// Ties of code and fixed point for one scale.
fn whole_scale(codec: &Codec) -> Vec<f32> {
    let unit = power(-i32::from(codec.scale_log2().unwrap_or(0)));
    let mut values = Vec::new();
    for halves in 0_u8..40 {
        around(&mut values, f32::from(halves) * 0.5 * unit);
        around(&mut values, (f32::from(halves) + 0.5) * unit / 4096.0);
        // One code and a half, and half of the last fixed-point digit.
        around(&mut values, (1.5 + (f32::from(halves) + 0.5) / 4096.0) * unit);
    }
    // Saturation of 8-bit codes.
    for halves in [253_u8, 254, 255] {
        around(&mut values, f32::from(halves) * 0.5 * unit);
    }
    values
}

/// Runs whose largest magnitude, at another place in each, makes the scale a known one, or the choice of it a tie; all
/// others are ties of codes at this scale. Then runs with nothing, one huge value, subnormals, and non-finite values.
fn blocks() -> Vec<f32> {
    let mut values = Vec::new();
    let mut place = 0;
    let mut run = |fill: &mut dyn FnMut(u16) -> f32, largest: Option<f32>| {
        let start = values.len();
        values.extend((0..64).map(fill));
        if let Some(largest) = largest {
            values[start + place % RUN] = largest;
            place += 23;
        }
    };
    // Far down, in the middle and far up, where magnitudes leave their formats.
    for exponent in [-120, -64, -20, -3, 0, 40, 112] {
        for scale in SCALES {
            let unit = scale * power(exponent);
            // For 255 codes every second tie of the inner ones.
            for (top, step) in [(7.5, 0.25), (127.5, 2.0)] {
                let mut tie = |index: u16| {
                    let codes = (f32::from(index) - 32.0) * step + 0.5;
                    let value = codes * unit;
                    f32::from_bits((value.to_bits() + u32::from(index) % 3).saturating_sub(1))
                };
                run(&mut tie, Some(top * unit));
            }
            // Half-way between this scale and the next.
            run(
                &mut |index| if index % 2 == 0 { unit } else { -3.5 * unit },
                Some(7.5 * (unit + power(exponent) / 2.0)),
            );
        }
    }
    run(&mut |_| 0.0, None);
    run(&mut |_| -0.0, None);
    run(&mut |index| f32::from_bits(u32::from(index) * 0x0001_F001), None);
    run(&mut |_| -1.25, None);
    run(&mut |index| power(-20 - i32::from(index % 8)), Some(f32::MAX));
    run(&mut |index| if index % 2 == 0 { f32::MAX } else { f32::MIN }, None);
    for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::from_bits(0x7F80_0001)] {
        for _ in 0..4 {
            run(&mut |index| f32::from(index % 13) * 0.25 - 1.5, Some(special));
        }
    }
    run(&mut |_| f32::NAN, None);
    values
}

/// More equal magnitudes, of both signs, than a selection takes.
fn equal() -> Vec<f32> {
    (0..1024_u16).map(|index| [3.0, -3.0, 0.5, -0.5, 3.0][usize::from(index) % 5]).collect()
}

/// Ties of f16 and bf16, and of the 2 and 3 digits of 8-bit floats, with their neighbours.
fn casts() -> Vec<f32> {
    let mut values = Vec::new();
    for exponent in (-26_i32..=17).chain([-127, -126, 126, 127]) {
        for mantissa in [
            0x0FFF, 0x1000, 0x1001, 0x3000, 0x7FFF, 0x8000, 0x8001, 0x1_8000, 0x7_FFFF, 0x8_0000, 0x8_0001,
            0x18_0000, 0x10_0000, 0x30_0000, 0x7F_F000, 0x7F_8000,
        ] {
            let bits = (127 + exponent).cast_unsigned() << 23 | mantissa;
            values.push(f32::from_bits(bits | (mantissa & 1) << 31));
        }
    }
    values
}

/// Every exponent and sign, also those of subnormals and non-finite values.
fn exponents() -> Vec<f32> {
    (0..512)
        .flat_map(|top| [0, 1, 0x40_0000, 0x7F_FFFF].map(|mantissa| f32::from_bits(top << 23 | mantissa)))
        .collect()
}

//! What a residual is kept in: f32 as it is, or bytes with one power of two per 64 elements.
//!
//! Words of one chunk with bytes: `chunk / 4` words of bytes, element `i` in byte `i % 4` of word `i / 4`; then
//! `ceil(chunk / 256)` words with the exponents, block `b` in byte `b % 4` of word `b / 4`. The value is
//! `byte * 2^(exponent - 133)`: the exponent is that of the f32 bits of the block's largest magnitude, which thereby
//! lies at 64 to 127. Blocks below 2^-119 count as zero, so that every value is a normal f32. Fragment:
//! `shaders/lib/residual.wgsl`.

use super::{Config, Residual};
use crate::codec::StateError;
use crate::codec::state::Units;

/// Elements that share an exponent.
const BLOCK: usize = 64;

/// The least exponent of a block that is kept: one less and a byte of 1 would be subnormal.
const LEAST: u32 = 8;

/// Whether `words` are residuals that [`store`] leaves, or that are read alike everywhere: floats are finite, bytes and
/// their exponents have a value that is an f32, and behind the last element is nothing, which a kernel would select.
pub(super) fn check(config: &Config, elements: usize, words: &[u32]) -> Result<(), StateError> {
    let unit = config.unit();
    let units = Units::new(unit, elements, words);
    match config.residual {
        Residual::F32 => {
            StateError::check_finite("state", words)?;
            units.check_behind(|count| 4 * count..4 * unit.elements)
        }
        Residual::Bits8 => {
            let (bytes, all) = (unit.elements, 4 * unit.state_words);
            units.check_bytes("residual", 0..bytes, -127..=127, |byte| byte.cast_signed().into())?;
            units.check_bytes("residual exponent", bytes..all, 0..=254, i32::from)?;
            units.check_behind(|count| count..bytes)?;
            units.check_behind(|count| bytes + count.div_ceil(BLOCK)..all)
        }
    }
}

/// The residuals of a chunk, for as many elements as it has, into `out`.
pub(super) fn load(config: &Config, state: &[u32], out: &mut [f32]) {
    match config.residual {
        Residual::F32 => out.copy_from_slice(bytemuck::cast_slice(&state[..out.len()])),
        Residual::Bits8 => {
            let (bytes, exponents) = state.split_at(usize::from(config.chunk) / 4);
            for (number, block) in out.chunks_mut(BLOCK).enumerate() {
                let exponent = exponents[number / 4] >> (8 * (number % 4)) & 0xFF;
                // 2^(exponent - 133)
                let unit = if exponent < LEAST { 0.0 } else { f32::from_bits((exponent - 6) << 23) };
                for (value, byte) in block.iter_mut().zip(byte_iter(&bytes[number * BLOCK / 4..])) {
                    *value = f32::from(byte) * unit;
                }
            }
        }
    }
}

/// Keeps `residual`, whose elements are normal or zero.
pub(super) fn store(config: &Config, residual: &[f32], state: &mut [u32]) {
    match config.residual {
        Residual::F32 => state[..residual.len()].copy_from_slice(bytemuck::cast_slice(residual)),
        Residual::Bits8 => {
            state.fill(0);
            let (bytes, exponents) = state.split_at_mut(usize::from(config.chunk) / 4);
            for (number, block) in residual.chunks(BLOCK).enumerate() {
                let largest =
                    block.iter().map(|value| value.to_bits() & 0x7FFF_FFFF).max().unwrap_or(0) >> 23;
                if largest < LEAST {
                    continue;
                }
                exponents[number / 4] |= largest << (8 * (number % 4));
                for (i, value) in (number * BLOCK..).zip(block) {
                    let byte = quantize(value.to_bits(), largest).to_le_bytes()[0];
                    bytes[i / 4] |= u32::from(byte) << (8 * (i % 4));
                }
            }
        }
    }
}

/// `bits / 2^(exponent - 133)`, rounded to nearest, ties to even, at most 127.
fn quantize(bits: u32, exponent: u32) -> i32 {
    let own = bits >> 23 & 0xFF;
    if own == 0 {
        return 0;
    }
    // 24 digits become 7 for the largest; 25 less and nothing is left.
    let shift = (17 + exponent - own).min(25);
    let mantissa = (bits & 0x7F_FFFF | 0x80_0000).cast_signed();
    let magnitude = crate::codec::fixed::rne_shift(mantissa, shift).min(127);
    if bits >> 31 == 1 { -magnitude } else { magnitude }
}

fn byte_iter(words: &[u32]) -> impl Iterator<Item = i8> {
    words.iter().flat_map(|word| word.to_le_bytes().map(|byte| i8::from_le_bytes([byte])))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(values: &[f32]) -> Vec<f32> {
        let config = Config { chunk: 256, residual: Residual::Bits8, ..Config::default() };
        let mut state = vec![u32::MAX; config.unit().state_words];
        store(&config, values, &mut state);
        let mut out = vec![f32::NAN; values.len()];
        load(&config, &state, &mut out);
        out
    }

    #[test]
    fn each_block_keeps_its_own_exponent_and_a_step_of_a_64th_of_its_largest_power() {
        let mut values = vec![0.0; 200];
        (values[0], values[1], values[2], values[3]) = (1.0, 1.5 / 64.0, 2.5 / 64.0, -0.4 / 64.0);
        (values[64], values[65]) = (-1.0e20, 3.0e18);
        (values[199], values[198]) = (1.999, 1.0 / 64.0);
        let got = round_trip(&values);
        assert_eq!(got[..4], [1.0, 2.0 / 64.0, 2.0 / 64.0, 0.0]);
        let step = 2.0_f32.powi(66) / 64.0;
        assert_eq!(got[64..66], [(-1.0e20 / step).round() * step, (3.0e18 / step).round() * step]);
        assert_eq!(got[199], 127.0 / 64.0, "128 does not fit a byte");
        assert_eq!(got[198], 1.0 / 64.0);
        assert!(got[128..198].iter().all(|value| value.to_bits() == 0), "zeros stay plus zero");
    }

    #[test]
    fn what_would_be_subnormal_is_zero_and_what_is_just_above_is_kept() {
        let least = f32::from_bits(LEAST << 23);
        assert_eq!(round_trip(&[least, least / 64.0]), [least, least / 64.0]);
        assert_eq!(round_trip(&[least * 0.999, least / 2.0]), [0.0, 0.0]);
    }

    #[test]
    fn the_largest_f32_keeps_its_block_finite() {
        let got = round_trip(&[f32::MAX, f32::MIN, 1.0]);
        assert_eq!(got[0], -got[1]);
        assert!(got[0].is_finite() && got[0] > 0.99 * f32::MAX && got[2] == 0.0, "{got:?}");
    }
}

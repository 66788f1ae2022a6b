//! `fp8` in lanes: the bits of [`encode_block`] and of [`decode_element`](super::decode_element), without a shift by a
//! lane's own count and without a table.

use super::{BLOCK_MAX, Block, Config, Kind, encode_block, exponent, scale};
use crate::codec::Unit;
use crate::codec::fixed::is_finite;
use crate::codec::mean::{Load, PASS, weighted_mean};
use crate::codec::simd::for_this_cpu;

/// From this exponent of a block on, what brings it to the format is an f32, and takes no subnormal to half the least
/// number of it: 2^(127 + 15 - 40) * 2^-126 < 2^-17.
const LEAST_EXPONENT: u32 = 40;

/// A format as loops want it.
#[derive(Clone, Copy)]
struct Numbers {
    /// Digits of f32 that the format does not have.
    shift: u32,
    /// The f32 bits of its least normal number.
    least: u32,
    /// What f32 bits, shifted down, are above its own.
    rebias: u32,
    /// The f32 whose last digit is that of the format's subnormals.
    round: f32,
    largest: u32,
}

impl Numbers {
    #[inline(always)]
    const fn of(kind: Kind) -> Self {
        let format = kind.format();
        let shift = 23 - format.mantissa_bits;
        let rebias = (127 - format.bias()).cast_unsigned();
        // Subnormals are multiples of 2^(1 - bias - mantissa_bits): the field of that times 2^23.
        let round = f32::from_bits((rebias + 1 + shift) << 23);
        Self {
            shift,
            least: (rebias + 1) << 23,
            rebias: rebias << format.mantissa_bits,
            round,
            largest: format.largest() as u32,
        }
    }

    /// The code without sign of a magnitude in f32 bits, going on above the largest.
    #[inline(always)]
    const fn narrow(self, magnitude: u32) -> u32 {
        let small = (f32::from_bits(magnitude) + self.round).to_bits() - self.round.to_bits();
        let half = 1 << (self.shift - 1);
        let near = (magnitude + (half - 1) + (magnitude >> self.shift & 1)) >> self.shift;
        if magnitude < self.least { small } else { near.wrapping_sub(self.rebias) }
    }

    /// The f32 bits of a finite code.
    #[inline(always)]
    const fn widen(self, code: u8) -> u32 {
        let magnitude = (code as u32 & 0x7F) << self.shift;
        let small = f32::from_bits(self.least | magnitude) - f32::from_bits(self.least);
        let wide = if magnitude < 1 << 23 { small.to_bits() } else { magnitude + self.least - (1 << 23) };
        (code as u32 & 0x80) << 24 | wide
    }
}

for_this_cpu! {
    /// [`encode_block`].
    pub(super) fn encode(kind: Kind, values: &[f32], codes: &mut [u8; BLOCK_MAX]) -> Block = encode_lanes;
}

#[inline(always)]
fn encode_lanes(kind: Kind, values: &[f32], codes: &mut [u8; BLOCK_MAX]) -> Block {
    let (mut largest, mut nonfinite, mut saturated) = (0, 0, 0);
    for bits in values.iter().map(|value| value.to_bits()) {
        let finite = is_finite(bits);
        largest = largest.max(if finite { (bits & 0x7FFF_FFFF).cast_signed() } else { 0 });
        nonfinite += u32::from(!finite);
    }
    let exponent = exponent(kind, largest.cast_unsigned());
    if exponent < LEAST_EXPONENT {
        return encode_block(kind, values, codes);
    }
    // 2^(127 + last - exponent), with a field of 8 to 229.
    let multiplier = f32::from_bits((254 + kind.last().cast_unsigned() - exponent) << 23);
    let numbers = Numbers::of(kind);
    for (code, value) in codes.iter_mut().zip(values) {
        let value = if is_finite(value.to_bits()) { *value } else { 0.0 };
        let scaled = (value * multiplier).to_bits();
        let magnitude = numbers.narrow(scaled & 0x7FFF_FFFF);
        let clamped = if magnitude < numbers.largest { magnitude } else { numbers.largest };
        let sign = if clamped == 0 { 0 } else { scaled >> 31 << 7 };
        saturated += u32::from(magnitude != clamped);
        #[allow(clippy::cast_possible_truncation, reason = "7 bits and a sign")]
        let byte = (sign | clamped) as u8;
        *code = byte;
    }
    codes[values.len()..values.len().next_multiple_of(4)].fill(0);
    Block { exponent, nonfinite, saturated }
}

for_this_cpu! {
    /// The mean of checked packets.
    pub(super) fn mean(
        config: &Config,
        packets: &[&[u32]],
        weights: &[u32],
        total: u32,
        mean: &mut [f32],
    ) -> () = mean_lanes;
}

#[inline(always)]
fn mean_lanes(config: &Config, packets: &[&[u32]], weights: &[u32], total: u32, mean: &mut [f32]) {
    weighted_mean(weights, total, mean, &Packets { config, packets });
}

struct Packets<'a> {
    config: &'a Config,
    packets: &'a [&'a [u32]],
}

impl Load for Packets<'_> {
    /// `start` is a multiple of 8.
    #[inline(always)]
    fn load(&self, rank: usize, start: usize, bits: &mut [u32]) {
        let Self { config, packets } = self;
        let (packet, numbers) = (packets[rank], Numbers::of(config.kind));
        let (block, last) = (usize::from(config.block), config.kind.last());
        let Unit { elements: unit, words, .. } = config.unit();
        let mut done = 0;
        while done < bits.len() {
            let at = start + done;
            let run = (block - at % block).min(bits.len() - done);
            let base = at / unit * words;
            let exponent = packet[base] >> (8 * (at % unit / block)) & 0xFF;
            let mut codes = [0; PASS];
            let words = packet[base + 1 + at % unit / 4..].iter().take(run.div_ceil(4));
            for (four, word) in codes.as_chunks_mut::<4>().0.iter_mut().zip(words) {
                *four = word.to_le_bytes();
            }
            for (bits, code) in bits[done..done + run].iter_mut().zip(codes) {
                *bits = scale(numbers.widen(code), exponent, last);
            }
            done += run;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::decode_element;
    use super::*;
    use crate::codec::convert::widen;
    use crate::codec::lanes::arbitrary::Random;

    #[test]
    fn every_block_is_that_of_the_definition() {
        let mut random = Random::new(20_261_133);
        for round in 0..60_000_u32 {
            let kind = [Kind::E4M3, Kind::E5M2][round as usize % 2];
            let count = 1 + random.below(200) as usize;
            let values = random.block(count);
            let run = |encode: fn(Kind, &[f32], &mut [u8; BLOCK_MAX]) -> Block| {
                let mut codes = [0xA5; BLOCK_MAX];
                (encode(kind, &values, &mut codes), codes)
            };
            let want = run(encode_block);
            assert_eq!(run(encode), want, "{kind:?} {values:?}");
            assert_eq!(run(encode_lanes), want, "baseline, {kind:?} {values:?}");
        }
    }

    #[test]
    fn every_tie_of_every_binade_is_rounded_as_the_definition_says() {
        for kind in [Kind::E4M3, Kind::E5M2] {
            for exponent in LEAST_EXPONENT..=254 {
                // The largest sets the exponent; 40 binades below it reach behind the least number.
                let fields = exponent.saturating_sub(40)..exponent;
                let ties = fields.flat_map(|field| {
                    (0..32)
                        .flat_map(move |k| [k << 18, (k << 18) + 1, ((k + 1) << 18) - 1])
                        .map(move |m| field << 23 | m)
                });
                let values: Vec<f32> = ties.map(f32::from_bits).collect();
                for values in values.chunks(1000) {
                    let mut block = values.to_vec();
                    block.push(f32::from_bits(exponent << 23));
                    let (mut got, mut want) = ([0; BLOCK_MAX], [0; BLOCK_MAX]);
                    assert_eq!(encode(kind, &block, &mut got), encode_block(kind, &block, &mut want));
                    assert_eq!(got, want, "{kind:?} {exponent}");
                }
            }
        }
    }

    #[test]
    fn every_code_of_every_exponent_is_widened_as_the_definition_says() {
        for kind in [Kind::E4M3, Kind::E5M2] {
            let numbers = Numbers::of(kind);
            for code in (0..=255_u8).filter(|code| kind.format().is_finite((*code).into())) {
                assert_eq!(numbers.widen(code), widen(kind.format(), code.into()), "{kind:?} {code}");
                for exponent in 0..=254 {
                    let got = scale(numbers.widen(code), exponent, kind.last());
                    assert_eq!(got, decode_element(kind, exponent, code), "{kind:?} {code} {exponent}");
                }
            }
        }
    }
}

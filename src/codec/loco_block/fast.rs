//! One block of `loco-block` in lanes: the bits of [`Block::encode`].

use super::{Block, Config};
use crate::codec::block::fast::quantize;
use crate::codec::fixed::is_finite;
use crate::codec::lanes::{
    self, fixed, integer, is_too_small, largest_exponent, nearest, residual_multiplier,
};
use crate::codec::scale::{self, Divisor, Quotient};
use crate::codec::simd::for_this_cpu;

/// Room to work in, of one block: of `h`, then of the old residual in units and what is to be kept.
pub(super) struct Room {
    h: Vec<f32>,
    old: Vec<f32>,
    kept: Vec<i32>,
}

impl Room {
    pub(super) fn new(size: usize) -> Self {
        Self { h: vec![0.0; size], old: vec![0.0; size], kept: vec![0; size] }
    }
}

for_this_cpu! {
    /// [`Block::encode`].
    pub(super) fn encode(
        block: Block<'_>,
        old_byte: u8,
        reset: bool,
        room: &mut Room,
        codes: &mut [i8],
    ) -> (u8, u32, u8) = encode_lanes;
}

#[inline(always)]
fn encode_lanes(
    block: Block<'_>,
    old_byte: u8,
    reset: bool,
    room: &mut Room,
    codes: &mut [i8],
) -> (u8, u32, u8) {
    let Config { base_log2, decay, .. } = *block.config;
    let top = largest_exponent(block.values).max(scale::residual_exponent(old_byte, base_log2));
    if is_too_small(top) {
        let size = block.values.len();
        return block.encode(old_byte, reset, &mut vec![0; size], &mut vec![0; size], codes);
    }
    let Block { config, values, residuals } = block;
    let Room { h, old, kept } = room;
    let (multiplier, unit) = (lanes::multiplier(top), residual_multiplier(old_byte, base_log2, top));
    for (((h, old), value), residual) in h.iter_mut().zip(&mut *old).zip(values).zip(&*residuals) {
        let residual = nearest(f32::from(*residual) * unit);
        *old = if is_finite(value.to_bits()) { residual } else { 0.0 };
        *h = fixed(*value, multiplier) + *old;
    }
    let (byte, saturated) = quantize::<true>(&config.format(), top, h, codes);
    let decay = i32::from(decay);
    let mut absmax = 0;
    for ((kept, lost), old) in kept.iter_mut().zip(&*h).zip(&*old) {
        *kept = decay * integer(*old) + (256 - decay) * integer(*lost);
        absmax = absmax.max(kept.abs());
    }
    let kept_byte =
        if reset { 0 } else { keep(scale::offset(top, base_log2), absmax.cast_unsigned(), kept, residuals) };
    if kept_byte == 0 {
        residuals.fill(0);
    }
    (byte, saturated, kept_byte)
}

/// [`keep`](super::keep), from the largest magnitude. The numbers are too long for f32: integers it is.
#[inline(always)]
fn keep(offset: i32, absmax: u32, kept: &[i32], residuals: &mut [i8]) -> u8 {
    let byte = if absmax == 0 { 0 } else { scale::to_byte(scale::choose(absmax, Divisor::BITS_8), offset) };
    if byte == 0 {
        return 0;
    }
    let quotient = Quotient::by(scale::to_index(byte, offset));
    for (kept, residual) in kept.iter().zip(residuals) {
        let magnitude = quotient.of(kept.unsigned_abs()).cast_signed();
        #[allow(clippy::cast_possible_truncation, reason = "clamped to a byte")]
        let narrow = (if *kept < 0 { -magnitude } else { magnitude }).clamp(-128, 127) as i8;
        *residual = narrow;
    }
    byte
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::block::Bits;
    use crate::codec::lanes::arbitrary::Random;

    #[test]
    fn every_block_and_its_residual_are_those_of_the_definition() {
        let mut random = Random::new(20_261_131);
        for round in 0..40_000_u32 {
            let size = [32, 64, 72, 256][random.below(4) as usize];
            let config = Config {
                bits: [Bits::Two, Bits::Four, Bits::Eight][round as usize % 3],
                block: size,
                base_log2: [-80, -50, -50, -20, 55][random.below(5) as usize],
                decay: [0, 1, 128, 205, 255][random.below(5) as usize],
                reset_every: None,
            };
            let size = usize::from(size);
            let (values, reset) = (random.block(size), random.below(20) == 0);
            let old_byte = [0, 1, 255, random.below(256).to_le_bytes()[0]][random.below(4) as usize];
            let old: Vec<i8> = (0..size).map(|_| random.below(256).to_le_bytes()[0].cast_signed()).collect();
            let run = |which: u8| {
                let (mut residuals, mut codes) = (old.clone(), vec![77_i8; size]);
                let block = Block { config: &config, values: &values, residuals: &mut residuals };
                let said = match which {
                    0 => block.encode(old_byte, reset, &mut vec![0; size], &mut vec![0; size], &mut codes),
                    1 => encode(block, old_byte, reset, &mut Room::new(size), &mut codes),
                    _ => encode_lanes(block, old_byte, reset, &mut Room::new(size), &mut codes),
                };
                (said, residuals, codes)
            };
            let want = run(0);
            assert_eq!(run(1), want, "{config:?} {old_byte} {old:?} {values:?}");
            assert_eq!(run(2), want, "baseline, {config:?} {old_byte} {old:?} {values:?}");
        }
    }
}

//! One block of `sign` in lanes: the bits of [`encode_block`].

use super::{BLOCK_MAX, Block, Config, RESIDUAL_LOG2, Ratio, SUM_DIGITS, encode_block};
use crate::codec::Stats;
use crate::codec::fixed::is_finite;
use crate::codec::lanes::{
    self, absmax, clamp, fixed, integer, is_too_small, largest_exponent, low_byte, nearest,
    residual_multiplier,
};
use crate::codec::scale;
use crate::codec::simd::for_this_cpu;

/// Room to work in: what a block compensates and loses, and a 1 for each negative element.
pub(super) struct Room {
    h: [f32; BLOCK_MAX],
    negative: [u8; BLOCK_MAX],
}

impl Room {
    pub(super) const fn new() -> Self {
        Self { h: [0.0; BLOCK_MAX], negative: [0; BLOCK_MAX] }
    }
}

for_this_cpu! {
    /// [`encode_block`], which writes into as many bytes of `negative` as the elements need.
    pub(super) fn encode(
        config: &Config,
        reset: bool,
        values: &[f32],
        room: &mut Room,
        residuals: &mut [i8],
        residual_scale: u8,
        negative: &mut [u8],
    ) -> Block = encode_lanes;
}

#[inline(always)]
fn encode_lanes(
    config: &Config,
    reset: bool,
    values: &[f32],
    room: &mut Room,
    residuals: &mut [i8],
    residual_scale: u8,
    negative: &mut [u8],
) -> Block {
    let count = values.len();
    let base = config.base_log2 + RESIDUAL_LOG2;
    let largest = largest_exponent(values).max(scale::residual_exponent(residual_scale, base));
    if is_too_small(largest) {
        negative.fill(0);
        return encode_block(config, reset, values, &mut [0; BLOCK_MAX], residuals, residual_scale, negative);
    }
    let top = largest + SUM_DIGITS;
    let (multiplier, unit) = (lanes::multiplier(top), residual_multiplier(residual_scale, base, top));
    let (h, flags) = (&mut room.h[..count], &mut room.negative[..count.next_multiple_of(8)]);
    let (mut bad, mut sum) = (0_u32, 0_u32);
    for ((h, value), residual) in h.iter_mut().zip(values).zip(residuals.iter()) {
        let finite = is_finite(value.to_bits());
        let kept = nearest(f32::from(*residual) * unit);
        *h = fixed(*value, multiplier) + if finite { kept } else { 0.0 };
        sum += integer(*h).unsigned_abs();
        bad += u32::from(!finite);
    }
    let mut stats = Stats { nonfinite: bad.into(), saturated: 0 };
    if sum == 0 {
        negative.fill(0);
        residuals.fill(0);
        return Block { scale: 0, residual_scale: 0, stats };
    }

    let offset = scale::offset(top, config.base_log2);
    #[allow(clippy::cast_possible_truncation, reason = "at most 1024")]
    let index = Ratio::new(sum, count as u32).nearest();
    let byte = scale::to_byte(index, offset);
    if index + offset > 255 {
        stats.saturated = count as u64;
    }
    let sent = if byte == 0 { 0.0 } else { lanes::units(scale::to_index(byte, offset)) };

    for ((h, value), flag) in h.iter_mut().zip(values).zip(&mut *flags) {
        let below = *h < 0.0;
        *flag = u8::from(below);
        let lost = *h - if below { -sent } else { sent };
        *h = if is_finite(value.to_bits()) { lost } else { 0.0 };
    }
    flags[count..].fill(0);
    for (byte, eight) in negative.iter_mut().zip(flags.as_chunks::<8>().0) {
        // Bit 0 of byte k to bit 56 + k, by a factor with a one at 56 - 7k: no two products meet in one place.
        let gathered = u64::from_le_bytes(*eight).wrapping_mul(0x0102_0408_1020_4080);
        *byte = gathered.to_le_bytes()[7];
    }
    let largest = if reset { 0 } else { absmax(h) };
    let offset = offset - 4 * i32::from(RESIDUAL_LOG2);
    let residual_scale = if largest == 0 {
        0
    } else {
        scale::to_byte(Ratio::new(largest << (RESIDUAL_LOG2 + 1), 255).least(), offset)
    };
    if residual_scale == 0 {
        residuals.fill(0);
    } else {
        let scale = lanes::units(scale::to_index(residual_scale, offset));
        let finer = (1_u16 << RESIDUAL_LOG2) as f32;
        for (residual, lost) in residuals.iter_mut().zip(h.iter()) {
            *residual = low_byte(nearest(clamp(lost * finer / scale, -127.0, 127.0)));
        }
    }
    Block { scale: byte, residual_scale, stats }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::lanes::arbitrary::Random;

    #[test]
    fn every_block_and_its_residual_are_those_of_the_definition() {
        let mut random = Random::new(20_261_132);
        let mut room = Room::new();
        for _ in 0..40_000 {
            let block = [32, 64, 72, 256, 1024][random.below(5) as usize];
            let base_log2 = [-80, -50, -50, -20, 55][random.below(5) as usize];
            let config = Config { block, base_log2, reset_every: None };
            let block = usize::from(block);
            let count = if random.below(3) == 0 { 1 + random.below(block as u64) as usize } else { block };
            let (values, reset) = (random.block(count), random.below(20) == 0);
            let old_scale = [0, 1, 255, random.below(256).to_le_bytes()[0]][random.below(4) as usize];
            let old: Vec<i8> = (0..count).map(|_| random.below(256).to_le_bytes()[0].cast_signed()).collect();
            let mut run = |which: u8| {
                let mut residuals = old.clone();
                let mut negative = vec![if which == 0 { 0 } else { 0xA5 }; count.div_ceil(8)];
                let said = match which {
                    0 => {
                        let h = &mut [0; BLOCK_MAX];
                        encode_block(&config, reset, &values, h, &mut residuals, old_scale, &mut negative)
                    }
                    1 => encode(&config, reset, &values, &mut room, &mut residuals, old_scale, &mut negative),
                    _ => encode_lanes(
                        &config,
                        reset,
                        &values,
                        &mut room,
                        &mut residuals,
                        old_scale,
                        &mut negative,
                    ),
                };
                (said, residuals, negative)
            };
            let want = run(0);
            assert_eq!(run(1), want, "{config:?} {old_scale} {old:?} {values:?}");
            assert_eq!(run(2), want, "baseline, {config:?} {old_scale} {old:?} {values:?}");
        }
    }
}

//! One block of `block8` and `block4` in f32 lanes: the bits of [`encode_block`](super::encode_block).

use super::{Format, encode_block};
use crate::codec::lanes::{self, absmax, clamp, fixed, is_too_small, largest_exponent, low_byte, nearest};
use crate::codec::scale;
use crate::codec::simd::for_this_cpu;

for_this_cpu! {
    /// [`encode_block`](super::encode_block); `h` has room for the block.
    pub(super) fn encode(
        format: &Format,
        values: &[f32],
        h: &mut [f32],
        codes: &mut [i8],
    ) -> (u8, u32) = encode_lanes;
}

#[inline(always)]
fn encode_lanes(format: &Format, values: &[f32], h: &mut [f32], codes: &mut [i8]) -> (u8, u32) {
    h.copy_from_slice(values);
    encode_values(format, h, codes)
}

/// [`encode_block`](super::encode_block) of `h`, which is then worthless.
#[inline(always)]
pub(in crate::codec) fn encode_values(format: &Format, h: &mut [f32], codes: &mut [i8]) -> (u8, u32) {
    let top = largest_exponent(h);
    if is_too_small(top) {
        return encode_block(format, h, &mut vec![0; h.len()], codes);
    }
    let multiplier = lanes::multiplier(top);
    for h in h.iter_mut() {
        *h = fixed(*h, multiplier);
    }
    quantize::<false>(format, top, h, codes)
}

/// [`quantize`](super::quantize), which leaves in `h` what the codes lose only if `LOSS`.
#[inline(always)]
pub(in crate::codec) fn quantize<const LOSS: bool>(
    format: &Format,
    top: i32,
    h: &mut [f32],
    codes: &mut [i8],
) -> (u8, u32) {
    let absmax = absmax(h);
    let offset = scale::offset(top, format.base_log2);
    let byte =
        if absmax == 0 { 0 } else { scale::to_byte(scale::choose(absmax, format.bits.divisor()), offset) };
    if byte == 0 {
        codes.fill(0);
        return (0, 0);
    }
    let scale = lanes::units(scale::to_index(byte, offset));
    let most = format.bits.largest_code() as f32;
    let mut saturated = 0;
    for (h, code) in h.iter_mut().zip(codes) {
        // At most 2^22 / 4.
        let rounded = nearest(*h / scale);
        let clamped = clamp(rounded, -most, most - 1.0);
        if LOSS {
            *h -= clamped * scale;
        }
        saturated += u32::from(rounded != clamped);
        *code = low_byte(clamped);
    }
    (byte, saturated)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::block::Bits;
    use crate::codec::lanes::arbitrary::Random;

    #[test]
    fn every_block_is_that_of_the_definition() {
        let mut random = Random::new(20_261_130);
        for round in 0..40_000_u32 {
            let bits = [Bits::Two, Bits::Four, Bits::Eight][round as usize % 3];
            let block = [32, 64, 72, 256][random.below(4) as usize];
            let base_log2 = [-80, -50, -50, -20, 55][random.below(5) as usize];
            let format = Format { bits, block, base_log2 };
            let values = random.block(block.into());
            let size = values.len();
            let (mut want, mut got, mut baseline) = (vec![1_i8; size], vec![2_i8; size], vec![3_i8; size]);
            let mut h = vec![0.5; size];
            let defined = encode_block(&format, &values, &mut vec![0; size], &mut want);
            assert_eq!(encode(&format, &values, &mut h, &mut got), defined, "{format:?} {values:?}");
            assert_eq!(
                encode_lanes(&format, &values, &mut h, &mut baseline),
                defined,
                "{format:?} {values:?}"
            );
            assert_eq!(got, want, "{format:?} {values:?}");
            assert_eq!(baseline, want, "{format:?} {values:?}");
        }
    }
}

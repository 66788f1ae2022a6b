//! LoCo with AVX2, 32 elements at a time. Same arithmetic as `blocked`, with what a compiler does not find:
//! saturating packs instead of the residual's clamp, and `maddubs` instead of shifts to join nibbles.

#![allow(unsafe_code, reason = "vector loads and stores, and calls from code compiled without AVX2")]

use std::arch::is_x86_feature_detected;
use std::arch::x86_64::*;

use super::blocked::{Constants, average_checked};
use super::{CODES_PER_WORD, Config, Variant, check_average, check_encode, encode_by_element};
use crate::codec::fixed::{EXPONENT_MASK, FIXED_MAX};
use crate::codec::{AverageError, Stats, Step};

/// Elements of one turn: one register of packed residuals, half a register of packed codes.
const BLOCK: usize = 32;
const BLOCK_WORDS: usize = BLOCK / CODES_PER_WORD;

/// Blocks between two transfers of the 32-bit lane counts into 64 bits.
const BLOCKS_PER_COUNT: usize = 1 << 16;

/// `FRACTION_BITS`, and the shift from an averaged residual, as the immediates that the intrinsics take.
const CODE_SHIFT: i32 = 12;
const AVERAGED_SHIFT: i32 = 20;

/// This variant, if the CPU has AVX2.
pub(super) fn variant() -> Option<Variant> {
    is_x86_feature_detected!("avx2").then_some(Variant {
        name: "avx2",
        encode: encode_avx2,
        average: average_avx2,
    })
}

fn encode_avx2(
    config: &Config,
    step: Step,
    gradient: &[f32],
    residual: &mut [i8],
    packet: &mut [u32],
) -> Stats {
    check_encode(config, gradient.len(), residual, packet);
    assert!(is_x86_feature_detected!("avx2"), "this CPU has no AVX2");
    let whole = gradient.len() / BLOCK * BLOCK;
    let (values, last_values) = gradient.split_at(whole);
    let (residuals, last_residuals) = residual.split_at_mut(whole);
    let (words, last_words) = packet.split_at_mut(whole / CODES_PER_WORD);
    let (values, _) = values.as_chunks::<BLOCK>();
    let (residuals, _) = residuals.as_chunks_mut::<BLOCK>();
    let (words, _) = words.as_chunks_mut::<BLOCK_WORDS>();
    let constants = Constants::new(config);
    let mut stats = Stats::default();
    for ((v, r), w) in values
        .chunks(BLOCKS_PER_COUNT)
        .zip(residuals.chunks_mut(BLOCKS_PER_COUNT))
        .zip(words.chunks_mut(BLOCKS_PER_COUNT))
    {
        // SAFETY: the CPU has AVX2, asserted above.
        stats += unsafe {
            if config.is_reset(step) {
                encode_blocks::<true>(constants, v, r, w)
            } else {
                encode_blocks::<false>(constants, v, r, w)
            }
        };
    }
    stats + encode_by_element(config, step, last_values, last_residuals, last_words)
}

fn average_avx2(
    config: &Config,
    packets: &[&[u32]],
    weights: &[u32],
    mean: &mut [f32],
) -> Result<(), AverageError> {
    #[target_feature(enable = "avx2")]
    fn with_avx2(scale: f32, packets: &[&[u32]], weights: &[u32], mean: &mut [f32]) {
        average_checked(scale, packets, weights, mean);
    }

    let scale = check_average(config, packets, weights, mean)?;
    assert!(is_x86_feature_detected!("avx2"), "this CPU has no AVX2");
    // SAFETY: the CPU has AVX2, asserted one line earlier.
    unsafe { with_avx2(scale, packets, weights, mean) };
    Ok(())
}

/// [`Constants`] in every lane.
#[derive(Clone, Copy)]
struct Lanes {
    multiplier: __m256,
    residual_shift: __m128i,
    decay: __m256i,
    gain: __m256i,
}

/// Eight elements: codes and unclamped new residuals in 32-bit lanes, and all-ones where it holds.
struct Eight {
    code: __m256i,
    new: __m256i,
    nonfinite: __m256i,
    unsaturated: __m256i,
}

#[target_feature(enable = "avx2")]
fn encode_blocks<const RESET: bool>(
    constants: Constants,
    values: &[[f32; BLOCK]],
    residuals: &mut [[i8; BLOCK]],
    words: &mut [[u32; BLOCK_WORDS]],
) -> Stats {
    let lanes = Lanes {
        multiplier: _mm256_set1_ps(constants.multiplier),
        residual_shift: _mm_cvtsi32_si128(constants.residual_shift.cast_signed()),
        decay: _mm256_set1_epi32(constants.decay),
        gain: _mm256_set1_epi32(constants.gain),
    };
    // Packs work within 128-bit halves; this puts their groups of four back in order.
    let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    let (low_nibbles, sixteens) = (_mm256_set1_epi8(0x0F), _mm256_set1_epi16(0x1001));
    let (mut nonfinite, mut unsaturated) = (_mm256_setzero_si256(), _mm256_setzero_si256());
    for ((values, residuals), words) in values.iter().zip(&mut *residuals).zip(words) {
        let (values, _) = values.as_chunks::<8>();
        let (old, _) = residuals.as_chunks::<8>();
        let eights: [Eight; 4] = [
            encode_eight(lanes, &values[0], &old[0]),
            encode_eight(lanes, &values[1], &old[1]),
            encode_eight(lanes, &values[2], &old[2]),
            encode_eight(lanes, &values[3], &old[3]),
        ];
        for eight in &eights {
            nonfinite = _mm256_sub_epi32(nonfinite, eight.nonfinite);
            unsaturated = _mm256_sub_epi32(unsaturated, eight.unsaturated);
        }
        let [a, b, c, d] = &eights;
        let codes = pack_bytes(a.code, b.code, c.code, d.code);
        let codes = _mm256_and_si256(_mm256_permutevar8x32_epi32(codes, order), low_nibbles);
        // Low nibble + 16 * high nibble, one byte in each 16-bit lane.
        let pairs = _mm256_maddubs_epi16(codes, sixteens);
        let packed = _mm256_permute4x64_epi64::<0b10_00>(_mm256_packus_epi16(pairs, pairs));
        store_words(words, _mm256_castsi256_si128(packed));
        if RESET {
            *residuals = [0; BLOCK];
        } else {
            // The saturation of the two packs is the clamp to -128..=127.
            let new = pack_bytes(a.new, b.new, c.new, d.new);
            store_bytes(residuals, _mm256_permutevar8x32_epi32(new, order));
        }
    }
    let unsaturated = sum(unsaturated);
    let elements = values.len() as u64 * BLOCK as u64;
    Stats { nonfinite: sum(nonfinite), saturated: elements - unsaturated }
}

/// The five lines of [`encode_element`](super::encode_element), eight at a time.
#[inline]
#[target_feature(enable = "avx2")]
fn encode_eight(lanes: Lanes, values: &[f32; 8], residuals: &[i8; 8]) -> Eight {
    let bound = _mm256_set1_ps(FIXED_MAX as f32);
    let exponent = _mm256_set1_epi32(EXPONENT_MASK.cast_signed());
    let values = load_values(values);
    let nonfinite = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_castps_si256(values), exponent), exponent);
    // The conversion rounds half to even: Rust code always runs with the default rounding mode.
    let scaled = _mm256_min_ps(_mm256_mul_ps(values, lanes.multiplier), bound);
    let fixed = _mm256_cvtps_epi32(_mm256_max_ps(scaled, _mm256_sub_ps(_mm256_setzero_ps(), bound)));
    // With both inputs masked to zero, code and residual of a non-finite element come out as 0.
    let fixed = _mm256_andnot_si256(nonfinite, fixed);
    let old = _mm256_andnot_si256(nonfinite, load_bytes(residuals));
    let h = _mm256_add_epi32(fixed, _mm256_sll_epi32(old, lanes.residual_shift));
    let rounded = rne_shift::<CODE_SHIFT>(h);
    let code = _mm256_max_epi32(_mm256_min_epi32(rounded, _mm256_set1_epi32(7)), _mm256_set1_epi32(-8));
    let lost = _mm256_sub_epi32(h, _mm256_slli_epi32::<CODE_SHIFT>(code));
    let averaged =
        _mm256_add_epi32(_mm256_mullo_epi32(old, lanes.decay), _mm256_mullo_epi32(lost, lanes.gain));
    Eight {
        code,
        new: rne_shift::<AVERAGED_SHIFT>(averaged),
        nonfinite,
        unsaturated: _mm256_cmpeq_epi32(rounded, code),
    }
}

/// [`rne_shift`](crate::codec::fixed::rne_shift) in every lane.
#[inline]
#[target_feature(enable = "avx2")]
fn rne_shift<const N: i32>(v: __m256i) -> __m256i {
    let odd = _mm256_and_si256(_mm256_srai_epi32::<N>(v), _mm256_set1_epi32(1));
    let below_half = _mm256_set1_epi32((1 << (N - 1)) - 1);
    _mm256_srai_epi32::<N>(_mm256_add_epi32(_mm256_add_epi32(v, below_half), odd))
}

/// Four registers of 32-bit lanes into one of bytes, saturating, in the order that `order` undoes.
#[inline]
#[target_feature(enable = "avx2")]
fn pack_bytes(a: __m256i, b: __m256i, c: __m256i, d: __m256i) -> __m256i {
    _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d))
}

/// The sum of eight counts.
#[inline]
#[target_feature(enable = "avx2")]
fn sum(counts: __m256i) -> u64 {
    let mut lanes = [0_u32; 8];
    // SAFETY: `lanes` is 32 writable bytes; the store needs no alignment.
    unsafe { _mm256_storeu_si256((&raw mut lanes).cast(), counts) };
    lanes.iter().map(|count| u64::from(*count)).sum()
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_values(values: &[f32; 8]) -> __m256 {
    // SAFETY: `values` is 32 readable bytes; the load needs no alignment.
    unsafe { _mm256_loadu_ps(values.as_ptr()) }
}

/// Eight bytes, sign-extended to 32-bit lanes.
#[inline]
#[target_feature(enable = "avx2")]
fn load_bytes(bytes: &[i8; 8]) -> __m256i {
    // SAFETY: `bytes` is 8 readable bytes; the load reads 8 and needs no alignment.
    _mm256_cvtepi8_epi32(unsafe { _mm_loadl_epi64(bytes.as_ptr().cast()) })
}

#[inline]
#[target_feature(enable = "avx2")]
fn store_bytes(bytes: &mut [i8; BLOCK], v: __m256i) {
    // SAFETY: `bytes` is 32 writable bytes; the store needs no alignment.
    unsafe { _mm256_storeu_si256((&raw mut *bytes).cast(), v) };
}

#[inline]
#[target_feature(enable = "avx2")]
fn store_words(words: &mut [u32; BLOCK_WORDS], v: __m128i) {
    // SAFETY: `words` is 16 writable bytes; the store needs no alignment.
    unsafe { _mm_storeu_si128((&raw mut *words).cast(), v) };
}

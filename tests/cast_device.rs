//! The kernels of `f32`, `f16`, `bf16`, `fp8` and `intsgd` where a rounding goes wrong: every tie of every format, every
//! code, means that cancel or need all 64 bits, and sums beyond 24 bits. Wrong shaders must be noticed.

#![cfg(feature = "gpu")]
#![allow(clippy::unwrap_used, reason = "test code")]
#![allow(clippy::cast_possible_truncation, reason = "random bits are cut to size, values rounded to f32")]

#[path = "common/gpu.rs"]
mod common;

use common::{Means, Random, Values, compare, gpus, notices};
use gradwire::codec::convert::{BF16, E4M3, E5M2, F16, Format, widen};
use gradwire::codec::fp8::{self, Kind};
use gradwire::codec::{Codec, Input, intsgd};
use gradwire::gpu::source::{
    CAST_AVERAGE_F32, CAST_AVERAGE_HALF, CAST_ENCODE_HALF, FP8_AVERAGE, FP8_ENCODE, INTSGD_AVERAGE,
    INTSGD_ENCODE, Shader,
};
use gradwire::gpu::{Average, Encode, Gpu, Limits};

const SEED: u64 = 20_261_129;

/// Every finite code but zero, every tie above it, and their neighbours by one ULP, with both signs.
fn ties(format: Format) -> Vec<f32> {
    let value = |code| f64::from(f32::from_bits(widen(format, code)));
    let places = (0..format.largest()).flat_map(|code| {
        let (low, high) = (value(code), value(code + 1));
        [(low + high) / 2.0, high].map(|value| value as f32)
    });
    // Beyond the largest number by half a step and a whole one.
    let (last, before) = (value(format.largest()), value(format.largest() - 1));
    let beyond = [last + (last - before) / 2.0, 2.0 * last - before].map(|value| value as f32);
    let near =
        |place: f32| (-1..=1).map(move |ulp| f32::from_bits(place.to_bits().saturating_add_signed(ulp)));
    places.chain(beyond).flat_map(near).flat_map(|value| [value, -value]).collect()
}

/// Compares one step of a fresh encoder, of the shader as it is or of `text`.
fn encodes(gpu: &Gpu, codec: &Codec, values: &[f32], text: Option<&str>) -> Result<(), String> {
    let values = Values::new(Input::F32, values);
    let n = values.gradient().len();
    let mut encode = match text {
        None => Encode::new(gpu, codec, Input::F32, n).unwrap(),
        Some(text) => Encode::with_source(gpu, codec, Input::F32, n, Limits::of(gpu), text).unwrap(),
    };
    compare(codec, 1, &[values], &mut encode)
}

fn averages(
    gpu: &Gpu,
    codec: &Codec,
    elements: usize,
    text: Option<&str>,
    mut next: impl FnMut() -> Option<(Vec<Vec<u32>>, Vec<u32>)>,
) -> Result<(), String> {
    let mut means = Means::new(match text {
        None => Average::new(gpu, codec, elements).unwrap(),
        Some(text) => Average::with_source(gpu, codec, elements, Limits::of(gpu), text).unwrap(),
    });
    while let Some((packets, weights)) = next() {
        means.compare(codec, &packets, &weights)?;
    }
    Ok(())
}

/// A third of the totals use all 21 bits.
fn weights(random: &mut Random, ranks: usize) -> Vec<u32> {
    let most = [1, 9, 1000, (1 << 21) / ranks as u64, (1 << 21) / ranks as u64][random.below(5) as usize];
    let mut weights: Vec<u32> = (0..ranks).map(|_| random.below(most) as u32).collect();
    weights[0] += u32::from(weights.iter().all(|weight| *weight == 0));
    weights
}

fn half(gpu: &Gpu, text: Option<&str>) -> Result<(), String> {
    encodes(gpu, &Codec::F16, &ties(F16), text)?;
    encodes(gpu, &Codec::Bf16, &ties(BF16), text)
}

#[test]
fn half_types_are_rounded_right_on_and_around_every_tie() {
    for gpu in gpus() {
        half(&gpu, None).unwrap();
    }
}

/// Blocks whose first element fixes the exponent, then ties of the format up to the top, for exponents at both ends.
fn fp8_ties(kind: Kind) -> Vec<f32> {
    let mut values = Vec::new();
    let shifts = [-126 - kind.last(), -120, -20, 0, 3, 127 - kind.last()];
    let ties = ties(kind.format());
    for (index, ties) in ties.chunks(31).cycle().take(6 * ties.len().div_ceil(31)).enumerate() {
        let shift = shifts[index % shifts.len()];
        let scaled = |value: f64| {
            let scaled = (value * 2_f64.powi(shift)) as f32;
            if scaled.is_finite() { scaled } else { f32::MAX }
        };
        // A mantissa that decides between two exponents, or none: then a tie is the largest of its block.
        let top = 2_f64.powi(kind.last());
        let anchors = [1.75, 1.812_5, 1.812_500_1, 1.874_999_9, 1.875, 1.999_999_9, 1.0, 0.0];
        values.push(scaled(top * anchors[index / shifts.len() % anchors.len()]));
        values.extend(ties.iter().map(|tie| scaled(f64::from(*tie))));
        values.resize(32 * (index + 1), 0.0);
    }
    values
}

fn fp8(gpu: &Gpu, text: Option<&str>) -> Result<(), String> {
    for kind in [Kind::E4M3, Kind::E5M2] {
        let values = fp8_ties(kind);
        for block in [32, 64, 1024] {
            encodes(gpu, &Codec::Fp8(fp8::Config { kind, block }), &values, text)?;
            // Bad and tiny elements in the places that decide.
            let mut bad = values.clone();
            for (index, value) in bad.iter_mut().enumerate().filter(|(index, _)| index % 37 == 0) {
                let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1.0e-45, -0.0, f32::MAX, f32::MIN];
                *value = odd[index / 37 % odd.len()];
            }
            encodes(gpu, &Codec::Fp8(fp8::Config { kind, block }), &bad, text)?;
        }
    }
    Ok(())
}

#[test]
fn fp8_is_rounded_right_on_and_around_every_tie_for_exponents_at_both_ends() {
    for gpu in gpus() {
        fp8(&gpu, None).unwrap();
    }
}

fn intsgd(gpu: &Gpu, text: Option<&str>) -> Result<(), String> {
    for scale_log2 in [-64, -3, 0, 22, 64] {
        let unit = 2_f64.powi(-i32::from(scale_log2));
        let near = |halves: i32| {
            let bits = ((f64::from(halves) / 2.0) * unit) as f32;
            (-2..=2).map(move |ulp| f32::from_bits(bits.to_bits().saturating_add_signed(ulp)))
        };
        let mut values: Vec<f32> = (-300..=300).flat_map(near).collect();
        values.extend([0.0, -0.0, f32::MAX, f32::MIN, 1.0e-45, f32::NAN, f32::INFINITY, f32::MIN_POSITIVE]);
        encodes(gpu, &Codec::IntSgd(intsgd::Config { scale_log2 }), &values, text)?;
    }
    Ok(())
}

#[test]
fn intsgd_is_rounded_right_on_and_around_every_tie() {
    for gpu in gpus() {
        intsgd(&gpu, None).unwrap();
    }
}

/// f32 bits of one element on all ranks: near each other, cancelling, far apart, or any.
fn column(random: &mut Random, ranks: usize) -> Vec<u32> {
    let exponent = 1 + random.below(253) as u32;
    let spread = [1, 2, 9, 40, 254][random.below(5) as usize];
    let cancels = random.below(3) == 0;
    let first = random.bits() as u32 & 0x7F_FFFF;
    let one = |random: &mut Random, rank: usize| {
        let field = (exponent + random.below(spread) as u32).min(254);
        let mantissa = match random.below(3) {
            0 => first,
            1 => first ^ 1 << random.below(23),
            _ => random.bits() as u32 & 0x7F_FFFF & !(u32::MAX >> random.below(32)),
        };
        let sign = if cancels { rank as u32 & 1 } else { random.bits() as u32 & 1 };
        let odd = [0, 1 << 31, 1, 0x807F_FFFF, 0x7F80_0000, 0x7FC0_0001][random.below(6) as usize];
        if random.below(40) == 0 { odd } else { sign << 31 | field << 23 | mantissa }
    };
    // Ranks 0 and 1 cancel if they have the same weight, and what the others say stands around the last digit that the
    // grid keeps: there alone a rounding of terms shows.
    let residue = exponent > 40 && random.below(3) == 0;
    let small = |random: &mut Random, rank: usize| match rank {
        0 | 1 => (rank as u32) << 31 | exponent << 23 | first,
        _ => ((exponent - 25 - random.below(15) as u32) << 23) | (random.below(8) as u32 * 0x10_0000),
    };
    (0..ranks).map(|rank| if residue { small(random, rank) } else { one(random, rank) }).collect()
}

fn f32_means(gpu: &Gpu, text: Option<&str>) -> Result<(), String> {
    let (mut random, elements, mut rounds) = (Random(SEED), 1000, 0);
    averages(gpu, &Codec::F32, elements, text, || {
        rounds += 1;
        let ranks = 1 + random.below(9) as usize;
        let columns: Vec<Vec<u32>> = (0..elements).map(|_| column(&mut random, ranks)).collect();
        let packets = (0..ranks).map(|rank| columns.iter().map(|column| column[rank]).collect()).collect();
        let mut weights = weights(&mut random, ranks);
        if rounds % 2 == 0 && ranks > 2 {
            weights[1] = weights[0];
        }
        (rounds <= 60).then_some((packets, weights))
    })
}

#[test]
fn means_of_f32_are_the_definition_where_terms_cancel_vanish_or_tie() {
    for gpu in gpus() {
        f32_means(&gpu, None).unwrap();
    }
}

fn half_means(gpu: &Gpu, text: Option<&str>) -> Result<(), String> {
    let all: Vec<u32> = (0..1 << 15).map(|pair: u32| pair * 0x2_0002 + 0x1_0000).collect();
    for codec in [Codec::F16, Codec::Bf16] {
        let (mut random, mut rounds) = (Random(SEED), 0);
        averages(gpu, &codec, 1 << 16, text, || {
            rounds += 1;
            // First every code by itself, then with others that shift along.
            let mut shifted = all.clone();
            shifted.rotate_left(random.below(1 << 15) as usize);
            let packets = if rounds == 1 {
                vec![all.clone()]
            } else {
                vec![all.clone(), shifted, vec![0x3C00_BF80; 1 << 15]]
            };
            let ranks = packets.len();
            (rounds <= 3).then(|| (packets, weights(&mut random, ranks)))
        })?;
    }
    Ok(())
}

#[test]
fn means_of_half_types_are_the_definition_for_every_code() {
    for gpu in gpus() {
        half_means(&gpu, None).unwrap();
    }
}

fn fp8_means(gpu: &Gpu, text: Option<&str>) -> Result<(), String> {
    for (kind, format) in [(Kind::E4M3, E4M3), (Kind::E5M2, E5M2)] {
        for block in [32_u16, 256] {
            let codec = Codec::Fp8(fp8::Config { kind, block });
            // Every exponent with every code in turn.
            let elements = 255 * usize::from(block);
            let (mut random, mut rounds) = (Random(SEED), 0);
            averages(gpu, &codec, elements, text, || {
                rounds += 1;
                let ranks = [1, 3, 8][rounds % 3];
                let packets = (0..ranks).map(|_| {
                    let mut packet = Vec::new();
                    let near = random.below(2) == 0;
                    for unit in 0..64 {
                        let exponent =
                            |k: u64| if near { 100 + random.below(20) } else { (4 * unit + k) % 255 };
                        let exponents = [0, 1, 2, 3].map(exponent);
                        packet.push(
                            exponents
                                .iter()
                                .zip([0, 8, 16, 24])
                                .fold(0, |word, (e, k)| word | (*e as u32) << k),
                        );
                        packet.extend((0..block).map(|_| {
                            let code = |_| match random.bits() as u16 & 0xFF {
                                code if format.is_finite(code) => code as u8,
                                code => code as u8 & 0x80,
                            };
                            u32::from_le_bytes([0; 4].map(code))
                        }));
                    }
                    packet.truncate(codec.packet_words(elements));
                    packet
                });
                let packets = packets.collect();
                (rounds <= 6).then(|| (packets, weights(&mut random, ranks)))
            })?;
        }
    }
    Ok(())
}

#[test]
fn means_of_fp8_are_the_definition_for_every_code_and_exponent() {
    for gpu in gpus() {
        fp8_means(&gpu, None).unwrap();
    }
}

fn intsgd_means(gpu: &Gpu, text: Option<&str>) -> Result<(), String> {
    let mut random = Random(SEED);
    for scale_log2 in [22, -64, 64, 0] {
        let codec = Codec::IntSgd(intsgd::Config { scale_log2 });
        let mut rounds = 0;
        averages(gpu, &codec, 4096, text, || {
            rounds += 1;
            let ranks = 1 + random.below(6) as usize;
            // A quarter of the words agree on all ranks and are large: sums of up to 28 bits.
            let word = |random: &mut Random, k: usize| match k % 4 {
                0 => [0x7F7F_7F7F, 0x8181_8181, 0x8080_8080, 0x7E7F_7D7F][k / 4 % 4],
                _ => random.bits() as u32,
            };
            let packets = (0..ranks).map(|_| (0..1024).map(|k| word(&mut random, k)).collect()).collect();
            let mut weights = weights(&mut random, ranks);
            if rounds % 2 == 0 {
                weights.fill(((1 << 21) - 1) / ranks as u32);
            }
            if rounds == 1 {
                // +-31 * 1082401 = 2^25 - 1, which f32 rounds up to the next power of two.
                return Some((vec![vec![0x1FE1_1FE1; 1024]], vec![1_082_401]));
            }
            (rounds <= 12).then_some((packets, weights))
        })?;
    }
    Ok(())
}

#[test]
fn means_of_intsgd_are_rounded_right_beyond_24_bits() {
    for gpu in gpus() {
        intsgd_means(&gpu, None).unwrap();
    }
}

#[test]
fn a_shader_with_one_mistake_is_noticed() {
    type Check = fn(&Gpu, Option<&str>) -> Result<(), String>;
    let mistakes: [(Shader, Check, &str, &str); 21] = [
        (
            CAST_ENCODE_HALF,
            half,
            "return (value + half - vec4<i32>(1) + odd) >> shift;",
            "return (value + half) >> shift;",
        ),
        (CAST_ENCODE_HALF, half, "vec4<u32>(25u)", "vec4<u32>(24u)"),
        (
            CAST_ENCODE_HALF,
            half,
            "let clamped = min(magnitude, vec4<u32>(params.largest));",
            "let clamped = magnitude;",
        ),
        (CAST_ENCODE_HALF, half, "exponent == vec4<u32>(0u)", "vec4<bool>(false)"),
        (
            FP8_ENCODE,
            fp8,
            "inside & (top > vec4<u32>(params.largest))",
            "inside & (top >= vec4<u32>(params.largest))",
        ),
        (
            FP8_ENCODE,
            fp8,
            "(exponent != vec4<u32>(0u)) & (exponent != vec4<u32>(254u))",
            "exponent != vec4<u32>(0u)",
        ),
        (
            FP8_ENCODE,
            fp8,
            "bits & vec4<u32>(0x7fffffffu), finite)",
            "bits & vec4<u32>(0x7fffffffu), vec4<bool>(true))",
        ),
        (
            FP8_ENCODE,
            fp8,
            "select(clamped | sign, vec4<u32>(0u), clamped == vec4<u32>(0u))",
            "clamped | sign",
        ),
        (INTSGD_ENCODE, intsgd, "vec4<i32>(-127)", "vec4<i32>(-128)"),
        (CAST_AVERAGE_F32, f32_means, "(rest > 0u) || ((kept & 1u) == 1u)", "(kept & 1u) == 1u"),
        (
            CAST_AVERAGE_F32,
            f32_means,
            "(lost == half) && ((rest > 0u) || ((kept & 1u) == 1u))",
            "lost == half",
        ),
        (CAST_AVERAGE_F32, f32_means, "wide_add(below_half, odd)", "below_half"),
        (
            CAST_AVERAGE_F32,
            f32_means,
            "if weights[rank] != 0u {\n            top",
            "if true {\n            top",
        ),
        (CAST_AVERAGE_F32, f32_means, "select(term, vec2<u32>(0u), exponent == 0u)", "term"),
        (CAST_AVERAGE_F32, f32_means, "(field < 1) || ", ""),
        (CAST_AVERAGE_F32, f32_means, "if rest > guess.x {", "if false {"),
        (CAST_AVERAGE_HALF, half_means, "select(normal, zero_or_small, subnormal)", "normal"),
        (FP8_AVERAGE, fp8_means, "word >= 2u * per_block", "word > 2u * per_block"),
        (FP8_AVERAGE, fp8_means, "(field < vec4<i32>(1)) | ", ""),
        (
            INTSGD_AVERAGE,
            intsgd_means,
            "(above > 0u) && ((lost > half) || ((lost == half) && odd))",
            "lost > half",
        ),
        (INTSGD_AVERAGE, intsgd_means, "scale + ((above + carry) << 23u)", "scale + (above << 23u)"),
    ];
    for (shader, check, right, wrong) in mistakes {
        notices(&shader.source(Input::F32), right, wrong, |gpu, text| check(gpu, Some(text)));
    }
}

//! `sign` and `ef21` on every adapter: equal to the definition in every bit.
//!
//! What every codec is asked stands in `parity.rs`. Here the input is aimed at what these two may get wrong: thresholds
//! between scales, sums of a block, shorter last blocks, f32 state of every magnitude, the ends of the scale byte.

#![cfg(feature = "gpu")]
#![allow(clippy::unwrap_used, reason = "test code")]
#![allow(clippy::cast_possible_truncation, reason = "random bits are cut to size, values rounded to f32")]

#[path = "common/gpu.rs"]
mod common;

use std::num::{NonZeroU8, NonZeroU32};

use common::{Means, Random, TINY, Values, compare, gpus};
use gradwire::codec::{Codec, Input, ef21, sign};
use gradwire::gpu::source::{EF21_AVERAGE, EF21_ENCODE, SIGN_AVERAGE, SIGN_ENCODE};
use gradwire::gpu::{Average, Encode, Gpu, Limits};

const SEED: u64 = 20_261_130;

fn signs() -> Vec<Codec> {
    let sign = |block, base_log2, reset: u32| {
        Codec::Sign(sign::Config { block, base_log2, reset_every: NonZeroU32::new(reset) })
    };
    vec![
        sign(256, -50, 0),
        sign(32, -50, 0),
        sign(40, -20, 3),
        sign(72, -80, 0),
        sign(96, 55, 0),
        sign(1024, -50, 4),
    ]
}

fn trackers() -> Vec<Codec> {
    let ef21 = |block, base_log2, k| {
        Codec::Ef21(ef21::Config { block, base_log2, momentum_log2: NonZeroU8::new(k) })
    };
    vec![ef21(64, -50, 0), ef21(64, -50, 3), ef21(40, 55, 1), ef21(136, -80, 16), ef21(1024, -20, 0)]
}

fn codecs() -> Vec<Codec> {
    [signs(), trackers()].concat()
}

/// Runs of 8 to 40 elements that share a magnitude, so that blocks of all kinds stand side by side; within a run sixteenths
/// and halves of its largest, where quotients and thresholds meet their ties, and now and then anything at all.
fn gradient(random: &mut Random, elements: usize) -> Values {
    let mut values = Vec::new();
    while values.len() < elements {
        let bound = if random.below(4) == 0 { 254 } else { 60 };
        let exponent = random.below(bound) as i32;
        let unit = f64::from(exponent - if exponent < 60 { 55 } else { 127 }).exp2();
        let (kind, run) = (random.below(6), 8 + random.below(33));
        for _ in 0..run {
            let value = match kind {
                0 => 0.0,
                1 => random.below(3) as f64 - 1.0,
                2 => (random.below(511) as f64 - 255.0) / 2.0,
                3 => (random.below(31) as f64 - 15.0) / 2.0,
                _ => random.unit() * random.unit() * random.unit(),
            };
            values.push(match random.below(300) {
                0 => f32::from_bits(random.bits() as u32),
                1 => f32::from_bits(0x7F80_0000 | random.bits() as u32),
                _ => (value * unit) as f32,
            });
        }
    }
    values.truncate(elements);
    Values::new(Input::F32, &values)
}

fn runs(codec: &Codec, elements: usize, seed: u64, encode: &mut Encode) -> Result<(), String> {
    let mut random = Random(seed);
    let mut steps: Vec<_> = (0..3).map(|_| gradient(&mut random, elements)).collect();
    // The second gradient takes back the first, which leaves blocks of next to nothing.
    if let Values::F32(first) = &steps[0] {
        steps[1] = Values::F32(first.iter().map(|value| -value).collect());
    }
    // Twice the same: what the residual brings is all that changes.
    steps.push(steps[2].clone());
    compare(codec, 1, &steps, encode)
}

#[test]
fn every_adapter_encodes_blocks_of_every_magnitude_as_the_definition() {
    for gpu in gpus() {
        for codec in codecs() {
            for limits in [Limits::of(&gpu), TINY] {
                for elements in [1, 63, 129, 2305, 9001].into_iter().filter(|n| limits != TINY || *n < 9001) {
                    let mut encode = Encode::with_limits(&gpu, &codec, Input::F32, elements, limits).unwrap();
                    runs(&codec, elements, SEED, &mut encode).unwrap_or_else(|difference| {
                        panic!("{}, {limits:?}, seed {SEED}: {difference}", gpu.info().name)
                    });
                }
            }
        }
    }
}

fn averages(codec: &Codec, elements: usize, means: &mut Means) -> Result<(), String> {
    let mut random = Random(SEED);
    [1_usize, 2, 5, 17, 3, 3, 3].into_iter().try_for_each(|ranks| {
        // Scales of all ranks close together or anywhere, and weights up to the limit.
        let near = random.below(2) == 0;
        let word = codec.unit().words;
        let packets: Vec<Vec<u32>> = (0..ranks)
            .map(|_| {
                let packet = (0..codec.packet_words(elements)).map(|at| match random.bits() as u32 {
                    bits if at % word == 0 && near => 0x8080_8080 | (bits & 0x3F3F_3F3F),
                    bits => bits,
                });
                packet.collect()
            })
            .collect();
        let most = ((1 << 21) - 1) / ranks as u64;
        let mut weights: Vec<u32> = (0..ranks).map(|_| (random.below(most) + 1) as u32).collect();
        if ranks == 5 {
            weights = vec![1, 0, 2, 1, 3];
        }
        if ranks == 2 {
            // 41 times the f32 nearest to 1/41 is not 1: a lone rank shows that its share is.
            weights = vec![41, 0];
        }
        means.compare(codec, &packets, &weights)
    })
}

#[test]
fn every_adapter_averages_scales_of_every_distance_as_the_definition() {
    for gpu in gpus() {
        for codec in codecs() {
            for limits in [Limits::of(&gpu), TINY] {
                for elements in [1, 63, 129, 2305] {
                    let mut means = Means::new(Average::with_limits(&gpu, &codec, elements, limits).unwrap());
                    averages(&codec, elements, &mut means).unwrap_or_else(|difference| {
                        panic!("{}, {limits:?}, seed {SEED}: {difference}", gpu.info().name)
                    });
                }
            }
        }
    }
}

/// That `check` fails with the shader in which `right` is replaced by `wrong`.
fn notices(source: &str, edits: &[(&str, &str)], check: impl Fn(&Gpu, &str) -> Result<(), String>) {
    for (right, wrong) in edits {
        let edited = source.replace(right, wrong);
        assert_ne!(edited, source, "{right} is no longer in the shader: edit this test");
        for gpu in gpus() {
            let result = check(&gpu, &edited);
            assert!(result.is_err(), "{wrong} in place of {right} went unnoticed on {}", gpu.info().name);
        }
    }
}

#[test]
fn a_wrong_twin_of_an_encoder_is_noticed() {
    let sign = [
        ("vec4<u32>(9u, 11u, 13u, 15u), 0u", "vec4<u32>(9u, 11u, 13u, 15u), 1u"),
        ("vec4<u32>(8u, 10u, 12u, 14u), 1u", "vec4<u32>(8u, 10u, 12u, 14u), 0u"),
        ("vec4<u32>(9u, 11u, 13u, 15u), 0u", "vec4<u32>(9u, 11u, 13u, 16u), 0u"),
        (" & inside", ""),
        (
            "ratio_nearest(atomicLoad(&signs_sum[k]), count)",
            "ratio_nearest(atomicLoad(&signs_sum[k]), params.block)",
        ),
        ("min(params.elements - min(first, params.elements), params.block)", "params.block"),
        ("scale_fixed4(bits, signs_digits(k)) + residual", "scale_fixed4(bits, signs_digits(k))"),
        ("* params.keep", ""),
        ("- 32;\n            let steps", "- 31;\n            let steps"),
        ("vec4<i32>(-127)", "vec4<i32>(-128)"),
        ("h < vec4<i32>(0));\n            negative", "h <= vec4<i32>(0));\n            negative"),
        ("byte > 255", "byte > 254"),
    ];
    let ef21 = [
        ("lost > 8u) ||", "lost >= 8u) ||"),
        ("scale_exponent4(difference4(unit, i))", "scale_exponent4(input_load4(unit * params.block + i))"),
        (
            "select(vec4<u32>(0u), track_sub4(value, state[at]), fixed_is_finite(bits))",
            "track_sub4(value, state[at])",
        ),
        ("select(state[at], v, finite)", "v"),
        (
            "let u = track_approach4(state[at + params.block], v,",
            "let u = track_approach4(state[at + params.block], bits,",
        ),
        (
            "track_sub4(track_mul4(value, eta), track_mul4(average, eta))",
            "track_mul4(track_sub4(value, average), eta)",
        ),
        ("state[at] = track_follow4(state[at], code,", "state[at] = track_follow4(state[at], rounded,"),
    ];
    let check = |codecs: Vec<Codec>, text: &str, gpu: &Gpu| {
        codecs.into_iter().try_for_each(|codec| {
            [9001, 33].into_iter().try_for_each(|elements| {
                let limits = Limits::of(gpu);
                let mut encode =
                    Encode::with_source(gpu, &codec, Input::F32, elements, limits, text).unwrap();
                runs(&codec, elements, SEED, &mut encode)
            })
        })
    };
    notices(&SIGN_ENCODE.source(Input::F32), &sign, |gpu, text| check(signs(), text, gpu));
    notices(&EF21_ENCODE.source(Input::F32), &ef21, |gpu, text| check(trackers(), text, gpu));
}

#[test]
fn a_wrong_twin_of_a_mean_is_noticed() {
    let sign = [
        ("<< headroom, distance)", "<< headroom, 0u)"),
        ("&& distance <= 31u", ""),
        ("byte >> 2u, counts)", "byte >> 2u, true)"),
        ("(magnitude >> shift) & min(shift, 1u)", "0u"),
        ("bits >> 4u", "bits"),
    ];
    let ef21 = [
        ("weight == params.total", "false"),
        ("weight == 0u)", "false)"),
        ("select(bits, 0u, code == 0 || byte == 0u)", "select(bits, 0u, code == 0)"),
        ("field_unpack4(codes >> 16u, 4u)", "field_unpack4(codes, 4u)"),
        ("state[at + 1u] =\n", "let unused =\n"),
    ];
    let check = |codecs: Vec<Codec>, text: &str, gpu: &Gpu| {
        codecs.into_iter().try_for_each(|codec| {
            let average = Average::with_source(gpu, &codec, 9001, Limits::of(gpu), text).unwrap();
            averages(&codec, 9001, &mut Means::new(average))
        })
    };
    notices(&SIGN_AVERAGE.source(Input::F32), &sign, |gpu, text| check(signs(), text, gpu));
    notices(&EF21_AVERAGE.source(Input::F32), &ef21, |gpu, text| check(trackers(), text, gpu));
}

//! The codecs with one scale per block on every adapter: equal to the definition in every bit.
//!
//! What every codec is asked stands in `parity.rs`. Here the input is aimed at what only a scale per block can get wrong:
//! thresholds between scales, ties of the quotient, blocks of every magnitude side by side, the ends of the scale byte.

#![cfg(feature = "gpu")]
#![allow(clippy::unwrap_used, reason = "test code")]
#![allow(clippy::cast_possible_truncation, reason = "random bits are cut to size, values rounded to f32")]

#[path = "common/gpu.rs"]
mod common;

use std::num::NonZeroU32;

use common::{Means, Random, TINY, Values, compare, gpus};
use gradwire::codec::block::{self, Bits};
use gradwire::codec::{Codec, Input, loco_block};
use gradwire::gpu::source::{BLOCK_AVERAGE, LOCO_BLOCK_ENCODE};
use gradwire::gpu::{Average, Encode, Gpu, Limits};

const SEED: u64 = 20_261_130;

fn codecs() -> Vec<Codec> {
    let loco = |bits, block, base_log2, decay, reset: u32| {
        let reset_every = NonZeroU32::new(reset);
        Codec::LocoBlock(loco_block::Config { bits, block, base_log2, decay, reset_every })
    };
    vec![
        loco(Bits::Four, 64, -50, 0, 0),
        loco(Bits::Eight, 40, -20, 205, 3),
        loco(Bits::Two, 32, 0, 255, 0),
        loco(Bits::Two, 72, -80, 64, 0),
        loco(Bits::Four, 1024, 55, 1, 4),
        Codec::Block8(block::Config { block: 64, base_log2: -50 }),
        Codec::Block8(block::Config { block: 96, base_log2: 55 }),
        Codec::Block4(block::Config { block: 136, base_log2: -80 }),
        Codec::Block4(block::Config { block: 32, base_log2: -10 }),
    ]
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
    [1_usize, 2, 5, 17, 3].into_iter().try_for_each(|ranks| {
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
fn a_wrong_twin_of_the_encoder_is_noticed() {
    let edits = [
        ("vec4<u32>(magnitude << zeros) >= thresholds", "vec4<u32>(magnitude << zeros) > thresholds"),
        ("twice + (whole & vec4<u32>(1u)) > vec4<u32>(scale)", "twice > vec4<u32>(scale)"),
        ("select(1u, 0u, params.bits == 8u)", "1u"),
        ("9363u", "9300u"),
        ("+ lives, lives)", ", lives)"),
        ("& params.keep", ""),
        ("i32(256u - params.decay)", "i32(255u - params.decay)"),
        ("+ offset, 0, 255)", "+ offset, 1, 255)"),
        ("select(exponent, vec4<u32>(0u), exponent == vec4<u32>(0xffu))", "exponent"),
    ];
    notices(&LOCO_BLOCK_ENCODE.source(Input::F32), &edits, |gpu, text| {
        codecs().into_iter().filter(|codec| codec.unit().state_words > 0).try_for_each(|codec| {
            let mut encode =
                Encode::with_source(gpu, &codec, Input::F32, 9001, Limits::of(gpu), text).unwrap();
            runs(&codec, 9001, SEED, &mut encode)
        })
    });
}

#[test]
fn a_wrong_twin_of_the_mean_is_noticed() {
    let edits = [
        ("<< headroom, distance)", "<< headroom, 0u)"),
        ("vec4<u32>(min(term.y, 1u))", "vec4<u32>(0u)"),
        ("vec4<u32>(min(term.y, 1u))", "vec4<u32>(1u)"),
        ("&& distance <= 31u", ""),
        ("byte >> 2u, counts)", "byte >> 2u, true)"),
        ("(magnitude >> shift) & min(shift, 1u)", "0u"),
    ];
    notices(&BLOCK_AVERAGE.source(Input::F32), &edits, |gpu, text| {
        codecs().into_iter().try_for_each(|codec| {
            let average = Average::with_source(gpu, &codec, 9001, Limits::of(gpu), text).unwrap();
            averages(&codec, 9001, &mut Means::new(average))
        })
    });
}

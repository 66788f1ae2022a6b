//! Codecs with one scale per block on every adapter: input aimed at blocks, and the mistakes that it must show.

#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "test code")]
#![allow(clippy::cast_possible_truncation, reason = "random bits are cut to size, values rounded to f32")]

use gradwire::codec::{Codec, Input};
use gradwire::gpu::source::Shader;
use gradwire::gpu::{Average, Encode, Limits};

use crate::common::{Means, Random, TINY, Values, compare, gpus, notices};

const SEED: u64 = 20_261_130;

/// Ranks of one mean after another, and their weights; without any they are drawn.
const WORLDS: [(usize, &[u32]); 8] = [
    (1, &[]),
    (2, &[]),
    // 41 times the f32 nearest to 1/41 is not 1: a lone rank shows that its share is.
    (2, &[41, 0]),
    (5, &[1, 0, 2, 1, 3]),
    (17, &[]),
    (3, &[]),
    (3, &[]),
    (3, &[]),
];

/// Every adapter encodes as the definition, whole and in the smallest parts.
pub(crate) fn encode_as_the_definition(codecs: &[Codec]) {
    for gpu in gpus() {
        for codec in codecs {
            for limits in [Limits::of(&gpu), TINY] {
                for elements in [1, 63, 129, 2305, 9001].into_iter().filter(|n| limits != TINY || *n < 9001) {
                    let mut encode = Encode::with_limits(&gpu, codec, Input::F32, elements, limits).unwrap();
                    encodes(codec, elements, &mut encode).unwrap_or_else(|difference| {
                        panic!("{}, {limits:?}, seed {SEED}: {difference}", gpu.info().name)
                    });
                }
            }
        }
    }
}

/// Every adapter averages as the definition, whole and in the smallest parts.
pub(crate) fn average_as_the_definition(codecs: &[Codec]) {
    for gpu in gpus() {
        for codec in codecs {
            for limits in [Limits::of(&gpu), TINY] {
                for elements in [1, 63, 129, 2305] {
                    let mut means = Means::new(Average::with_limits(&gpu, codec, elements, limits).unwrap());
                    averages(codec, elements, &mut means).unwrap_or_else(|difference| {
                        panic!("{}, {limits:?}, seed {SEED}: {difference}", gpu.info().name)
                    });
                }
            }
        }
    }
}

/// Each edit of an encoder's shader, `(right, wrong)`, shows with one of `codecs`.
pub(crate) fn wrong_encoders_are_noticed(shader: Shader, codecs: &[Codec], edits: &[(&str, &str)]) {
    for (right, wrong) in edits {
        notices(&shader.source(Input::F32), right, wrong, |gpu, text| {
            // A whole gradient, and one of less than a block.
            codecs.iter().flat_map(|codec| [9001, 33].map(|n| (codec, n))).try_for_each(|(codec, n)| {
                let limits = Limits::of(gpu);
                let mut encode = Encode::with_source(gpu, codec, Input::F32, n, limits, text).unwrap();
                encodes(codec, n, &mut encode)
            })
        });
    }
}

/// Each edit of the shader of a mean, `(right, wrong)`, shows with one of `codecs`.
pub(crate) fn wrong_means_are_noticed(shader: Shader, codecs: &[Codec], edits: &[(&str, &str)]) {
    for (right, wrong) in edits {
        notices(&shader.source(Input::F32), right, wrong, |gpu, text| {
            codecs.iter().try_for_each(|codec| {
                let average = Average::with_source(gpu, codec, 9001, Limits::of(gpu), text).unwrap();
                averages(codec, 9001, &mut Means::new(average))
            })
        });
    }
}

fn encodes(codec: &Codec, elements: usize, encode: &mut Encode) -> Result<(), String> {
    let mut random = Random(SEED);
    let mut steps: Vec<_> = (0..3).map(|_| gradient(&mut random, elements)).collect();
    // The second gradient takes back the first, which leaves blocks of next to nothing.
    if let Values::F32(first) = &steps[0] {
        steps[1] = Values::F32(first.iter().map(|value| -value).collect());
    }
    // Twice the same: what the residual brings is all that changes.
    steps.push(steps[2].clone());
    compare(codec, 1, &steps, encode)
}

fn averages(codec: &Codec, elements: usize, means: &mut Means) -> Result<(), String> {
    let mut random = Random(SEED);
    WORLDS.into_iter().try_for_each(|(ranks, weights)| {
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
        let drawn: Vec<u32> = (0..ranks).map(|_| (random.below(most) + 1) as u32).collect();
        means.compare(codec, &packets, if weights.is_empty() { &drawn } else { weights })
    })
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

//! The top-k kernels at the places where a selection goes wrong: equal magnitudes across every boundary, chunks of few
//! values, means that lie between two levels, and kernels with one mistake.

#![allow(clippy::unwrap_used, reason = "test code")]
#![allow(clippy::cast_possible_truncation, reason = "random numbers are cut to size")]
#![cfg(feature = "gpu")]

#[path = "common/gpu.rs"]
mod common;

use common::{Cpu, Encoder, Means, Random, Values, compare, definition, gpus, topk_configs};
use gradwire::codec::topk::{Clip, Config, Mean, Residual};
use gradwire::codec::{Codec, Input, Step};
use gradwire::gpu::source::{TOPK_AVERAGE, TOPK_ENCODE};
use gradwire::gpu::{Average, Encode, Gpu, Limits};

const SEED: u64 = 20_261_130;

/// What a gradient is made of, in units of the scale.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// One magnitude everywhere.
    Equal,
    /// So many magnitudes, each shared by many.
    Few(u64),
    /// Integers that need one digit more than a level has: means of them are ties.
    Middle,
    /// One such integer everywhere, and one element above it by the last digit that counts: with 2,048 of them the mean
    /// is above the tie by less than the quotient shows.
    Near,
    /// Zero but for one in 40.
    Sparse,
    /// One huge among tiny ones.
    Huge,
    /// Any exponent.
    Wide,
}

const KINDS: [Kind; 9] = [
    Kind::Equal,
    Kind::Few(2),
    Kind::Few(3),
    Kind::Few(40),
    Kind::Middle,
    Kind::Near,
    Kind::Sparse,
    Kind::Huge,
    Kind::Wide,
];

fn gradient(random: &mut Random, kind: Kind, n: usize, scale_log2: i8) -> Values {
    let unit = 2_f64.powi(-i32::from(scale_log2));
    let place = random.below(n as u64) as usize;
    let values: Vec<f32> = (0..n)
        .map(|i| {
            let sign = if random.below(2) == 0 { unit } else { -unit };
            let magnitude = match kind {
                Kind::Equal => 3.0,
                Kind::Few(count) => random.below(count) as f64 + 1.0,
                Kind::Middle => random.below(2050) as f64 + 2048.0,
                Kind::Near => 2049.0 + if i == place { 1.0 / 128.0 } else { 0.0 },
                Kind::Sparse => {
                    if random.below(40) == 0 {
                        random.unit() * 9.0
                    } else {
                        0.0
                    }
                }
                Kind::Huge => {
                    if i == place {
                        1.0e6
                    } else {
                        random.unit()
                    }
                }
                Kind::Wide => 2_f64.powi(random.below(60) as i32 - 30) * (1.0 + random.unit().abs()),
            };
            (sign * magnitude) as f32
        })
        .collect();
    Values::new(Input::F32, &values)
}

/// Every configuration, and every number of the kept around the boundary of a word, in the smallest chunk.
fn configs() -> Vec<Config> {
    let small = Config { chunk: 64, scale_log2: 0, ..Config::default() };
    let mut configs = topk_configs();
    configs.extend([2, 3, 4, 15, 16, 17, 31, 32, 33, 63, 64].map(|k| Config { k, ..small }));
    configs
}

/// Runs the kernel, or `source` in its place, over every kind of gradient.
fn encodes(gpu: &Gpu, config: Config, source: Option<&str>) -> Result<(), String> {
    let codec = Codec::TopK(config);
    let chunk = usize::from(config.chunk);
    for n in [chunk, chunk + 37, 5] {
        let mut random = Random(SEED + n as u64);
        let steps: Vec<Values> =
            KINDS.iter().map(|kind| gradient(&mut random, *kind, n, config.scale_log2)).collect();
        let limits = Limits::of(gpu);
        // Each kind as a first step, which no residual blurs; then all of them in a row.
        let mut encode = match source {
            None => Encode::with_limits(gpu, &codec, Input::F32, n, limits),
            Some(source) => Encode::with_source(gpu, &codec, Input::F32, n, limits, source),
        }
        .unwrap();
        let zeros = encode.state().unwrap();
        for (kind, step) in KINDS.iter().zip(&steps) {
            encode.set_state(&zeros).unwrap();
            compare(&codec, 1, std::slice::from_ref(step), &mut encode)
                .map_err(|difference| format!("{kind:?}: {difference}"))?;
        }
        encode.set_state(&zeros).unwrap();
        compare(&codec, 1, &steps, &mut encode)?;
    }
    Ok(())
}

/// Runs the kernel, or `source` in its place, over true packets of ranks with gradients of every kind.
fn averages(gpu: &Gpu, config: Config, source: Option<&str>) -> Result<(), String> {
    let codec = Codec::TopK(config);
    let n = usize::from(config.chunk) + 37;
    let average = match source {
        None => Average::new(gpu, &codec, n),
        Some(source) => Average::with_source(gpu, &codec, n, Limits::of(gpu), source),
    };
    let mut means = Means::new(average.unwrap());
    let mut random = Random(SEED);
    for round in 0..4 {
        let packets: Vec<Vec<u32>> = KINDS
            .iter()
            .map(|kind| {
                let values = gradient(&mut random, *kind, n, config.scale_log2);
                let mut packet = vec![0; codec.packet_words(n)];
                Cpu::new(definition(), &codec, n).encode(&codec, Step::FIRST, values.gradient(), &mut packet);
                packet
            })
            .collect();
        // Large weights, so that sums need more than 24 digits; and a rank without samples.
        let bound = [10, 260_000][round % 2];
        let mut weights: Vec<u32> = packets.iter().map(|_| random.below(bound) as u32 + 1).collect();
        weights[round] = 0;
        means.compare(&codec, &packets, &weights)?;
    }
    Ok(())
}

#[test]
fn ties_and_odd_chunks_are_selected_alike_on_every_adapter() {
    for gpu in gpus() {
        for config in configs() {
            encodes(&gpu, config, None)
                .unwrap_or_else(|difference| panic!("{}: {difference}", gpu.info().name));
        }
    }
}

#[test]
fn means_with_and_without_clip_are_those_of_the_definition_on_every_adapter() {
    for gpu in gpus() {
        for config in configs() {
            for mean in [Mean::AllRanks, Mean::Contributors] {
                for clip in [Clip::Off, Clip::MedianNorm] {
                    let config = Config { mean, clip, ..config };
                    averages(&gpu, config, None)
                        .unwrap_or_else(|difference| panic!("{}: {difference}", gpu.info().name));
                }
            }
        }
    }
}

#[test]
fn a_nonfinite_value_in_any_place_is_counted_sends_nothing_and_clears_its_residual() {
    for gpu in gpus() {
        for residual in [Residual::F32, Residual::Bits8] {
            let codec = Codec::TopK(Config { chunk: 64, k: 9, scale_log2: 0, residual, ..Config::default() });
            for place in 0..70 {
                for bits in [0x7F80_0000, 0xFF80_0000, 0x7F80_0001, 0x7FC0_0000, 0xFFFF_FFFF] {
                    let mut values: Vec<f32> = (0..70_i16).map(|i| f32::from(i) - 30.3).collect();
                    let first = Values::new(Input::F32, &values);
                    values[place] = f32::from_bits(bits);
                    let steps = [first, Values::new(Input::F32, &values)];
                    let mut encode = Encode::new(&gpu, &codec, Input::F32, 70).unwrap();
                    compare(&codec, 1, &steps, &mut encode).unwrap();
                }
            }
        }
    }
}

#[test]
fn an_encode_kernel_with_one_mistake_is_noticed() {
    let source = TOPK_ENCODE.source(Input::F32);
    for (right, wrong) in [
        ("other == key && equal < at_key", "other == key && equal + 1u < at_key"),
        ("other == high_key && equal_high < at_high", "other == high_key"),
        ("let half = (count + 1u) >> 1u;", "let half = (count >> 1u) + select(0u, 1u, count == 1u);"),
        ("let filled = key == 0u;", "let filled = false;"),
        ("(rest != 0u) || ((kept & 1u) == 1u)", "(kept & 1u) == 1u"),
        ("((rest != 0u) || ((kept & 1u) == 1u))", "true"),
        ("mantissa >> min(5u + top - exponent, 31u)", "mantissa >> min(6u + top - exponent, 31u)"),
        ("(1u << (shift - 1u)) - 1u + odd) >> shift, 127u)", "(1u << (shift - 1u))) >> shift, 127u)"),
        ("let over = (bits >> 1u) >> (31u - (at & 31u));", "let over = 0u;"),
        ("values[i] = select(0u, sum, finite);", "values[i] = sum;"),
        ("clamp((k * elements) >> chunk_log2, 1u, elements)", "min(k, elements)"),
        ("return bits << 1u;", "return bits;"),
    ] {
        let edited = source.replace(right, wrong);
        assert_ne!(edited, source, "{right} is no longer in the shader: edit this test");
        for gpu in gpus() {
            // The cheapest first: a mistake that only it notices must not go through all configurations.
            let noticed = nonfinite(&gpu, &edited).is_err()
                || configs().into_iter().any(|config| encodes(&gpu, config, Some(&edited)).is_err());
            assert!(noticed, "{wrong} in place of {right} went unnoticed on {}", gpu.info().name);
        }
    }
}

/// One NaN and one infinity among others.
fn nonfinite(gpu: &Gpu, source: &str) -> Result<(), String> {
    let codec = Codec::TopK(Config { chunk: 64, k: 9, scale_log2: 0, ..Config::default() });
    let mut values = vec![1.0; 64];
    (values[3], values[40]) = (f32::NAN, f32::NEG_INFINITY);
    let steps = [Values::new(Input::F32, &values)];
    let mut encode = Encode::with_source(gpu, &codec, Input::F32, 64, Limits::of(gpu), source).unwrap();
    compare(&codec, 1, &steps, &mut encode)
}

#[test]
fn an_average_kernel_with_one_mistake_is_noticed() {
    let source = TOPK_AVERAGE.source(Input::F32);
    for (right, wrong) in [
        ("let up = beyond || (tie && ((kept & 1u) == 1u));", "let up = beyond;"),
        ("select(0u, 1u, low < b.low)", "0u"),
        ("(product >> 1u) >> (31u - shift)", "0u"),
        ("let up = (twice > weight)", "let up = (twice > weight) && false"),
        ("sent[at] += weights[rank];", "sent[at] += 1u;"),
        ("j += countOneBits(packets[first + sizes.high + before]);", ""),
        ("| ((packets[low + 1u] << 1u) << (31u - (at & 31u)))", ""),
        ("value = total_negate(value);", ""),
    ] {
        let edited = source.replace(right, wrong);
        assert_ne!(edited, source, "{right} is no longer in the shader: edit this test");
        for gpu in gpus() {
            let noticed = configs().into_iter().any(|config| {
                [Mean::AllRanks, Mean::Contributors]
                    .into_iter()
                    .any(|mean| averages(&gpu, Config { mean, ..config }, Some(&edited)).is_err())
            });
            assert!(noticed, "{wrong} in place of {right} went unnoticed on {}", gpu.info().name);
        }
    }
}

#[test]
fn any_words_of_a_rank_without_samples_change_no_bit_of_the_mean() {
    // They are not checked, so that the kernel reads them as they are.
    for gpu in gpus() {
        for config in topk_configs() {
            let codec = Codec::TopK(config);
            let n = usize::from(config.chunk) + 37;
            let mut random = Random(SEED);
            let values = gradient(&mut random, Kind::Few(40), n, config.scale_log2);
            let mut good = vec![0; codec.packet_words(n)];
            codec.encode(Step::FIRST, values.gradient(), &mut vec![0; codec.state_words(n)], &mut good);
            let ones = vec![u32::MAX; good.len()];
            let any = good.iter().map(|_| random.bits() as u32).collect();
            let mut means = Means::new(Average::new(&gpu, &codec, n).unwrap());
            means.compare(&codec, &[ones, good, any], &[0, 3, 0]).unwrap();
        }
    }
}

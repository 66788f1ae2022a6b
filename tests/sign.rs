//! The `sign` codec: golden vectors, laws over many steps, and what a peer or a caller may do wrong.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::cast_possible_truncation, reason = "random bits are cut to size, values rounded to f32")]

#[path = "common/random.rs"]
mod random;
#[allow(dead_code, reason = "each test file uses its part")]
#[path = "../src/bin/gradwire/vectors.rs"]
mod vectors;
#[path = "common/wrong.rs"]
mod wrong;

use std::num::NonZeroU32;

use gradwire::codec::sign::{self, Config};
use gradwire::codec::{AverageError, Codec, ConfigError, Method, Stats, Step};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::RngSeed;
use random::Random;
use wrong::{Mistake, each_is_noticed};

const SEED: u64 = 20_261_129;

#[test]
fn a_wrong_twin_is_noticed_by_the_golden_vectors() {
    let minus_zero = Mistake::Encode(|gradient, _, packet| {
        let mut first = [0.0];
        gradient.slice(0..1).widen(&mut first);
        packet[1] = packet[1] & !1 | first[0].to_bits() >> 31;
    });
    let scale = Mistake::Encode(|_, _, packet| packet[0] ^= u32::from(packet[0] != 0));
    let residual = Mistake::Encode(|_, state, _| state[1] ^= u32::from(state[1] != 0));
    let ulp = Mistake::Mean(|mean| mean[0] = f32::from_bits(mean[0].to_bits() ^ 1));
    each_is_noticed(
        include_str!("golden/sign.json"),
        [
            ("a scale one step off", "words", scale),
            ("the sign bit of the gradient, which minus zero has", "words", minus_zero),
            ("a residual one step off", "state", residual),
            ("a mean one ulp off", "mean_bits", ulp),
        ],
    );
}

fn decode(config: &Config, packet: &[u32], n: usize) -> Vec<f32> {
    let mut mean = vec![f32::NAN; n];
    sign::average(config, &[packet], &[1], &mut mean).unwrap();
    mean
}

fn encode(config: &Config, step: u64, gradient: &[f32], state: &mut [u32]) -> (Vec<u32>, Stats) {
    let mut packet = vec![0x5A5A_5A5A; config.packet_words(gradient.len())];
    let stats = sign::encode(config, Step::new(step).unwrap(), gradient.into(), state, &mut packet);
    (packet, stats)
}

fn fresh(config: &Config, n: usize) -> Vec<u32> {
    vec![0; Codec::Sign(*config).state_words(n)]
}

/// What a state says, in gradient units: step size and residual of each of `n` elements.
fn residuals(config: &Config, state: &[u32], n: usize) -> Vec<(f64, f64)> {
    let (unit, block) = (config.unit(), usize::from(config.block));
    (0..n)
        .map(|i| {
            let words = &state[i / unit.elements * unit.state_words..];
            let place = i % unit.elements;
            let scale = words[0].to_le_bytes()[place / block];
            let byte = words[1 + place / 4].to_le_bytes()[place % 4].cast_signed();
            let exponent = i32::from(scale >> 2) + i32::from(config.base_log2);
            let step = if scale == 0 { 0.0 } else { f64::from(4 + (scale & 3)) * 2_f64.powi(exponent) };
            (step, f64::from(byte) * step)
        })
        .collect()
}

fn normal(random: &mut Random) -> f64 {
    (0..12).map(|_| random.unit()).sum::<f64>() / 2.0
}

#[test]
fn over_a_thousand_steps_all_that_was_not_sent_is_the_residual() {
    for (block, n) in [(32, 77), (64, 300), (256, 1111)] {
        let config = Config { block, ..Config::default() };
        let (mut random, mut state) = (Random(SEED), fresh(&config, n));
        let (mut missing, mut bound) = (vec![0.0_f64; n], vec![0.0_f64; n]);
        for step in 1..=1000 {
            // A mean of its own for each element, three orders of magnitude apart, and noise.
            let gradient: Vec<f32> = (0..n)
                .map(|i| {
                    (1.0e-4 * (1.0 + 30.0 * f64::from(u8::from(i % 13 == 4))) * (normal(&mut random) + 0.3))
                        as f32
                })
                .collect();
            let (packet, stats) = encode(&config, step, &gradient, &mut state);
            assert_eq!(stats, Stats::default());
            let sent = decode(&config, &packet, n);
            let kept = residuals(&config, &state, n);
            for i in 0..n {
                missing[i] += f64::from(gradient[i]) - f64::from(sent[i]);
                // Half a residual step is rounded away at most, and two halves of a unit, 2^-18 of the largest loss.
                bound[i] += kept[i].0 * (0.5 + 127.0 / f64::from(1 << 17));
                let off = (missing[i] - kept[i].1).abs();
                assert!(off <= bound[i], "step {step}, element {i}: off by {off}, bound {}", bound[i]);
            }
        }
        // Rounding errors do not add up: what is missing stays near what is kept, and both do not grow.
        let kept = residuals(&config, &state, n);
        for i in 0..n {
            let off = (missing[i] - kept[i].1).abs();
            assert!(off <= 60.0 * kept[i].0, "element {i}: off by {} steps", off / kept[i].0);
            assert!(missing[i].abs() < 0.5, "element {i}: {} never sent of about {}", missing[i], 0.3 * 0.1);
        }
    }
}

#[test]
fn an_element_far_above_its_block_gets_through() {
    // One of 64 elements is all there is. The scale starts at 1/64 of it and must catch up through the residual.
    let config = Config { block: 64, ..Config::default() };
    let mut gradient = vec![0.0_f32; 64];
    gradient[17] = 1.0;
    let (mut state, mut sent) = (fresh(&config, 64), Vec::new());
    for step in 1..=1000 {
        let (packet, _) = encode(&config, step, &gradient, &mut state);
        sent.push(decode(&config, &packet, 64)[17]);
    }
    assert!(sent[0] < 0.02 && sent[200..].iter().all(|value| *value == 1.0), "{:?}", &sent[..200]);
}

#[test]
fn a_zero_block_stays_zero_and_leaves_its_neighbours_alone() {
    let config = Config { block: 32, ..Config::default() };
    let mut random = Random(SEED);
    let gradient: Vec<f32> =
        (0..128).map(|i| if (32..64).contains(&i) { -0.0 } else { random.unit() as f32 }).collect();
    let mut state = fresh(&config, 128);
    for step in 1..=5 {
        let (packet, _) = encode(&config, step, &gradient, &mut state);
        assert_eq!((packet[0] >> 8 & 0xFF, packet[2]), (0, 0), "scale and signs of the zero block");
        assert_eq!(state[0] >> 8 & 0xFF, 0, "its residual scale");
        let mean = decode(&config, &packet, 128);
        assert!(mean[32..64].iter().all(|value| value.to_bits() == 0), "{mean:?}");
        assert!(mean[..32].iter().chain(&mean[64..]).all(|value| *value != 0.0), "{mean:?}");
    }
    let subnormal = vec![f32::from_bits(0x807F_FFFF); 33];
    let (packet, stats) = encode(&config, 1, &subnormal, &mut fresh(&config, 33));
    assert_eq!((packet, stats), (vec![0; 3], Stats::default()), "subnormals count as zero");
}

#[test]
fn a_zero_element_in_a_block_is_sent_as_plus_scale_and_taken_back() {
    let config = Config { block: 32, ..Config::default() };
    let mut gradient = [1.0_f32; 32];
    gradient[3] = 0.0;
    let mut state = fresh(&config, 32);
    let sent: Vec<f32> = (1..=2)
        .map(|step| {
            let (packet, _) = encode(&config, step, &gradient, &mut state);
            gradient[3] = 0.0;
            decode(&config, &packet, 32)[3]
        })
        .collect();
    assert!(sent[0] > 0.8 && sent[1] < -0.8, "{sent:?}");
}

#[test]
fn a_non_finite_element_in_each_place_acts_as_zero_and_is_counted() {
    let config = Config { block: 40, ..Config::default() };
    let n = 171;
    let mut random = Random(SEED);
    let first: Vec<f32> = (0..n).map(|_| random.unit() as f32).collect();
    let second: Vec<f32> = (0..n).map(|_| random.unit() as f32).collect();
    let mut start = fresh(&config, n);
    encode(&config, 1, &first, &mut start);
    for bits in [0x7F80_0000, 0xFF80_0000, 0x7F80_0001, 0xFFC0_0000, 0xFFFF_FFFF] {
        for place in 0..n {
            // What the element had lost is forgotten, so the reference has no residual there either.
            let (mut got, mut want) = (start.clone(), start.clone());
            let unit = config.unit();
            let byte = place / unit.elements * unit.state_words * 4 + 4 + place % unit.elements;
            bytemuck::cast_slice_mut::<u32, u8>(&mut want)[byte] = 0;
            let (mut bad, mut zero) = (second.clone(), second.clone());
            (bad[place], zero[place]) = (f32::from_bits(bits), 0.0);
            let (got_packet, stats) = encode(&config, 2, &bad, &mut got);
            let (want_packet, _) = encode(&config, 2, &zero, &mut want);
            assert_eq!(stats, Stats { nonfinite: 1, saturated: 0 });
            assert_eq!(got_packet, want_packet, "{bits:#x} at {place}");
            let kept = residuals(&config, &got, n)[place];
            assert_eq!(kept.1, 0.0, "{bits:#x} at {place}: residual");
        }
    }
    let (packet, stats) = encode(&config, 1, &vec![f32::NAN; n], &mut start);
    assert_eq!((packet, stats.nonfinite), (vec![0; config.packet_words(n)], n as u64), "nothing but NaN");
    assert!(start.iter().all(|word| *word == 0), "and nothing is kept");
}

#[test]
fn a_mean_above_the_largest_scale_is_sent_as_that_and_counted() {
    let config = Config { block: 32, base_log2: -50, ..Config::default() };
    for (value, saturated) in [(57344.0, 0), (60000.0, 0), (61440.0, 32), (1.0e30, 32), (f32::MAX, 32)] {
        let mut state = fresh(&config, 32);
        let (packet, stats) = encode(&config, 1, &[-value; 32], &mut state);
        assert_eq!(stats, Stats { nonfinite: 0, saturated }, "{value}");
        assert_eq!((packet[0], packet[1]), (255, u32::MAX), "{value}");
        assert_eq!(decode(&config, &packet, 32), [-57344.0; 32], "{value}");
    }
    let tiny = 3.0 * 2_f32.powi(-50);
    let (packet, stats) = encode(&config, 1, &[tiny; 32], &mut fresh(&config, 32));
    assert_eq!((packet[0], stats), (0, Stats::default()), "below the smallest scale nothing is sent");
}

#[test]
fn configurations_are_refused_with_both_numbers() {
    let config = Config::default();
    assert_eq!(Codec::Sign(config).validate(), Ok(()));
    for (block, message) in [
        (0, "block is 0, sign takes 32 to 1024"),
        (24, "block is 24, sign takes 32 to 1024"),
        (33, "block is 33, sign takes multiples of 8"),
        (1032, "block is 1032, sign takes 32 to 1024"),
    ] {
        assert_eq!(Config { block, ..config }.validate().unwrap_err().to_string(), message);
    }
    for base_log2 in [-81, 56] {
        let error = Config { base_log2, ..config }.validate().unwrap_err();
        assert!(matches!(error, ConfigError::Range { name: "base_log2", .. }), "{error}");
        let got = sign::average(&Config { base_log2, ..config }, &[&[0, 0]], &[1], &mut [0.0]);
        assert_eq!(got, Err(AverageError::Config(error)));
    }
}

#[test]
fn a_packet_of_another_length_is_named_and_an_empty_one_is_nothing() {
    let config = Config::default();
    let got = sign::average(&config, &[&[0; 2], &[0; 3]], &[1, 1], &mut [0.0; 9]);
    assert_eq!(got, Err(AverageError::PacketLength { index: 1, words: 3, expected: 2, elements: 9 }));
    assert_eq!(sign::average(&config, &[&[]], &[1], &mut []), Ok(()));
    assert_eq!(encode(&config, 1, &[], &mut []), (vec![], Stats::default()));
}

fn settings() -> ProptestConfig {
    ProptestConfig {
        rng_seed: RngSeed::Fixed(SEED),
        failure_persistence: None,
        cases: 128,
        ..ProptestConfig::default()
    }
}

fn configs() -> impl Strategy<Value = Config> {
    (select(vec![32_u16, 40, 64, 256, 1024]), -80_i8..=55, select(vec![0, 1, 2])).prop_map(
        |(block, base_log2, every)| Config { block, base_log2, reset_every: NonZeroU32::new(every) },
    )
}

proptest! {
    #![proptest_config(settings())]

    #[test]
    fn packets_and_state_do_not_depend_on_how_the_work_was_split(
        config in configs(),
        n in 1_usize..5000,
        values in prop::collection::vec(any::<u32>(), 5000),
        start in prop::collection::vec(any::<u32>(), 1 + 5000),
        units in prop::collection::vec(1_usize..4, 0..6),
    ) {
        let unit = config.unit();
        let gradient: Vec<f32> = values[..n].iter().map(|bits| f32::from_bits(*bits)).collect();
        let mut whole: Vec<u32> = start.iter().copied().cycle().take(fresh(&config, n).len()).collect();
        let mut pieces = whole.clone();
        let (packet, stats) = encode(&config, 2, &gradient, &mut whole);
        let (mut joined, mut sum, mut at) = (Vec::new(), Stats::default(), 0);
        for end in units.iter().scan(0, |end, more| { *end += more * unit.elements; Some(*end) }).chain([n]) {
            let range = at..end.min(n);
            at = range.end;
            let words = range.start / unit.elements * unit.state_words
                ..range.end.div_ceil(unit.elements) * unit.state_words;
            if range.is_empty() {
                continue;
            }
            let (words, part) = encode(&config, 2, &gradient[range], &mut pieces[words]);
            joined.extend(words);
            sum += part;
        }
        prop_assert_eq!(packet, joined);
        prop_assert_eq!(stats, sum);
        prop_assert_eq!(whole, pieces);
    }

    #[test]
    fn the_mean_of_any_words_is_finite_and_does_not_depend_on_the_order_of_arrival(
        config in configs(),
        pairs in prop::collection::vec((0_u32..299_593, prop::collection::vec(any::<u32>(), 40)), 1..=7),
        n in 1_usize..1025,
        by in any::<prop::sample::Index>(),
    ) {
        prop_assume!(pairs.iter().any(|(weight, _)| *weight > 0));
        let words = config.packet_words(n);
        let mean = |pairs: &[(u32, Vec<u32>)]| {
            let packets: Vec<Vec<u32>> =
                pairs.iter().map(|(_, words_)| words_.iter().copied().cycle().take(words).collect()).collect();
            let packets: Vec<&[u32]> = packets.iter().map(Vec::as_slice).collect();
            let weights: Vec<u32> = pairs.iter().map(|(weight, _)| *weight).collect();
            let mut mean = vec![f32::NAN; n];
            sign::average(&config, &packets, &weights, &mut mean).unwrap();
            mean
        };
        let want = mean(&pairs);
        prop_assert!(want.iter().all(|value| *value == 0.0 || value.is_normal()), "{:?}", want);
        let mut other = pairs;
        let by = by.index(other.len());
        other.rotate_left(by);
        let bits = |mean: Vec<f32>| mean.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        let want = bits(want);
        prop_assert_eq!(bits(mean(&other)), want.clone());
        other.reverse();
        prop_assert_eq!(bits(mean(&other)), want);
    }

    #[test]
    fn the_mean_is_the_weighted_mean_of_the_decoded_packets(
        pairs in prop::collection::vec((1_u32..1000, -3_i32..3), 1..=7),
    ) {
        let config = Config { block: 32, ..Config::default() };
        let mut random = Random(SEED);
        let packets: Vec<Vec<u32>> = pairs
            .iter()
            .map(|(_, scale)| {
                let gradient: Vec<f32> = (0..65).map(|_| (random.unit() * 2_f64.powi(*scale)) as f32).collect();
                encode(&config, 1, &gradient, &mut fresh(&config, 65)).0
            })
            .collect();
        let weights: Vec<u32> = pairs.iter().map(|(weight, _)| *weight).collect();
        let slices: Vec<&[u32]> = packets.iter().map(Vec::as_slice).collect();
        let mut got = [f32::NAN; 65];
        sign::average(&config, &slices, &weights, &mut got).unwrap();
        let total: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
        let decoded: Vec<Vec<f32>> = packets.iter().map(|packet| decode(&config, packet, 65)).collect();
        for (i, got) in got.iter().enumerate() {
            let sum: f64 = decoded.iter().zip(&weights).map(|(d, w)| f64::from(d[i]) * f64::from(*w)).sum();
            let largest = decoded.iter().map(|d| d[i].abs()).fold(0.0, f32::max);
            let off = (f64::from(*got) - sum / total).abs();
            prop_assert!(off <= f64::from(largest) * 1.0e-6, "element {}: {} is not {}", i, got, sum / total);
        }
    }
}

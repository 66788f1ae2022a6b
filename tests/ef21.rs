//! The `ef21` codec: both ends stay equal, errors shrink, and what a peer or a caller may do wrong.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::cast_possible_truncation, reason = "random bits are cut to size, values rounded to f32")]

#[path = "common/random.rs"]
mod random;
#[allow(dead_code, reason = "each test file uses its part")]
#[path = "../src/bin/gradwire/vectors.rs"]
mod vectors;
#[path = "common/wrong.rs"]
mod wrong;

use std::num::NonZeroU8;

use gradwire::codec::ef21::{self, Config};
use gradwire::codec::{AverageError, Codec, Method, Stats, Step};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::RngSeed;
use random::Random;
use wrong::{Mistake, each_is_noticed};

const SEED: u64 = 20_261_129;

/// A world of encoders and the owner of all elements.
struct World {
    config: Config,
    n: usize,
    states: Vec<Vec<u32>>,
    owner: Vec<u32>,
}

impl World {
    fn new(config: Config, ranks: usize, n: usize) -> Self {
        let codec = Codec::Ef21(config);
        let (states, owner) =
            (vec![vec![0; codec.state_words(n)]; ranks], vec![0; codec.mean_state_words(ranks, n)]);
        Self { config, n, states, owner }
    }

    fn encode(&mut self, rank: usize, gradient: &[f32]) -> (Vec<u32>, Stats) {
        let mut packet = vec![0x5A5A_5A5A; self.config.packet_words(self.n)];
        let state = &mut self.states[rank];
        let stats = ef21::encode(&self.config, Step::FIRST, gradient.into(), state, &mut packet);
        (packet, stats)
    }

    fn average(&mut self, packets: &[Vec<u32>], weights: &[u32]) -> Vec<f32> {
        let packets: Vec<&[u32]> = packets.iter().map(Vec::as_slice).collect();
        let mut mean = vec![f32::NAN; self.n];
        ef21::average(&self.config, &packets, weights, &mut self.owner, &mut mean).unwrap();
        mean
    }

    /// One step of all ranks with these gradients.
    fn step(&mut self, gradients: &[Vec<f32>], weights: &[u32]) -> Vec<f32> {
        let packets: Vec<Vec<u32>> =
            gradients.iter().enumerate().map(|(rank, gradient)| self.encode(rank, gradient).0).collect();
        self.average(&packets, weights)
    }

    /// What a rank believes that its owner tracks, whole units.
    fn sender(&self, rank: usize) -> Vec<u32> {
        let unit = Method::unit(&self.config);
        self.states[rank]
            .chunks(unit.state_words)
            .flat_map(|words| &words[..unit.elements])
            .copied()
            .collect()
    }

    fn owner(&self, rank: usize) -> &[u32] {
        let row = self.owner.len() / self.states.len();
        &self.owner[rank * row..(rank + 1) * row]
    }

    fn assert_both_ends_are_equal(&self) {
        for rank in 0..self.states.len() {
            assert!(self.sender(rank) == self.owner(rank), "rank {rank} of {:?}: ends differ", self.config);
        }
    }
}

fn momentum(k: u8) -> Config {
    Config { momentum_log2: NonZeroU8::new(k), ..Config::default() }
}

fn normal(random: &mut Random) -> f64 {
    (0..12).map(|_| random.unit()).sum::<f64>() / 2.0
}

#[test]
fn both_ends_stay_equal_whatever_the_gradients_weights_and_non_finite_elements() {
    for config in [Config::default(), momentum(3), Config { block: 40, base_log2: 55, ..momentum(1) }] {
        for n in [1, 9, 255, 256, 257, 700] {
            let mut world = World::new(config, 3, n);
            let mut random = Random(SEED + n as u64);
            for step in 0..30 {
                let gradients: Vec<Vec<f32>> = (0..3)
                    .map(|_| {
                        // Any bits, and calm steps in between.
                        (0..n)
                            .map(|_| {
                                if step % 3 == 0 {
                                    f32::from_bits(random.bits() as u32)
                                } else {
                                    normal(&mut random) as f32
                                }
                            })
                            .collect()
                    })
                    .collect();
                // In most steps a rank has no samples; its packets count all the same.
                let weights = [5, step % 3, step % 2];
                let mean = world.step(&gradients, &weights);
                world.assert_both_ends_are_equal();
                assert!(mean.iter().all(|value| *value == 0.0 || value.is_normal()), "step {step}: {mean:?}");
            }
        }
    }
}

#[test]
fn the_error_shrinks_on_a_constant_gradient_until_f32_or_the_smallest_scale_ends_it() {
    let (n, mut random) = (1000, Random(SEED));
    let gradient: Vec<f32> = (0..n).map(|i| (normal(&mut random) * 2_f64.powi(i % 20 - 25)) as f32).collect();
    let mut world = World::new(Config::default(), 1, n as usize);
    let largest = |mean: &[f32]| {
        let off = mean.iter().zip(&gradient).map(|(mean, gradient)| (mean - gradient).abs());
        off.fold(0.0, f32::max)
    };
    let mut before = gradient.iter().fold(0.0, |most: f32, value| most.max(value.abs()));
    for step in 1..=6 {
        let mean = world.step(std::slice::from_ref(&gradient), &[4]);
        // A code is off by half a scale, which is 1/15 of the largest up to a ninth; 7 in place of 8.3 where it clips.
        assert!(largest(&mean) <= before * 0.17, "step {step}: {} after {before}", largest(&mean));
        before = largest(&mean);
    }
    for _ in 0..10 {
        world.step(std::slice::from_ref(&gradient), &[4]);
    }
    let mean = world.step(std::slice::from_ref(&gradient), &[4]);
    let smallest = 7.5 * 5.0 * 2_f32.powi(-50);
    for (i, (mean, gradient)) in mean.iter().zip(&gradient).enumerate() {
        let off = (mean - gradient).abs();
        assert!(off <= smallest.max(gradient.abs() * f32::EPSILON), "element {i}: {mean} of {gradient}");
    }
}

#[test]
fn over_a_thousand_steps_what_is_tracked_is_within_one_code_of_the_gradient() {
    // Noise of the size of the gradient: what travels is the difference of two draws, 2 sigma * sqrt(2) and more.
    let (n, mut random) = (300, Random(SEED));
    let mut world = World::new(Config::default(), 1, n);
    let mut sum = vec![0.0_f64; n];
    for step in 1..=1000 {
        let gradient: Vec<f32> = (0..n).map(|_| (1.0e-3 * (normal(&mut random) + 1.0)) as f32).collect();
        let mean = world.step(std::slice::from_ref(&gradient), &[1]);
        for i in 0..n {
            let off = f64::from(mean[i]) - f64::from(gradient[i]);
            assert!(off.abs() <= 1.5e-3, "step {step}, element {i}: {off}");
            sum[i] += off;
        }
    }
    // Nothing is left over on the whole, although there is no residual.
    for (i, sum) in sum.iter().enumerate() {
        assert!(sum.abs() < 0.05, "element {i}: {sum} of 1 too much");
    }
}

#[test]
fn momentum_tracks_the_average_over_steps_and_not_the_noise() {
    let (n, mut random) = (256, Random(SEED));
    let mut world = World::new(momentum(5), 1, n);
    let mut noise = 0.0_f64;
    for step in 1..=600 {
        let gradient: Vec<f32> = (0..n).map(|_| (normal(&mut random) + 1.0) as f32).collect();
        let mean = world.step(std::slice::from_ref(&gradient), &[1]);
        if step > 300 {
            noise += mean.iter().map(|value| (f64::from(*value) - 1.0).powi(2)).sum::<f64>();
        }
    }
    let rms = (noise / (300.0 * n as f64)).sqrt();
    // Two averages of weight 1/32 leave about sqrt(1/128) of the noise.
    assert!((0.04..0.16).contains(&rms), "root mean square of what is left of noise 1: {rms}");
}

#[test]
fn a_lone_rank_gets_what_it_tracks_bit_for_bit_for_any_weight() {
    for weight in [1, 3, 41, 1000, (1 << 21) - 1] {
        let mut world = World::new(Config::default(), 2, 300);
        let mut random = Random(SEED);
        for _ in 0..3 {
            let gradients: Vec<Vec<f32>> =
                (0..2).map(|_| (0..300).map(|_| normal(&mut random) as f32).collect()).collect();
            let mean = world.step(&gradients, &[weight, 0]);
            let bits: Vec<u32> = mean.iter().map(|value| value.to_bits()).collect();
            assert_eq!(bits, world.sender(0)[..300], "weight {weight}");
        }
    }
}

#[test]
fn a_refused_mean_follows_nothing_and_can_be_asked_again() {
    let mut world = World::new(Config::default(), 2, 70);
    let gradients = [vec![1.0; 70], vec![-2.0; 70]];
    let packets: Vec<Vec<u32>> = (0..2).map(|rank| world.encode(rank, &gradients[rank]).0).collect();
    let slices: Vec<&[u32]> = packets.iter().map(Vec::as_slice).collect();
    let before = world.owner.clone();
    for (weights, packets) in
        [(&[0, 0][..], &slices[..]), (&[1][..], &slices[..]), (&[1 << 21, 1][..], &slices[..])]
    {
        let got = ef21::average(&world.config, packets, weights, &mut world.owner, &mut [0.0; 70]);
        assert!(got.is_err(), "{weights:?}");
        assert_eq!(world.owner, before, "{weights:?}");
    }
    let got = ef21::average(
        &world.config,
        &[&packets[0], &packets[1][..9]],
        &[1, 1],
        &mut world.owner,
        &mut [0.0; 70],
    );
    assert_eq!(got, Err(AverageError::PacketLength { index: 1, words: 9, expected: 10, elements: 70 }));
    world.average(&packets, &[1, 3]);
    world.assert_both_ends_are_equal();
}

#[test]
fn a_non_finite_element_in_each_place_moves_nothing_and_spoils_no_other() {
    for config in [Config { block: 40, ..Config::default() }, Config { block: 40, ..momentum(2) }] {
        let n = 171;
        let mut random = Random(SEED);
        let draw = |random: &mut Random| (0..n).map(|_| random.unit() as f32).collect::<Vec<_>>();
        let mut world = World::new(config, 1, n);
        world.step(&[draw(&mut random)], &[1]);
        let second = draw(&mut random);
        let start = world.states[0].clone();
        for bits in [0x7F80_0000, 0xFF80_0000, 0x7F80_0001, 0xFFC0_0000, 0xFFFF_FFFF] {
            for place in 0..n {
                let mut bad = second.clone();
                bad[place] = f32::from_bits(bits);
                world.states[0].clone_from(&start);
                let (packet, stats) = world.encode(0, &bad);
                assert_eq!(stats.nonfinite, 1);
                let unit = Method::unit(&config);
                let at = place / unit.elements * unit.state_words + place % unit.elements;
                for plane in 0..unit.state_words / unit.elements {
                    let at = at + plane * unit.elements;
                    assert_eq!(world.states[0][at], start[at], "{bits:#x} at {place}, plane {plane}");
                }
                // The rest of the block is coded as if the element had nothing to say.
                let words = &packet[place / unit.elements * unit.words..];
                let word = words[1 + place % unit.elements / 8];
                assert_eq!(word >> (4 * (place % 8)) & 15, 0, "{bits:#x} at {place}");
                assert!(world.states[0].iter().all(|word| f32::from_bits(*word).is_finite()), "{place}");
            }
        }
    }
}

#[test]
fn configurations_are_refused_with_both_numbers() {
    let error = |config: Config| Codec::Ef21(config).validate().unwrap_err().to_string();
    assert_eq!(error(momentum(17)), "momentum_log2 is 17, ef21 takes 0 to 16");
    assert_eq!(error(Config { block: 1032, ..Config::default() }), "block is 1032, ef21 takes 32 to 1024");
    assert_eq!(error(Config { block: 36, ..Config::default() }), "block is 36, ef21 takes multiples of 8");
    assert_eq!(error(Config { base_log2: 56, ..Config::default() }), "base_log2 is 56, ef21 takes -80 to 55");
    assert_eq!(
        "ef21:momentum_log2=4,block=128".parse(),
        Ok(Codec::Ef21(Config { block: 128, ..momentum(4) }))
    );
}

#[test]
fn a_wrong_twin_is_noticed_by_the_golden_vectors() {
    each_is_noticed(
        include_str!("golden/ef21.json"),
        [
            ("a code one off", "words", Mistake::Encode(|_, _, packet| packet[1] ^= 1)),
            ("a tracked value one ulp off", "state", Mistake::Encode(|_, state, _| state[0] ^= 1)),
            ("a mean without weights", "mean_bits", Mistake::Weight(|_| 1)),
        ],
    );
}

fn settings() -> ProptestConfig {
    ProptestConfig {
        rng_seed: RngSeed::Fixed(SEED),
        failure_persistence: None,
        cases: 64,
        ..ProptestConfig::default()
    }
}

fn configs() -> impl Strategy<Value = Config> {
    (select(vec![32_u16, 40, 64, 256, 1024]), -80_i8..=55, select(vec![0_u8, 1, 4, 16]))
        .prop_map(|(block, base_log2, k)| Config { block, base_log2, momentum_log2: NonZeroU8::new(k) })
}

proptest! {
    #![proptest_config(settings())]

    #[test]
    fn packets_and_state_do_not_depend_on_how_the_work_was_split(
        config in configs(),
        n in 1_usize..5000,
        values in prop::collection::vec(any::<u32>(), 5000),
        units in prop::collection::vec(1_usize..4, 0..6),
    ) {
        let unit = Method::unit(&config);
        let gradient: Vec<f32> = values[..n].iter().map(|bits| f32::from_bits(*bits)).collect();
        let (mut whole, mut pieces) = (World::new(config, 1, n), World::new(config, 1, n));
        for gradient in [&gradient[..], &gradient.iter().rev().copied().collect::<Vec<_>>()] {
            let (packet, stats) = whole.encode(0, gradient);
            let (mut joined, mut sum, mut at) = (Vec::new(), Stats::default(), 0);
            for end in units.iter().scan(0, |end, more| { *end += more * unit.elements; Some(*end) }).chain([n]) {
                let range = at..end.min(n);
                at = range.end;
                if range.is_empty() {
                    continue;
                }
                let words = range.start / unit.elements * unit.state_words
                    ..range.end.div_ceil(unit.elements) * unit.state_words;
                let mut part = vec![0; config.packet_words(range.len())];
                let state = &mut pieces.states[0][words];
                sum += ef21::encode(&config, Step::FIRST, gradient[range].into(), state, &mut part);
                joined.extend(part);
            }
            prop_assert_eq!(packet, joined);
            prop_assert_eq!(stats, sum);
            prop_assert!(whole.states == pieces.states);
        }
    }

    #[test]
    fn whatever_peers_send_the_mean_stays_finite(
        config in configs(),
        words in prop::collection::vec(any::<u32>(), 3 * 40),
        weights in prop::collection::vec(0_u32..=299_593, 3),
        n in 1_usize..300,
    ) {
        prop_assume!(weights.iter().any(|weight| *weight > 0));
        let mut world = World::new(config, 3, n);
        let length = config.packet_words(n);
        let packets: Vec<Vec<u32>> =
            words.chunks(40).map(|words| words.iter().copied().cycle().take(length).collect()).collect();
        for _ in 0..20 {
            let mean = world.average(&packets, &weights);
            prop_assert!(mean.iter().all(|value| *value == 0.0 || value.is_normal()), "{:?}", mean);
        }
    }

    #[test]
    fn the_mean_is_the_weighted_mean_of_what_is_tracked(
        weights in prop::collection::vec(0_u32..1000, 1..=7),
    ) {
        prop_assume!(weights.iter().any(|weight| *weight > 0));
        let mut random = Random(SEED);
        let mut world = World::new(Config::default(), weights.len(), 65);
        let gradients: Vec<Vec<f32>> =
            weights.iter().map(|_| (0..65).map(|_| random.unit() as f32).collect()).collect();
        let mean = world.step(&gradients, &weights);
        let total: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
        for (i, mean) in mean.iter().enumerate() {
            let tracked = (0..weights.len()).map(|rank| f64::from(f32::from_bits(world.sender(rank)[i])));
            let sum: f64 = tracked.zip(&weights).map(|(value, weight)| value * f64::from(*weight)).sum();
            let off = (f64::from(*mean) - sum / total).abs();
            prop_assert!(off <= 1.0e-6, "element {}: {} is not {}", i, mean, sum / total);
        }
    }
}

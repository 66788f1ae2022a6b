//! Laws of sparse codecs: index sets come back, hostile words are told, ties are canonical.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;

use gradwire::codec::elias_fano::EliasFano;
use gradwire::codec::topk::{self, Clip, Config, Mean, Residual};
use gradwire::codec::{AverageError, Codec, Step};
use proptest::prelude::*;
use proptest::sample::{Index, select, subsequence};
use proptest::test_runner::RngSeed;

const SEED: u64 = 20_261_130;

fn settings() -> ProptestConfig {
    ProptestConfig {
        rng_seed: RngSeed::Fixed(SEED),
        failure_persistence: None,
        cases: 256,
        ..ProptestConfig::default()
    }
}

fn configs() -> impl Strategy<Value = Config> {
    let chunk = select(vec![64_u16, 128, 256, 512]);
    let scale_log2 = select(vec![-64_i8, -3, 0, 19, 64]);
    let residual = select(vec![Residual::F32, Residual::Bits8]);
    let mean = select(vec![Mean::AllRanks, Mean::Contributors]);
    let clip = select(vec![Clip::Off, Clip::MedianNorm]);
    (chunk, any::<Index>(), 0_u16..=256, residual, scale_log2, mean, clip).prop_map(
        |(chunk, k, decay, residual, scale_log2, mean, clip)| Config {
            chunk,
            k: u16::try_from(1 + k.index(chunk.into())).unwrap(),
            decay,
            residual,
            scale_log2,
            mean,
            clip,
        },
    )
}

/// Few magnitudes, so that ties lie everywhere; or values of any size; or any bits.
fn gradient(scale_log2: i8, n: usize) -> impl Strategy<Value = Vec<f32>> {
    let unit = (-f32::from(scale_log2)).exp2();
    let tie = (-4_i8..=4).prop_map(move |value| f32::from(value) * unit);
    let some = (-30.0_f32..30.0).prop_map(move |value| value * unit);
    let odd = any::<u32>().prop_map(f32::from_bits);
    let element = prop_oneof![6 => tie, 3 => some, 1 => odd];
    prop::collection::vec(element, n)
}

fn runs() -> impl Strategy<Value = (Config, Vec<Vec<f32>>)> {
    (configs(), select(vec![1_usize, 7, 63, 64, 65, 300])).prop_flat_map(|(config, n)| {
        (Just(config), prop::collection::vec(gradient(config.scale_log2, n), 1..=3))
    })
}

fn encoded(config: &Config, gradient: &[f32], state: &mut [u32]) -> Vec<u32> {
    let mut packet = vec![0x5A5A_5A5A; config.packet_words(gradient.len())];
    topk::encode(config, gradient.into(), state, &mut packet);
    packet
}

fn state_for(config: &Config, n: usize) -> Vec<u32> {
    vec![0; Codec::TopK(*config).state_words(n)]
}

proptest! {
    #![proptest_config(settings())]

    #[test]
    fn any_set_of_indices_comes_back_in_the_size_that_was_told(
        universe in 1_usize..5000,
        share in 0.0_f64..1.0,
        seed in any::<u64>(),
    ) {
        #[allow(clippy::cast_possible_truncation, reason = "any count will do")]
        let count = ((universe as f64 * share * share) as usize).clamp(1, universe);
        let mut set = BTreeSet::new();
        let mut random = seed;
        while set.len() < count {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            set.insert(u32::try_from((random >> 33) % universe as u64).unwrap());
        }
        let sizes = EliasFano::new(count, universe).unwrap();
        let mut words = vec![u32::MAX; sizes.words()];
        sizes.encode(set.iter().copied(), &mut words);
        prop_assert_eq!(sizes.check(&words), Ok(()));
        prop_assert!(sizes.indices(&words).eq(set.iter().copied()));
        // Two bits and a half per index more than its density needs, and less than a word for each field.
        let bits = count as f64 * (2.5 + (universe as f64 / count as f64).log2()) + 64.0;
        prop_assert!(32.0 * sizes.words() as f64 <= bits, "{} words for {:?}", sizes.words(), sizes);
    }

    #[test]
    fn any_words_are_told_or_are_a_set_that_is_written_back_to_the_same_words(
        universe in 1_usize..300,
        count in any::<Index>(),
        words in prop::collection::vec(any::<u32>(), 40),
        good in any::<u64>(),
        flips in prop::collection::vec(any::<Index>(), 0..4),
    ) {
        let count = 1 + count.index(universe);
        let sizes = EliasFano::new(count, universe).unwrap();
        // Any words, and those of a set with some bits flipped.
        let start = usize::try_from(good % (universe - count + 1) as u64).unwrap();
        let mut near = vec![0; sizes.words()];
        sizes.encode((start..start + count).map(|index| u32::try_from(index).unwrap()), &mut near);
        for flip in flips {
            let place = flip.index(32 * near.len());
            near[place / 32] ^= 1 << (place % 32);
        }
        for words in [&words[..sizes.words().min(40)], &near] {
            if words.len() == sizes.words() && sizes.check(words).is_ok() {
                let mut back = vec![u32::MAX; words.len()];
                sizes.encode(sizes.indices(words), &mut back);
                prop_assert_eq!(&back[..], words);
            } else if words.len() == sizes.words() {
                prop_assert!(sizes.indices(words).count() <= count);
            }
        }
    }

    #[test]
    fn what_is_sent_are_the_largest_sums_and_the_residual_is_the_rest((config, gradients) in runs()) {
        let n = gradients[0].len();
        let config = Config { residual: Residual::F32, clip: Clip::Off, decay: 256, ..config };
        let mut state = state_for(&config, n);
        for gradient in &gradients {
            let before: Vec<f32> = bytemuck::cast_slice(&state)[..n].to_vec();
            let packet = encoded(&config, gradient, &mut state);
            let mut decoded = vec![f32::NAN; n];
            prop_assert_eq!(topk::average(&config, &[&packet], &[1], &mut decoded), Ok(()));
            let after: &[f32] = bytemuck::cast_slice(&state);
            for i in 0..n {
                let clean = |value: f32| if value.is_normal() { value } else { 0.0 };
                let sum = if gradient[i].is_finite() { before[i] + clean(gradient[i]) } else { 0.0 };
                let sum = clean(sum.clamp(f32::MIN, f32::MAX));
                prop_assert_eq!(after[i], clean((sum - decoded[i]).clamp(f32::MIN, f32::MAX)), "element {}", i);
                prop_assert!(decoded[i] * sum >= 0.0, "element {} changed its sign", i);
            }
        }
    }

    #[test]
    fn the_mean_does_not_depend_on_the_order_of_arrival(
        config in configs(),
        gradients in prop::collection::vec(gradient(0, 300), 2..=6),
        weights in prop::collection::vec(1_u32..300_000, 6),
        by in any::<Index>(),
    ) {
        let config = Config { scale_log2: 0, ..config };
        let mut pairs: Vec<(Vec<u32>, u32)> = gradients
            .iter()
            .zip(weights)
            .map(|(gradient, weight)| (encoded(&config, gradient, &mut state_for(&config, 300)), weight))
            .collect();
        let mean = |pairs: &[(Vec<u32>, u32)]| {
            let packets: Vec<&[u32]> = pairs.iter().map(|(packet, _)| packet.as_slice()).collect();
            let weights: Vec<u32> = pairs.iter().map(|(_, weight)| *weight).collect();
            let mut mean = vec![f32::NAN; 300];
            topk::average(&config, &packets, &weights, &mut mean).unwrap();
            mean.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        let want = mean(&pairs);
        let by = by.index(pairs.len());
        pairs.rotate_left(by);
        prop_assert_eq!(mean(&pairs), want);
    }

    #[test]
    fn any_packet_is_a_mean_or_an_error_that_names_it(
        config in configs(),
        gradient in gradient(0, 300),
        words in prop::collection::vec((any::<Index>(), any::<u32>()), 0..3),
        flips in prop::collection::vec(any::<Index>(), 0..4),
    ) {
        let config = Config { scale_log2: 0, ..config };
        let good = encoded(&config, &gradient, &mut state_for(&config, 300));
        let mut packet = good.clone();
        for (at, word) in words {
            let at = at.index(packet.len());
            packet[at] = word;
        }
        for flip in flips {
            let place = flip.index(32 * packet.len());
            packet[place / 32] ^= 1 << (place % 32);
        }
        let mut mean = vec![f32::NAN; 300];
        match topk::average(&config, &[&good, &packet], &[1, 3], &mut mean) {
            Ok(()) => prop_assert!(mean.iter().all(|value| value.is_finite())),
            Err(AverageError::Malformed { index, unit, found, expected, .. }) => {
                prop_assert!(index == 1 && unit < 300_usize.div_ceil(config.chunk.into()) && found != expected);
            }
            Err(error) => prop_assert!(false, "{}", error),
        }
    }

    #[test]
    fn only_the_order_by_magnitude_then_index_decides(
        places in subsequence((0..64_usize).collect::<Vec<_>>(), 1..=20),
        signs in any::<u64>(),
        k in 1_u16..=20,
    ) {
        // Equal magnitudes at `places`: the first k of them are sent, half of those, rounded up, as the larger half.
        let config = Config { chunk: 64, k, scale_log2: 0, ..Config::default() };
        let mut gradient = [0.5; 64];
        for &place in &places {
            gradient[place] = if signs >> place & 1 == 1 { -3.0 } else { 3.0 };
        }
        let packet = encoded(&config, &gradient, &mut state_for(&config, 64));
        let mut decoded = [f32::NAN; 64];
        Codec::TopK(config).average(&[&packet], &[1], &mut [], &mut decoded).unwrap();
        let k = usize::from(k);
        let rest = (0..64).filter(|place| !places.contains(place));
        let order: Vec<usize> = places.iter().copied().chain(rest).take(k).collect();
        let sent: BTreeSet<usize> = order.iter().copied().collect();
        for (place, value) in decoded.into_iter().enumerate() {
            prop_assert_eq!(value != 0.0, sent.contains(&place), "element {}", place);
        }
        for (j, place) in sent.into_iter().enumerate() {
            let high = packet[1 + j / 16] >> (2 * (j % 16) + 1) & 1 == 1;
            prop_assert_eq!(high, order[..k.div_ceil(2)].contains(&place), "half of element {}", place);
        }
    }
}

#[test]
fn a_gradient_in_halves_gives_the_packet_of_its_widened_copy() {
    let codec = Codec::TopK(Config { chunk: 128, k: 9, ..Config::default() });
    let halves: Vec<half::f16> = (0..300_u16).map(|i| half::f16::from_bits(i.wrapping_mul(0x9E37))).collect();
    let widened: Vec<f32> = halves.iter().map(|value| value.to_f32()).collect();
    let encode = |gradient| {
        let mut packet = vec![0; codec.packet_words(300)];
        let mut state = vec![0; codec.state_words(300)];
        let stats = codec.encode(Step::FIRST, gradient, &mut state, &mut packet);
        (packet, state, stats)
    };
    assert_eq!(encode((&halves).into()), encode((&widened).into()));
}

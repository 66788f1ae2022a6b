//! Laws that hold for every input, and every variant against the definition.
//!
//! The seed is fixed, so that a failure comes back; proptest prints the smallest input that fails.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::num::NonZeroU32;

use gradwire::codec::fixed::{FIXED_MAX, FRACTION_BITS, is_finite};
use gradwire::codec::loco::{self, Config, Variant, packet_words};
use gradwire::codec::{Codec, CodecId, Stats, Step, cast};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::RngSeed;

/// Around every boundary of a word (8), a block (32, 64) and a pass (1024).
const LENGTHS: [usize; 15] = [1, 7, 8, 9, 31, 32, 33, 63, 64, 65, 127, 257, 1023, 1024, 1025];

const SEED: u64 = 20_261_129;

fn settings() -> ProptestConfig {
    ProptestConfig {
        rng_seed: RngSeed::Fixed(SEED),
        failure_persistence: None,
        cases: 256,
        ..ProptestConfig::default()
    }
}

fn configs() -> impl Strategy<Value = Config> {
    let fields = (-64_i8..=64, 0_u8..=6, any::<u8>(), select(vec![0, 1, 2, 3, 512]));
    fields.prop_filter_map("gain above 4096", |(scale_log2, residual_scale_log2, decay, every)| {
        let config = Config { scale_log2, residual_scale_log2, decay, reset_every: NonZeroU32::new(every) };
        config.validate().is_ok().then_some(config)
    })
}

/// Gradient bits: a rounding tie of a code and its neighbours by one ULP, a value of a few codes, or any bits.
fn gradient_bits(scale_log2: i8) -> impl Strategy<Value = u32> {
    let unit = (-f32::from(scale_log2)).exp2();
    let tie = (-10_i16..=9, -1_i32..=1)
        .prop_map(move |(code, ulp)| ((f32::from(code) + 0.5) * unit).to_bits().wrapping_add_signed(ulp));
    // A tie of the fixed point itself: half a unit in the 12th fraction bit.
    let fine = (-40_000_i32..40_000, -1_i32..=1).prop_map(move |(digit, ulp)| {
        let value = (digit as f32 + 0.5) / (1 << FRACTION_BITS) as f32 * unit;
        value.to_bits().wrapping_add_signed(ulp)
    });
    let few = (-70.0_f32..70.0).prop_map(move |codes| (codes * unit).to_bits());
    let odd = select(vec![0, 1 << 31, 1, 0x807F_FFFF, 0x0080_0000, 0x7F7F_FFFF, 0x7F80_0000, 0xFF80_0001]);
    prop_oneof![4 => tie, 2 => fine, 4 => few, 1 => odd, 2 => any::<u32>()]
}

/// A configuration with gradients of one length for `steps` steps.
fn runs(steps: usize) -> impl Strategy<Value = (Config, Vec<Vec<f32>>)> {
    (configs(), select(LENGTHS.to_vec())).prop_flat_map(move |(config, n)| {
        let values = gradient_bits(config.scale_log2).prop_map(f32::from_bits);
        (Just(config), prop::collection::vec(prop::collection::vec(values, n), steps))
    })
}

fn encode_with(
    variant: Variant,
    config: &Config,
    step: u64,
    gradient: &[f32],
    residual: &mut [i8],
) -> (Vec<u32>, Stats) {
    let mut packet = vec![0x5A5A_5A5A; packet_words(gradient.len())];
    let stats = (variant.encode)(config, Step::new(step).unwrap(), gradient, residual, &mut packet);
    (packet, stats)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

proptest! {
    #![proptest_config(settings())]

    #[test]
    fn every_variant_equals_the_definition_in_packets_residuals_and_counts(
        (config, gradients) in runs(3),
        start in prop::collection::vec(any::<i8>(), 1025),
    ) {
        let variants = loco::variants();
        let (definition, others) = variants.split_first().unwrap();
        for variant in others {
            let n = gradients[0].len();
            let (mut want, mut got) = (start[..n].to_vec(), start[..n].to_vec());
            for (step, gradient) in (1..).zip(&gradients) {
                let expected = encode_with(*definition, &config, step, gradient, &mut want);
                let actual = encode_with(*variant, &config, step, gradient, &mut got);
                prop_assert_eq!(&expected, &actual, "{} step {}", variant.name, step);
                prop_assert_eq!(&want, &got, "{} step {}", variant.name, step);
            }
        }
    }

    #[test]
    fn every_variant_averages_like_the_definition(
        config in configs(),
        n in select(LENGTHS.to_vec()),
        // Up to 7 * 299593 = 2097151, the largest sum that is taken.
        weights in prop::collection::vec(0_u32..=299_593, 1..=7),
        words in prop::collection::vec(any::<u32>(), 7 * packet_words(1025)),
    ) {
        prop_assume!(weights.iter().any(|weight| *weight > 0));
        let packets: Vec<&[u32]> = words.chunks(packet_words(n)).take(weights.len()).collect();
        let variants = loco::variants();
        let mut want = vec![f32::NAN; n];
        (variants[0].average)(&config, &packets, &weights, &mut want).unwrap();
        for variant in &variants[1..] {
            let mut got = vec![f32::NAN; n];
            (variant.average)(&config, &packets, &weights, &mut got).unwrap();
            prop_assert_eq!(bits(&got), bits(&want), "{}", variant.name);
        }
    }

    #[test]
    fn packets_do_not_depend_on_how_the_work_was_split(
        (config, gradients) in runs(2),
        groups in prop::collection::vec(1_usize..20, 0..6),
    ) {
        for variant in loco::variants() {
            let n = gradients[0].len();
            let (mut whole, mut pieces) = (vec![0; n], vec![0; n]);
            for (step, gradient) in (1..).zip(&gradients) {
                let (packet, stats) = encode_with(variant, &config, step, gradient, &mut whole);
                let (mut joined, mut sum, mut start) = (Vec::new(), Stats::default(), 0);
                for end in groups.iter().scan(0, |end, g| { *end += 8 * g; Some(*end) }).chain([n]) {
                    let range = start..end.min(n);
                    start = range.end;
                    let (words, part) =
                        encode_with(variant, &config, step, &gradient[range.clone()], &mut pieces[range]);
                    joined.extend(words);
                    sum += part;
                }
                prop_assert_eq!(&packet, &joined, "{}", variant.name);
                prop_assert_eq!(stats, sum, "{}", variant.name);
                prop_assert_eq!(&whole, &pieces, "{}", variant.name);
            }
        }
    }

    #[test]
    fn the_mean_does_not_depend_on_the_order_of_arrival(
        config in configs(),
        pairs in prop::collection::vec((1_u32..50_000, prop::collection::vec(any::<u32>(), 9)), 2..=7),
        shuffled in any::<prop::sample::Index>(),
    ) {
        let mean = |pairs: &[(u32, Vec<u32>)]| {
            let packets: Vec<&[u32]> = pairs.iter().map(|(_, words)| words.as_slice()).collect();
            let weights: Vec<u32> = pairs.iter().map(|(weight, _)| *weight).collect();
            let mut mean = vec![f32::NAN; 65];
            loco::average(&config, &packets, &weights, &mut mean).unwrap();
            bits(&mean)
        };
        let want = mean(&pairs);
        let mut other = pairs;
        let by = shuffled.index(other.len());
        other.rotate_left(by);
        prop_assert_eq!(mean(&other), want.clone());
        other.reverse();
        prop_assert_eq!(mean(&other), want);
    }

    #[test]
    fn without_decay_and_reset_all_that_was_lost_is_the_last_residual(
        scale_log2 in -20_i8..=30,
        residual_scale_log2 in 0_u8..=4,
        codes in prop::collection::vec(prop::collection::vec(-6.0_f64..6.0, 65), 1..12),
    ) {
        // Within -8..7 after compensation nothing saturates, so that only roundings separate the two sides:
        // of the gradient to 12 fraction bits, and of each stored residual to 8 bits.
        let config = Config { scale_log2, residual_scale_log2, decay: 0, reset_every: None };
        let (steps, unit) = (codes.len() as f64, (-f64::from(scale_log2)).exp2());
        let residual_unit = unit / f64::from(1 << residual_scale_log2);
        // Half a residual unit is rounded away in each step, at most, and half a digit of the gradient.
        let bound = steps * (residual_unit / 2.0 + unit / f64::from(1 << FRACTION_BITS) / 2.0);
        let (mut residual, mut sent, mut meant) = (vec![0; 65], vec![0.0_f64; 65], vec![0.0_f64; 65]);
        for (step, codes) in (1..).zip(&codes) {
            #[allow(clippy::cast_possible_truncation, reason = "any f32 near the drawn number will do")]
            let gradient: Vec<f32> = codes.iter().map(|code| (code * unit) as f32).collect();
            let (packet, stats) = encode_with(loco::fastest(), &config, step, &gradient, &mut residual);
            prop_assert_eq!(stats, Stats::default());
            let mut decoded = vec![0.0; 65];
            loco::average(&config, &[&packet], &[1], &mut decoded).unwrap();
            for i in 0..65 {
                meant[i] += f64::from(gradient[i]);
                sent[i] += f64::from(decoded[i]);
            }
        }
        for i in 0..65 {
            let kept = f64::from(residual[i]) * residual_unit;
            let off = (meant[i] - sent[i] - kept).abs();
            prop_assert!(off <= bound, "element {}: off by {} units, bound {}", i, off / unit, bound / unit);
        }
    }

    #[test]
    fn non_finite_elements_are_counted_send_zero_and_clear_their_residual(
        (config, gradients) in runs(1),
    ) {
        let gradient = &gradients[0];
        for variant in loco::variants() {
            let mut residual = vec![99; gradient.len()];
            let (packet, stats) = encode_with(variant, &config, 1, gradient, &mut residual);
            let bad: Vec<usize> = (0..gradient.len()).filter(|i| !is_finite(gradient[*i].to_bits())).collect();
            prop_assert_eq!(stats.nonfinite, bad.len() as u64, "{}", variant.name);
            for i in bad {
                prop_assert_eq!((packet[i / 8] >> (4 * (i % 8)) & 15, residual[i]), (0, 0), "{}", variant.name);
            }
        }
    }

    #[test]
    fn an_f32_mean_lies_between_the_least_and_the_largest_value(
        pairs in prop::collection::vec((1_u32..1000, -1.0e30_f32..1.0e30), 1..=7),
    ) {
        let packets: Vec<[u32; 1]> = pairs.iter().map(|(_, value)| [value.to_bits()]).collect();
        let packets: Vec<&[u32]> = packets.iter().map(|packet| packet.as_slice()).collect();
        let weights: Vec<u32> = pairs.iter().map(|(weight, _)| *weight).collect();
        let mut mean = [f32::NAN];
        cast::average_f32(&packets, &weights, &mut mean).unwrap();
        let least = pairs.iter().map(|(_, value)| *value).fold(f32::INFINITY, f32::min);
        let most = pairs.iter().map(|(_, value)| *value).fold(f32::NEG_INFINITY, f32::max);
        prop_assert!((least..=most).contains(&mean[0]), "{} is not in {}..={}", mean[0], least, most);
    }
}

#[test]
fn every_f32_exponent_and_sign_gives_the_definitions_bits_at_every_scale() {
    // All 512 exponents and signs with mantissas at both ends and in the middle, at all 129 scales: what a
    // random draw meets rarely, above all the last scale where a subnormal could matter.
    let mantissas = [0, 1, 0x3F_FFFF, 0x40_0000, 0x40_0001, 0x7F_FFFF];
    let gradient: Vec<f32> =
        (0..512_u32).flat_map(|top| mantissas.map(|mantissa| f32::from_bits(top << 23 | mantissa))).collect();
    let variants = loco::variants();
    for scale_log2 in -64..=64 {
        let config = Config { scale_log2, ..Config::default() };
        let start: Vec<i8> = (-125..=125).cycle().take(gradient.len()).collect();
        let mut want = start.clone();
        let expected = encode_with(variants[0], &config, 1, &gradient, &mut want);
        for variant in &variants[1..] {
            let mut got = start.clone();
            let actual = encode_with(*variant, &config, 1, &gradient, &mut got);
            assert_eq!((&actual, &got), (&expected, &want), "{} at scale {scale_log2}", variant.name);
        }
    }
}

#[test]
fn the_fixed_point_bound_is_64_codes() {
    assert_eq!(FIXED_MAX, 64 << FRACTION_BITS);
}

#[test]
fn parameters_that_nobody_checked_panic_in_no_size_no_check_and_no_text() {
    let extremes = [0, 1, 2, 7, 255, 256, 65_535, i64::from(u32::MAX), i64::MIN, -128, -1, 127];
    for id in CodecId::ALL {
        let names = Codec::new(id).parameters().into_iter().map(|parameter| parameter.name);
        // Some codecs have a scale alone, which `set_parameter` does not know.
        let names: Vec<_> = names.chain(["scale_log2"]).collect();
        // Each parameter at each extreme that it holds, alone and after all others.
        for value in extremes {
            let mut all = Codec::new(id);
            all.set_scale_log2(if value < 0 { i8::MIN } else { i8::MAX });
            for name in &names {
                let mut one = Codec::new(id);
                one.set_parameter(name, value);
                all.set_parameter(name, value);
                for codec in [one, all] {
                    let unit = codec.unit();
                    assert!(unit.elements > 0, "{codec}: {unit:?}");
                    for elements in [0, 1, 7, 4097, usize::MAX] {
                        let words = (codec.packet_words(elements), codec.state_words(elements));
                        assert!(words.0 > 0 || elements == 0, "{codec} of {elements}: {words:?}");
                        for world_size in [0, 1, usize::MAX] {
                            let _ = codec.mean_state_words(world_size, elements);
                        }
                    }
                    let _ =
                        (codec.validate(), codec.rms_log2(), codec.is_reset(Step::FIRST), codec.to_string());
                    let _ = (codec.check_state(7, &[]), codec.check_mean_state(1, 7, &[]));
                }
            }
        }
    }
}

//! What the best-known implementation of LoCo got wrong, asked of every codec here: a mean over nodes instead of ranks,
//! world sizes that must be even, trailing groups that vanish, half types that are refused, NaN that turns to zero, and
//! resets that never come.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

#[path = "common/random.rs"]
mod random;

use std::num::NonZeroU32;

use gradwire::codec::{Codec, CodecId, Gradient, Step, loco};
use half::{bf16, f16};
use random::Random;

const SEED: u64 = 20_261_130;

/// Every codec with its defaults; the scale of one that has one is fixed so that values of about 1 are a few codes.
fn codecs() -> impl Iterator<Item = Codec> {
    CodecId::ALL.into_iter().map(|id| {
        let mut codec = Codec::new(id);
        codec.set_scale_log2(2);
        codec
    })
}

fn packet(codec: &Codec, gradient: Gradient) -> Vec<u32> {
    let mut state = vec![0; codec.state_words(gradient.len())];
    let mut packet = vec![0; codec.packet_words(gradient.len())];
    codec.encode(Step::FIRST, gradient, &mut state, &mut packet);
    packet
}

fn mean(codec: &Codec, gradients: &[Vec<f32>], weights: &[u32]) -> Vec<f32> {
    let n = gradients[0].len();
    let packets: Vec<Vec<u32>> = gradients.iter().map(|gradient| packet(codec, gradient.into())).collect();
    let packets: Vec<&[u32]> = packets.iter().map(Vec::as_slice).collect();
    let mut mean = vec![f32::NAN; n];
    let mut state = vec![0; codec.mean_state_words(packets.len(), n)];
    codec.average(&packets, weights, &mut state, &mut mean).unwrap();
    mean
}

/// One value everywhere, which every codec sends within a quarter of itself.
fn constant(value: f32, n: usize) -> Vec<f32> {
    vec![value; n]
}

/// A codec that sends only the largest elements gives a mean of which only those count.
fn sent(values: &[f32]) -> impl Iterator<Item = &f32> {
    values.iter().filter(|value| **value != 0.0)
}

#[test]
fn the_mean_is_over_all_ranks_and_their_samples_whatever_the_world_size() {
    for codec in codecs() {
        for world_size in [1_usize, 2, 3, 5, 7, 16] {
            // All ranks the same but the last, which alone has 3 times the samples and another sign.
            let mut gradients = vec![constant(1.0, 257); world_size];
            let mut weights = vec![1; world_size];
            if world_size > 1 {
                gradients[world_size - 1] = constant(-1.0, 257);
                weights[world_size - 1] = 3;
            }
            let total = weights.iter().sum::<u32>() as f32;
            let expected = if world_size == 1 { 1.0 } else { (total - 3.0 - 3.0) / total };
            let got = mean(&codec, &gradients, &weights);
            for value in sent(&got) {
                let off = (value - expected).abs();
                assert!(off <= 0.26, "{codec}, world size {world_size}: {value} instead of {expected}");
            }
            assert!(expected.abs() < 0.3 || sent(&got).next().is_some(), "{codec}: nothing was sent");
        }
    }
}

#[test]
fn no_trailing_element_is_lost_at_any_length() {
    for codec in codecs() {
        for n in [1, 7, 8, 9, 63, 64, 65, 255, 257, 2305, 4095, 4097] {
            // The last element is the largest, so that a codec which sends only some sends this one.
            let mut gradient = constant(0.5, n);
            gradient[n - 1] = 2.0;
            let got = mean(&codec, &[gradient], &[1]);
            assert!(got[n - 1] > 0.4, "{codec}, {n} elements: the last one came out as {}", got[n - 1]);
        }
    }
}

#[test]
fn half_types_give_the_packet_of_their_widened_values() {
    for codec in codecs() {
        for n in [1, 9, 65, 2305, 4097] {
            let mut random = Random(SEED + n as u64);
            let values: Vec<f32> = (0..n).map(|_| (random.unit() * 3.0) as f32).collect();
            let brains: Vec<bf16> = values.iter().map(|value| bf16::from_f32(*value)).collect();
            let halves: Vec<f16> = values.iter().map(|value| f16::from_f32(*value)).collect();
            let wide: Vec<f32> = brains.iter().map(|value| value.to_f32()).collect();
            assert_eq!(
                packet(&codec, (&brains).into()),
                packet(&codec, (&wide).into()),
                "{codec}, bf16, {n}"
            );
            let wide: Vec<f32> = halves.iter().map(|value| value.to_f32()).collect();
            assert_eq!(packet(&codec, (&halves).into()), packet(&codec, (&wide).into()), "{codec}, f16, {n}");
        }
    }
}

#[test]
fn a_value_that_is_not_finite_is_counted_in_every_place_and_spoils_no_other() {
    for codec in codecs() {
        let n = 300;
        for place in [0, 1, 7, 8, 63, 64, 255, 256, 299] {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut gradient = constant(1.0, n);
                gradient[place] = bad;
                let mut state = vec![0; codec.state_words(n)];
                let mut packet = vec![0; codec.packet_words(n)];
                let stats = codec.encode(Step::FIRST, (&gradient).into(), &mut state, &mut packet);
                assert_eq!(stats.nonfinite, 1, "{codec}, place {place}");
                let mut got = vec![0.0; n];
                let mut state = vec![0; codec.mean_state_words(1, n)];
                codec.average(&[&packet], &[1], &mut state, &mut got).unwrap();
                for (at, value) in got.iter().enumerate().filter(|(at, value)| *at != place && **value != 0.0)
                {
                    assert!((0.7..1.3).contains(value), "{codec}, {bad} at {place}: {value} at {at}");
                }
            }
        }
    }
}

#[test]
fn a_reset_comes_when_it_is_due_and_not_before() {
    for codec in codecs().filter(|codec| codec.parameters().iter().any(|p| p.name == "reset_every")) {
        let mut codec = codec;
        assert!(codec.set_parameter("reset_every", 3), "{codec}");
        let n = 65;
        let mut state = vec![0; codec.state_words(n)];
        let mut packet = vec![0; codec.packet_words(n)];
        for step in 1..=7 {
            let gradient: Vec<f32> = (0..n).map(|i| 0.3 + i as f32 / 97.0).collect();
            let step = Step::new(step).unwrap();
            codec.encode(step, (&gradient).into(), &mut state, &mut packet);
            let due = step.get().is_multiple_of(3);
            assert_eq!(codec.is_reset(step), due, "{codec}, step {step}");
            assert_eq!(state.iter().all(|word| *word == 0), due, "{codec}, step {step}: {state:x?}");
        }
    }
    let paper = loco::Config { reset_every: NonZeroU32::new(1024), ..loco::Config::default() };
    assert!(paper.is_reset(Step::new(1024).unwrap()) && !paper.is_reset(Step::new(1023).unwrap()));
}

//! Aimed at the places where a rounding goes wrong: every tie and its neighbours, saturation, subnormals, and
//! non-finite values in every place of a group.

#![allow(clippy::unwrap_used, reason = "test code")]
#![allow(clippy::cast_possible_truncation, reason = "random bits are cut to size, values rounded to f32")]
#![cfg(feature = "gpu")]

#[path = "common/gpu.rs"]
mod common;

use common::{Cpu, Encoder, Values, compare, configs, gpus, narrow};
use gradwire::codec::loco::{Config, packet_words, variants};
use gradwire::codec::{Codec, Input, Stats, Step};
use gradwire::gpu::{Encode, Limits};

const NONFINITE: [u32; 6] = [0x7F80_0000, 0xFF80_0000, 0x7F80_0001, 0x7FC0_0000, 0xFFFF_FFFF, 0xFF80_0001];

/// A fresh encoder for so many elements.
type Make<'a> = &'a dyn Fn(&Codec, usize) -> Box<dyn Encoder>;

/// Runs `check` with every CPU variant, and with every adapter in two cuts.
fn for_every_encoder(check: impl Fn(Make)) {
    for variant in variants() {
        println!("cpu: {}", variant.name);
        check(&|codec, elements| Box::new(Cpu::new(variant, codec, elements)));
    }
    for gpu in gpus() {
        for limits in [Limits::of(&gpu), narrow(&gpu)] {
            check(&|codec, elements| {
                Box::new(Encode::with_limits(&gpu, codec, Input::F32, elements, limits).unwrap())
            });
        }
    }
}

/// `value` and its neighbours by `ulps` units in the last place, with both signs.
fn around(value: f64, ulps: u32) -> impl Iterator<Item = f32> {
    let bits = (value.abs() as f32).to_bits();
    (0..=2 * ulps).flat_map(move |k| {
        let near = f32::from_bits((bits + k).saturating_sub(ulps));
        [near, -near]
    })
}

/// Compares with the definition, with the same input again and again: each residual that a step leaves moves the next
/// ties.
fn repeated(config: &Config, gradient: &[f32], steps: usize, make: Make) {
    let codec = Codec::Loco(*config);
    let steps = vec![Values::new(Input::F32, gradient); steps];
    compare(&codec, 1, &steps, &mut *make(&codec, gradient.len())).unwrap();
}

#[test]
fn codes_and_residuals_are_right_on_and_around_every_tie_of_the_code() {
    for_every_encoder(|make| {
        for config in configs() {
            let unit = 2_f64.powi(-i32::from(config.scale_log2));
            let ties: Vec<f32> =
                (0..80).flat_map(|halves| around(f64::from(halves) * 0.5 * unit, 2)).collect();
            repeated(&config, &ties, 6, make);
        }
    });
}

#[test]
fn the_fixed_point_is_right_on_and_around_the_ties_of_its_last_digit() {
    for_every_encoder(|make| {
        for config in configs() {
            let unit = 2_f64.powi(-i32::from(config.scale_log2)) / 4096.0;
            // Small numbers, where f32 has digits to spare, and those around one code's tie and around saturation.
            let ties: Vec<f32> = (0..300)
                .chain(2048 - 40..2048 + 40)
                .chain(7 * 4096 + 2048 - 40..7 * 4096 + 2048 + 40)
                .chain((1 << 18) - 40..(1 << 18) + 40)
                .flat_map(|k| around((f64::from(k) + 0.5) * unit, 1))
                .collect();
            repeated(&config, &ties, 4, make);
        }
    });
}

/// A residual as the state of an encoder.
fn words(residuals: &[i8]) -> Vec<u32> {
    let mut words = vec![0; residuals.len().div_ceil(8) * 2];
    bytemuck::cast_slice_mut(&mut words)[..residuals.len()].copy_from_slice(residuals);
    words
}

#[test]
fn every_residual_meets_every_tie() {
    // 256 residuals by 41 gradients: driven there by a first step, as an encoder under test has no setter.
    for gpu in gpus() {
        for config in configs() {
            let unit = 2_f64.powi(-i32::from(config.scale_log2));
            let gradients: Vec<f32> =
                (-20..=20).map(|halves| (f64::from(halves) * 0.5 * unit) as f32).collect();
            let residuals: Vec<i8> =
                (i8::MIN..=i8::MAX).flat_map(|residual| vec![residual; gradients.len()]).collect();
            let gradient = gradients.repeat(256);
            let codec = Codec::Loco(config);
            let mut want_residual = residuals.clone();
            let mut want = vec![0; packet_words(gradient.len())];
            let mut got = want.clone();
            let step = Step::FIRST;
            let want_stats = (variants()[0].encode)(&config, step, &gradient, &mut want_residual, &mut want);
            let mut encode = Encode::new(&gpu, &codec, Input::F32, gradient.len()).unwrap();
            encode.set_state(&words(&residuals)).unwrap();
            let got_stats = encode.encode(&codec, step, (&gradient).into(), &mut got).unwrap();
            assert_eq!(got, want, "{config:?}, {}", gpu.info().name);
            assert_eq!(encode.state().unwrap(), words(&want_residual), "{config:?}, {}", gpu.info().name);
            assert_eq!(got_stats, want_stats, "{config:?}, {}", gpu.info().name);
        }
    }
}

#[test]
fn gradients_of_every_exponent_saturate_or_vanish_alike() {
    for_every_encoder(|make| {
        for config in configs() {
            let all: Vec<f32> = (0..512_u32)
                .flat_map(|top| {
                    [0, 1, 0x3F_FFFF, 0x40_0000, 0x40_0001, 0x7F_FFFF]
                        .map(|m| f32::from_bits((top << 23) | m))
                })
                .collect();
            repeated(&config, &all, 3, make);
        }
    });
}

#[test]
fn a_nonfinite_value_in_any_place_of_a_group_sends_zero_clears_its_residual_and_is_counted() {
    let codec = Codec::Loco(Config { reset_every: None, ..Config::default() });
    let unit = 2_f32.powi(-19);
    for_every_encoder(|make| {
        for elements in [8, 13, 16] {
            for place in 0..elements {
                for bits in NONFINITE {
                    let mut encoder = make(&codec, elements);
                    let mut packet = vec![0; packet_words(elements)];
                    // 1.25 codes leave a residual of 0.25 everywhere; then one place turns bad.
                    let mut gradient = vec![1.25 * unit; elements];
                    encoder.encode(&codec, Step::FIRST, (&gradient).into(), &mut packet);
                    gradient[place] = f32::from_bits(bits);
                    let stats = encoder.encode(&codec, Step::FIRST, (&gradient).into(), &mut packet);
                    assert_eq!(
                        stats,
                        Stats { nonfinite: 1, saturated: 0 },
                        "place {place}, bits {bits:#010x}"
                    );
                    let state = encoder.state();
                    let residuals: &[i8] = bytemuck::cast_slice(&state);
                    for (at, residual) in residuals.iter().take(elements).enumerate() {
                        let code = (packet[at / 8] >> (4 * (at % 8))) & 0xF;
                        let (want_code, cleared) = if at == place { (0, true) } else { (1, false) };
                        assert_eq!(code, want_code, "element {at}, place {place}, bits {bits:#010x}");
                        assert_eq!(*residual == 0, cleared, "element {at}, place {place}, bits {bits:#010x}");
                    }
                }
            }
        }
    });
}

#[test]
fn the_words_after_the_last_element_are_zero_and_stay_zero() {
    for_every_encoder(|make| {
        for elements in 1..=16 {
            let codec = Codec::Loco(Config::default());
            let mut encoder = make(&codec, elements);
            let mut packet = vec![u32::MAX; packet_words(elements)];
            let gradient = vec![f32::MIN; elements];
            for _ in 0..3 {
                encoder.encode(&codec, Step::FIRST, (&gradient).into(), &mut packet);
                let used = 4 * (elements % 8);
                let padding = if used == 0 { 0 } else { packet[packet.len() - 1] >> used };
                assert_eq!(padding, 0, "{elements} elements");
            }
        }
    });
}

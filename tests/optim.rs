//! The optimizers on every adapter: within what the rules of WGSL allow of the CPU twin, after the exact mean.
#![cfg(feature = "gpu")]
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

#[path = "common/gpu.rs"]
mod common;

use common::{Random, TINY, gpus, narrow, notices, spread};
use gradwire::codec::{Codec, Step};
use gradwire::gpu::source::{FUSED, OPTIM_ADAMW, OPTIM_SGD};
use gradwire::gpu::{Gpu, GpuError, Limits, Optimizer, Owner, has_optimizer};
use gradwire::optim::{AdamW, Config, OneBitAdam, OneBitLamb, Sgd, State, ZeroOneAdam, adam, sgd};

const SEED: u64 = 20_261_130;
const STEPS: usize = 6;
const LENGTHS: [usize; 11] = [1, 7, 8, 9, 63, 64, 65, 257, 2305, 4096, 4097];

/// The most that one ULP is in proportion to its number.
const ULP: f64 = 1.0 / (1_u64 << 23) as f64;
/// The least normal number: a device may flush what is below.
const FLUSH: f64 = f32::MIN_POSITIVE as f64;

fn optimizers() -> Vec<Config> {
    vec![
        Config::Sgd(Sgd::default()),
        Config::Sgd(Sgd { momentum: 0.0, weight_decay: 0.25 }),
        Config::AdamW(AdamW::default()),
        Config::AdamW(AdamW { beta1: 0.0, beta2: 0.5, epsilon: 1e-3, weight_decay: 0.0 }),
    ]
}

/// Those that only the CPU has.
fn without_kernel() -> [Config; 3] {
    [
        Config::OneBitAdam(OneBitAdam::default()),
        Config::OneBitLamb(OneBitLamb::default()),
        Config::ZeroOneAdam(ZeroOneAdam::default()),
    ]
}

/// One number after a step, and how far the device may be from it: ULP of the number before, and of what was added.
struct Bound {
    what: &'static str,
    exact: f32,
    kept: f64,
    added: f64,
    /// ULP of `kept` and of `added`.
    ulps: [f64; 2],
    flushed: f64,
}

/// What the twin makes of a step, with the bounds that `gpu::optim` derives.
fn bounds(before: &State, learning_rate: f32, mean: &[f32], old: &[f32]) -> (Vec<f32>, State, Vec<Bound>) {
    let (mut after, mut new) = (before.clone(), old.to_vec());
    after.step(learning_rate, mean, &mut new);
    let mut bounds = Vec::new();
    let size = |value: f32| f64::from(value).abs();
    match (before, &after) {
        (State::Sgd(before), State::Sgd(after)) => {
            let c = sgd::Coefficients::new(&before.config, learning_rate);
            for at in 0..mean.len() {
                let b = size(c.momentum) * size(before.velocity[at])
                    + size(mean[at])
                    + size(c.weight_decay) * size(old[at]);
                let rate = size(c.learning_rate);
                let velocity = after.velocity[at];
                bounds.push(Bound {
                    what: "velocity",
                    exact: velocity,
                    kept: 0.0,
                    added: b,
                    ulps: [0.0, 5.0],
                    flushed: 4.0 * FLUSH,
                });
                let (kept, added) = (size(old[at]), rate * b);
                bounds.push(Bound {
                    what: "parameter",
                    exact: new[at],
                    kept,
                    added,
                    ulps: [2.0, 8.0],
                    flushed: (3.0 + 4.0 * rate) * FLUSH,
                });
            }
        }
        (State::AdamW(before), State::AdamW(after)) => {
            let c = before.powers.clone().next(&before.config, learning_rate);
            for at in 0..mean.len() {
                let a = size(c.beta1) * size(before.mean[at]) + size(c.rest1) * size(mean[at]);
                let square = after.square[at];
                let root = (size(square) * size(c.square_scale)).sqrt() + size(c.epsilon);
                let rate = size(c.step_size) / root;
                bounds.push(Bound {
                    what: "mean",
                    exact: after.mean[at],
                    kept: 0.0,
                    added: a,
                    ulps: [0.0, 4.0],
                    flushed: 4.0 * FLUSH,
                });
                bounds.push(Bound {
                    what: "square",
                    exact: square,
                    kept: 0.0,
                    added: size(square),
                    ulps: [0.0, 5.0],
                    flushed: 4.0 * FLUSH,
                });
                // A square that is flushed moves the root by the root of what is flushed.
                let lost_root = (4.0 * FLUSH * size(c.square_scale)).sqrt() / root;
                let flushed = (3.0 + 4.0 * rate) * FLUSH + rate * a * lost_root;
                let (kept, added) = (size(old[at]), rate * a);
                bounds.push(Bound {
                    what: "parameter",
                    exact: new[at],
                    kept,
                    added,
                    ulps: [4.0, 20.0],
                    flushed,
                });
            }
        }
        _ => panic!("a step keeps its optimizer"),
    }
    (new, after, bounds)
}

/// A device's numbers in the order of `bounds`.
fn numbers(state: &State, parameters: &[f32]) -> Vec<f32> {
    match state {
        State::Sgd(state) => {
            (0..parameters.len()).flat_map(|at| [state.velocity[at], parameters[at]]).collect()
        }
        State::AdamW(state) => {
            (0..parameters.len()).flat_map(|at| [state.mean[at], state.square[at], parameters[at]]).collect()
        }
        _ => panic!("a third optimizer"),
    }
}

/// The first number out of its bound; and the largest difference in ULP of `kept + added`.
fn compare(found: &[f32], bounds: &[Bound]) -> Result<f64, String> {
    assert_eq!(found.len(), bounds.len(), "one bound for each number");
    let mut largest = 0.0_f64;
    for (index, (found, bound)) in found.iter().zip(bounds).enumerate() {
        let Bound { what, exact, kept, added, ulps, flushed } = bound;
        let difference = (f64::from(*found) - f64::from(*exact)).abs();
        let allowed = ULP * (ulps[0] * kept + ulps[1] * added) + flushed;
        // A NaN is in no bound.
        if difference.is_nan() || difference > allowed {
            return Err(format!(
                "{what} of number {index} is {found:e}, the twin has {exact:e}, allowed are {allowed:e}"
            ));
        }
        if *flushed < ULP * (kept + added) {
            largest = largest.max((difference - flushed) / (ULP * (kept + added)));
        }
    }
    Ok(largest)
}

/// Means of every size that has a square in f32: ordinary ones, tiny and huge ones, none, and some that cancel the moment.
fn mean(random: &mut Random, state: &State) -> Vec<f32> {
    let moment = |at: usize| match state {
        State::AdamW(state) => -9.0 * state.mean[at],
        State::Sgd(state) => -0.9 * state.velocity[at],
        _ => 0.0,
    };
    let value = |at: usize, random: &mut Random| match random.below(12) {
        0 => 0.0,
        1 => -0.0,
        2 => f32::from_bits(random.below(0x80_0000) as u32),
        3 => (random.unit() * 1e-12) as f32,
        4 => (random.unit() * 1e-25) as f32,
        5 => (random.unit() * 1e12) as f32,
        6 => moment(at),
        7 => 2.0_f32.powi(random.below(20) as i32 - 10),
        _ => random.unit() as f32,
    };
    (0..state.elements()).map(|at| value(at, random)).collect()
}

fn parameters(random: &mut Random, elements: usize) -> Vec<f32> {
    let value = |random: &mut Random| match random.below(8) {
        0 => 0.0,
        1 => (random.unit() * 1e-20) as f32,
        2 => (random.unit() * 1e6) as f32,
        _ => random.unit() as f32,
    };
    (0..elements).map(|_| value(random)).collect()
}

/// Steps of a device that goes its own way, each compared with what the twin makes of the device's numbers before.
fn stays_within_the_bounds(device: &mut Optimizer, random: &mut Random) -> Result<f64, String> {
    let mut largest = 0.0_f64;
    for step in 0..STEPS {
        let (before, old) = (device.state().unwrap(), device.parameters().unwrap());
        let mean = mean(random, &before);
        let learning_rate = [0.1, 1e-3, 0.0, 1.0][step % 4];
        let (_, after, bounds) = bounds(&before, learning_rate, &mean, &old);
        let mut found = vec![f32::NAN; old.len()];
        device.step(learning_rate, &mean, &mut found).unwrap();
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(
            bits(&found),
            bits(&device.parameters().unwrap()),
            "what a step gives is what the device keeps"
        );
        let state = device.state().unwrap();
        assert_eq!(state.config(), after.config(), "a step keeps the configuration");
        if let (State::AdamW(state), State::AdamW(after)) = (&state, &after) {
            assert_eq!(state.powers, after.powers, "bias corrections are exact");
        }
        largest = largest.max(
            compare(&numbers(&state, &found), &bounds).map_err(|error| format!("step {step}: {error}"))?,
        );
    }
    Ok(largest)
}

#[test]
fn every_step_is_within_the_bounds_of_the_twin_at_every_length_and_however_the_work_is_cut() {
    for gpu in gpus() {
        for config in optimizers() {
            let mut largest = 0.0_f64;
            for limits in [Limits::of(&gpu), narrow(&gpu), TINY] {
                for elements in LENGTHS.into_iter().filter(|&elements| limits != TINY || elements < 2400) {
                    let mut random = Random(SEED + elements as u64);
                    let start = parameters(&mut random, elements);
                    let mut device = Optimizer::with_limits(&gpu, &config, &start, limits).unwrap();
                    let result = stays_within_the_bounds(&mut device, &mut random);
                    largest = largest.max(result.unwrap_or_else(|error| {
                        panic!(
                            "{}, {config:?}, {limits:?}, {elements} elements, seed {SEED}: {error}",
                            gpu.info().name
                        )
                    }));
                }
            }
            println!("{}, {config:?}: at most {largest:.3} ULP of parameter and update", gpu.info().label());
        }
    }
}

#[test]
fn a_shader_with_another_formula_is_noticed() {
    let adam = Config::AdamW(AdamW::default());
    let sgd = Config::Sgd(Sgd { momentum: 0.9, weight_decay: 0.01 });
    for (config, shader, right, wrong) in [
        (sgd, OPTIM_SGD, "params.momentum * moments[at]", "moments[at]"),
        (sgd, OPTIM_SGD, "+ params.weight_decay * old", ""),
        (sgd, OPTIM_SGD, "params.learning_rate * velocity", "params.learning_rate * gradient"),
        (adam, OPTIM_ADAMW, "params.rest1 * gradient", "params.rest2 * gradient"),
        (adam, OPTIM_ADAMW, "params.square_scale)", "1.0)"),
        (adam, OPTIM_ADAMW, "+ params.epsilon", ""),
        (adam, OPTIM_ADAMW, "* params.keep", ""),
        (adam, OPTIM_ADAMW, "moments[moment + 2u] = square;", ""),
        // Forty ULP of the update: the bounds are not wide.
        (adam, OPTIM_ADAMW, "(mean / root)", "(1.000005 * mean / root)"),
    ] {
        notices(&shader.source(gradwire::codec::Input::F32), right, wrong, |gpu, text| {
            let mut random = Random(SEED);
            let start = parameters(&mut random, 2305);
            let mut device = Optimizer::with_source(gpu, &config, &start, Limits::of(gpu), text).unwrap();
            stays_within_the_bounds(&mut device, &mut random).map(drop)
        });
    }
}

#[test]
fn a_state_moves_between_cpu_and_device_and_goes_on_from_there() {
    for gpu in gpus() {
        for config in optimizers() {
            for elements in [1, 9, 64, 2305] {
                let mut random = Random(SEED + elements as u64);
                let (mut state, mut on_cpu) = (config.state(elements), parameters(&mut random, elements));
                for _ in 0..3 {
                    let mean = mean(&mut random, &state);
                    state.step(0.01, &mean, &mut on_cpu);
                }
                for limits in [Limits::of(&gpu), TINY] {
                    let mut device =
                        Optimizer::with_limits(&gpu, &config, &vec![7.0; elements], limits).unwrap();
                    device.restore(&on_cpu, &state).unwrap();
                    assert_eq!(
                        device.parameters().unwrap(),
                        on_cpu,
                        "{config:?}, {elements} elements, {limits:?}"
                    );
                    assert_eq!(device.state().unwrap(), state, "{config:?}, {elements} elements, {limits:?}");
                    stays_within_the_bounds(&mut device, &mut Random(SEED)).unwrap();
                }
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_with_both_sides_and_nothing_changes() {
    for gpu in gpus() {
        let config = Config::AdamW(AdamW::default());
        let mut device = Optimizer::new(&gpu, &config, &[1.0; 9]).unwrap();
        let mut out = [0.0; 9];
        let mut refused = |device: &mut Optimizer, rate, mean: &[f32], length: usize| {
            device.step(rate, mean, &mut out[..length]).unwrap_err().to_string()
        };
        assert_eq!(refused(&mut device, 0.1, &[0.0; 8], 9), "mean has 8 elements, this state was made for 9");
        assert_eq!(
            refused(&mut device, 0.1, &[0.0; 9], 8),
            "parameters has 8 elements, this state was made for 9"
        );
        for rate in [f32::NAN, -0.1, f32::INFINITY] {
            let error = refused(&mut device, rate, &[0.0; 9], 9);
            assert_eq!(error, format!("optimizer parameter learning_rate is {rate}, must be in 0 or above"));
        }
        let other = Config::Sgd(Sgd::default()).state(9);
        let error = device.restore(&[1.0; 9], &other).unwrap_err();
        assert_eq!(error.to_string(), "state of optimizer sgd, this one is adamw");
        assert!(matches!(device.restore(&[1.0; 9], &config.state(8)), Err(GpuError::Length { .. })));
        let uneven = State::AdamW(adam::State {
            config: AdamW::default(),
            powers: adam::Powers::START,
            mean: vec![0.0; 9],
            square: vec![0.0; 8],
        });
        assert!(matches!(device.restore(&[1.0; 9], &uneven), Err(GpuError::Length { .. })));
        assert_eq!(device.parameters().unwrap(), [1.0; 9]);
        assert_eq!(device.state().unwrap(), config.state(9));
        let wrong = Config::AdamW(AdamW { beta1: 1.0, ..AdamW::default() });
        assert!(matches!(Optimizer::new(&gpu, &wrong, &[1.0]), Err(GpuError::Optimizer(_))));
        for config in without_kernel() {
            let expected = format!("optimizer {} has no GPU kernel", config.name());
            let error = Optimizer::new(&gpu, &config, &[1.0]).unwrap_err();
            assert_eq!(error.to_string(), expected);
            let error = Owner::new(&gpu, &Codec::F32, &config, &[1.0]).unwrap_err();
            assert_eq!(error.to_string(), expected);
            assert!(!has_optimizer(&config), "{config:?}");
            let error = device.restore(&[1.0; 9], &config.state(9)).unwrap_err();
            assert_eq!(error.to_string(), format!("state of optimizer {}, this one is adamw", config.name()));
        }
        assert!(optimizers().iter().all(has_optimizer), "every optimizer of the tests above");
    }
}

#[test]
fn a_device_too_slow_for_its_deadline_breaks_the_state_until_it_is_restored() {
    let config = Config::Sgd(Sgd::default());
    let start = vec![1.0; 1 << 22];
    for gpu in gpus() {
        let hurried = gpu.with_deadline(std::time::Duration::ZERO);
        let mut device = Optimizer::new(&hurried, &config, &start).unwrap();
        let mut out = vec![0.0; start.len()];
        // A device may be done before anyone waits, when this thread is put to sleep in between; not every time.
        let error = (0..20).find_map(|_| device.step(0.1, &start, &mut out).err()).unwrap();
        assert!(matches!(error, GpuError::Timeout { .. }), "{error}");
        let error = device.step(0.1, &start, &mut out).unwrap_err();
        assert!(matches!(error, GpuError::Broken { .. }), "{error}");
        assert!(matches!(device.parameters(), Err(GpuError::Broken { .. })));
        device.restore(&start, &config.state(start.len())).unwrap();
        let result = device.step(0.1, &start, &mut out);
        assert!(
            matches!(result, Ok(()) | Err(GpuError::Timeout { .. })),
            "usable again, late or not: {result:?}"
        );
    }
}

#[test]
fn a_shard_without_elements_has_an_optimizer_that_does_nothing() {
    for gpu in gpus() {
        for config in optimizers() {
            Optimizer::new(&gpu, &config, &[]).unwrap().step(0.1, &[], &mut []).unwrap();
            for codec in codecs() {
                let packets: [&[u32]; 2] = [&[], &[]];
                let mut owner = Owner::new(&gpu, &codec, &config, &[]).unwrap();
                owner.step(&codec, &packets, &[1, 2], 0.1, &mut []).unwrap();
            }
        }
    }
}

/// Every codec with kernels, at scales where the square of a mean is an f32.
fn codecs() -> Vec<Codec> {
    let mut codecs = common::codecs();
    codecs.retain(|codec| codec.scale_log2().is_none_or(|scale| scale.abs() <= 20));
    codecs
}

/// Packets of all ranks as encoders write them, and their weights.
fn packets(codec: &Codec, ranks: usize, elements: usize, random: &mut Random) -> (Vec<Vec<u32>>, Vec<u32>) {
    let packet = |random: &mut Random| {
        // Codes up to saturation.
        let size = 10.0 * 2.0_f64.powi(-i32::from(codec.scale_log2().unwrap_or(3)));
        let gradient: Vec<f32> = (0..elements).map(|_| (random.unit() * size) as f32).collect();
        let mut packet = vec![0; codec.packet_words(elements)];
        codec.encode(Step::FIRST, (&gradient).into(), &mut vec![0; codec.state_words(elements)], &mut packet);
        packet
    };
    let packets = (0..ranks).map(|_| packet(random)).collect();
    let mut weights: Vec<u32> = (0..ranks).map(|_| random.below(1000) as u32).collect();
    weights[0] += 1;
    (packets, weights)
}

/// Both ways from packets to parameters.
fn owners(gpu: &Gpu, codec: &Codec, config: &Config, start: &[f32], limits: Limits) -> [Owner; 2] {
    [
        Owner::with_limits(gpu, codec, config, start, limits).unwrap(),
        Owner::with_two_kernels(gpu, codec, config, start, limits).unwrap(),
    ]
}

#[test]
fn the_mean_that_never_leaves_the_device_is_that_of_the_definition_to_the_bit() {
    // Parameters of zero, moved by 1 times the mean, are the mean: no operation has anything to round.
    let config = Config::Sgd(Sgd { momentum: 0.0, weight_decay: 0.0 });
    for gpu in gpus() {
        for (index, codec) in codecs().into_iter().enumerate() {
            // Every codec with every cut, at some of its lengths; every length with several codecs.
            for (limits, lengths) in [
                (Limits::of(&gpu), spread(&LENGTHS, index, 4)),
                (narrow(&gpu), spread(&[2305, 4097], index, 2)),
                (TINY, spread(&[1, 9, 65, 257, 2305], index, 5)),
            ] {
                for (place, elements) in lengths.into_iter().enumerate() {
                    let zeros = vec![0.0; elements];
                    for (way, mut owner) in
                        owners(&gpu, &codec, &config, &zeros, limits).into_iter().enumerate()
                    {
                        // Up, down and up again: buffers of a larger world serve a smaller one.
                        for ranks in if place == 0 { vec![1, 3, 2, 17, 5] } else { vec![3, 2] } {
                            let mut random = Random(SEED + (ranks * elements) as u64);
                            let (packets, weights) = packets(&codec, ranks, elements, &mut random);
                            let packets: Vec<&[u32]> = packets.iter().map(Vec::as_slice).collect();
                            let mut mean_state = vec![0; codec.mean_state_words(ranks, elements)];
                            let mut mean = zeros.clone();
                            codec.average(&packets, &weights, &mut mean_state, &mut mean).unwrap();
                            owner.set_mean_state(&[]).unwrap();
                            owner.restore(&zeros, &config.state(elements)).unwrap();
                            let mut found = vec![f32::NAN; elements];
                            owner.step(&codec, &packets, &weights, 1.0, &mut found).unwrap();
                            let want: Vec<u32> = mean.iter().map(|mean| (0.0 - mean).to_bits()).collect();
                            let found: Vec<u32> = found.iter().map(|value| value.to_bits()).collect();
                            assert!(
                                found == want,
                                "{}, {codec:?}, {limits:?}, {elements} elements, {ranks} ranks, way {way}, seed {SEED}",
                                gpu.info().name
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn mean_and_optimizer_in_one_kernel_or_two_are_within_the_bounds_of_the_twins() {
    for gpu in gpus() {
        for (index, codec) in codecs().into_iter().enumerate() {
            let cuts = [(Limits::of(&gpu), 4097), (narrow(&gpu), 2305), (TINY, 257)];
            for (place, (limits, elements)) in cuts.into_iter().enumerate() {
                // Three in a row have both kernels among them; each meets every cut, with other codecs.
                let config = optimizers()[(index + place) % 4];
                let mut random = Random(SEED);
                let start = parameters(&mut random, elements);
                for mut owner in owners(&gpu, &codec, &config, &start, limits) {
                    let mut mean_state = vec![0; codec.mean_state_words(3, elements)];
                    for step in 0..STEPS / 2 {
                        let (packets, weights) = packets(&codec, 3, elements, &mut random);
                        let packets: Vec<&[u32]> = packets.iter().map(Vec::as_slice).collect();
                        let mut mean = vec![0.0; elements];
                        codec.average(&packets, &weights, &mut mean_state, &mut mean).unwrap();
                        let (before, old) = (owner.state().unwrap(), owner.parameters().unwrap());
                        let (_, _, bounds) = bounds(&before, 0.01, &mean, &old);
                        let mut found = vec![f32::NAN; elements];
                        owner.step(&codec, &packets, &weights, 0.01, &mut found).unwrap();
                        compare(&numbers(&owner.state().unwrap(), &found), &bounds).unwrap_or_else(|error| {
                            panic!(
                                "{}, {codec:?}, {config:?}, {limits:?}, step {step}: {error}",
                                gpu.info().name
                            )
                        });
                    }
                    assert_eq!(owner.mean_state().unwrap(), mean_state);
                }
            }
        }
    }
}

#[test]
fn packets_that_do_not_fit_are_refused_before_anything_moves() {
    for gpu in gpus() {
        for codec in codecs() {
            for config in optimizers() {
                for mut owner in owners(&gpu, &codec, &config, &[1.0; 64], Limits::of(&gpu)) {
                    let (packets, _) = packets(&codec, 2, 64, &mut Random(SEED));
                    let packets: Vec<&[u32]> = packets.iter().map(Vec::as_slice).collect();
                    let short = [packets[0], &packets[1][1..]];
                    let mut out = [0.0; 64];
                    let mut step = |codec: &Codec, packets: &[&[u32]], weights: &[u32], rate| {
                        owner.step(codec, packets, weights, rate, &mut out).unwrap_err()
                    };
                    assert!(matches!(step(&codec, &packets, &[0, 0], 0.1), GpuError::Average(_)));
                    assert!(matches!(step(&codec, &packets, &[1], 0.1), GpuError::Average(_)));
                    assert!(matches!(step(&codec, &short, &[1, 1], 0.1), GpuError::Average(_)));
                    let other = if codec == Codec::F32 { Codec::F16 } else { Codec::F32 };
                    assert!(matches!(step(&other, &packets, &[1, 1], 0.1), GpuError::Codec { .. }));
                    assert!(matches!(step(&codec, &packets, &[1, 1], f32::NAN), GpuError::Optimizer(_)));
                    assert_eq!(owner.parameters().unwrap(), [1.0; 64]);
                    assert_eq!(owner.state().unwrap(), config.state(64));
                }
            }
        }
    }
}

#[test]
fn every_fused_kernel_is_one_of_the_optimizers_behind_the_fragments_of_a_mean() {
    for shader in FUSED {
        let body = [OPTIM_SGD, OPTIM_ADAMW].into_iter().find(|optimizer| optimizer.body == shader.body);
        let body = body.unwrap_or_else(|| panic!("{} has a body of its own", shader.path));
        assert!(shader.path.starts_with(body.path), "{}", shader.path);
    }
}

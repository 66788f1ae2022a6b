//! Optimizers to which momenta travel, and checkpoints of all optimizers, over the in-process mesh.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

#[path = "common/fleet.rs"]
mod fleet;
#[path = "common/random.rs"]
mod random;

use std::num::NonZeroU32;

use fleet::fleet;
use gradwire::codec::{Codec, CodecId, Step, loco};
use gradwire::optim::{self, AdamW, Exchanged, OneBitAdam, OneBitLamb, Tensors, ZeroOneAdam};
use gradwire::shard::ShardLayout;
use gradwire::sync::powersgd::{self, Shape};
use gradwire::sync::{Checkpoint, Config, NonFinite, Scale, Scheme, StepReport, SyncError, Synchronizer};
use random::Random;

const SEED: u64 = 0x6772_6164_7769_7265;
const RATE: f32 = 0.03;

/// Every eleventh element never has a gradient.
fn is_unused(element: usize) -> bool {
    element % 11 == 7
}

fn gradient(rank: u32, step: u64, n: usize) -> Vec<f32> {
    let mut random = Random(SEED ^ (u64::from(rank) << 32) ^ step);
    let mut element = |i| if is_unused(i) { 0.0 } else { random.unit() as f32 * 0.25 + 0.1 };
    (0..n).map(&mut element).collect()
}

fn samples(rank: u32) -> u32 {
    [3, 0, 7, 1, 12][rank as usize]
}

fn initial(n: usize) -> Vec<f32> {
    let mut random = Random(SEED);
    (0..n).map(|_| random.unit() as f32).collect()
}

fn fixed() -> Codec {
    let reset_every = NonZeroU32::new(5);
    Codec::Loco(loco::Config { scale_log2: 5, reset_every, ..loco::Config::default() })
}

/// Every codec of this build with its default parameters, and LoCo with a scale for these gradients.
fn codecs() -> Vec<Codec> {
    CodecId::ALL.into_iter().map(Codec::new).chain([fixed()]).collect()
}

fn steps(count: u32) -> NonZeroU32 {
    NonZeroU32::new(count).unwrap()
}

fn adam() -> AdamW {
    AdamW { weight_decay: 0.0, ..AdamW::default() }
}

fn one_bit_adam(warmup: u32) -> optim::Config {
    optim::Config::OneBitAdam(OneBitAdam { adam: adam(), warmup: steps(warmup) })
}

fn one_bit_lamb(warmup: u32) -> optim::Config {
    let warmup = steps(warmup);
    optim::Config::OneBitLamb(OneBitLamb { adam: adam(), warmup, ..OneBitLamb::default() })
}

fn zero_one_adam(doubling: u32) -> optim::Config {
    let doubling = steps(doubling);
    optim::Config::ZeroOneAdam(ZeroOneAdam { adam: adam(), doubling, freeze_after: None })
}

/// Sizes of tensors, some of which cross the borders of every shard.
fn sizes(n: usize) -> Vec<usize> {
    let mut rest = n;
    let mut sizes = Vec::new();
    for size in [1, 30, 5, 64, 7, 100].into_iter().cycle() {
        if rest <= size {
            sizes.push(rest);
            return sizes;
        }
        sizes.push(size);
        rest -= size;
    }
    sizes
}

fn config(scheme: impl Into<Scheme>, optimizer: optim::Config, n: usize) -> Config {
    Config { scale: Scale::Fixed, tensors: sizes(n), ..Config::new(scheme, optimizer) }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// `count` steps on every rank; the parameters' bits after every step, and the reports, by rank.
fn train(world_size: u32, count: u64, n: usize, config: &Config) -> Vec<(Vec<Vec<u32>>, Vec<StepReport>)> {
    fleet(world_size, |rank, communicator| {
        let mut parameters = initial(n);
        let mut synchronizer = Synchronizer::new(communicator, config.clone(), &parameters).unwrap();
        let run = (1..=count).map(|step| {
            let gradient = gradient(rank, step, n);
            let report = synchronizer.step(&gradient, samples(rank), RATE, &mut parameters).unwrap();
            (bits(&parameters), report)
        });
        let run = run.unzip();
        synchronizer.finish().unwrap();
        run
    })
}

/// The same training without packets or messages: the momenta of all ranks, and the optimizers of all shards.
fn reference(world_size: u32, count: u64, n: usize, codec: Codec, optimizer: optim::Config) -> Vec<Vec<u32>> {
    let layout = ShardLayout::new(n, world_size as usize, codec.unit().elements);
    let tensors = Tensors::new(&sizes(n));
    let mut states: Vec<_> =
        layout.ranges().map(|shard| (shard.clone(), optimizer.shard_state(&tensors, shard))).collect();
    let mut parameters = initial(n);
    let mut residuals = vec![vec![0; codec.state_words(n)]; world_size as usize];
    // Of each owner: it depends on where shards begin.
    let mean_state =
        |shard: std::ops::Range<usize>| vec![0; codec.mean_state_words(world_size as usize, shard.len())];
    let mut mean_states: Vec<_> = layout.ranges().map(mean_state).collect();
    let mut momenta = vec![vec![0.0_f32; n]; world_size as usize];
    let weights: Vec<u32> = (0..world_size).map(samples).collect();
    let decay = optimizer.momentum_decay().unwrap();
    let mut history = Vec::new();
    for step in 1..=count {
        let exchanged = states[0].1.exchanged();
        let exact = exchanged == Exchanged::ExactGradient;
        let used = if exact { Codec::F32 } else { codec };
        let packets: Vec<Vec<u32>> = (0..world_size)
            .map(|rank| {
                let gradient = gradient(rank, step, n);
                let momentum = &mut momenta[rank as usize];
                for (m, g) in momentum.iter_mut().zip(&gradient) {
                    *m = decay * *m + (1.0 - decay) * *g;
                }
                let sent = if exact { &gradient } else { &*momentum };
                let residual = &mut residuals[rank as usize];
                let mut packet = vec![0; used.packet_words(n)];
                let state = if exact { &mut [][..] } else { residual };
                used.encode(Step::new(step).unwrap(), sent.into(), state, &mut packet);
                packet
            })
            .collect();
        let mut mean = vec![0.0; n];
        for (shard, state) in layout.ranges().zip(&mut mean_states) {
            let start = used.packet_words(shard.start);
            let words = start..start + used.packet_words(shard.len());
            let packets: Vec<&[u32]> = packets.iter().map(|packet| &packet[words.clone()]).collect();
            let state = if exact { &mut [][..] } else { state };
            used.average(&packets, &weights, state, &mut mean[shard]).unwrap();
        }
        let partials: Vec<_> = states
            .iter_mut()
            .filter(|(_, state)| state.looks_at_tensors())
            .map(|(shard, state)| state.partials(&mean[shard.clone()], &parameters[shard.clone()]))
            .collect();
        for (shard, state) in &mut states {
            let own = &mut parameters[shard.clone()];
            if partials.is_empty() {
                state.step(RATE, &mean[shard.clone()], own);
            } else {
                state.apply(RATE, &partials, own);
            }
        }
        history.push(bits(&parameters));
    }
    history
}

#[test]
fn every_rank_has_the_bits_of_a_run_without_ranks() {
    for world_size in [1, 2, 3, 5] {
        for n in [1, 8, 9, 65, 257, 700] {
            for codec in codecs() {
                for optimizer in [one_bit_adam(3), one_bit_lamb(3), zero_one_adam(1)] {
                    let expected = reference(world_size, 8, n, codec, optimizer);
                    for (rank, (history, _)) in
                        train(world_size, 8, n, &config(codec, optimizer, n)).iter().enumerate()
                    {
                        assert_eq!(
                            *history, expected,
                            "rank {rank} of {world_size}, {n} parameters, {codec:?}, {optimizer:?}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn the_warm_up_of_one_bit_adam_is_adamw_on_f32_and_then_it_is_not() {
    let n = 300;
    let adamw = train(3, 9, n, &config(Codec::F32, optim::Config::AdamW(adam()), n));
    let one_bit = train(3, 9, n, &config(fixed(), one_bit_adam(6), n));
    for (adamw, one_bit) in adamw.iter().zip(&one_bit) {
        assert_eq!(adamw.0[..6], one_bit.0[..6]);
        assert_ne!(adamw.0[6], one_bit.0[6]);
    }
    // 0/1 Adam measures in steps 1 to 5, then in every second one.
    let zero_one = train(3, 9, n, &config(fixed(), zero_one_adam(4), n));
    for (adamw, zero_one) in adamw.iter().zip(&zero_one) {
        assert_eq!(adamw.0[..5], zero_one.0[..5]);
        assert_ne!(adamw.0[5], zero_one.0[5]);
    }
}

#[test]
fn one_rank_without_loss_is_momentum_descent_under_a_frozen_variance() {
    let n = 100;
    let AdamW { beta1, beta2, epsilon, .. } = adam();
    let (mut m, mut v, mut x) = (vec![0.0_f32; n], vec![0.0_f32; n], initial(n));
    let (mut power1, mut power2) = (1.0_f64, 1.0_f64);
    let history = &train(1, 12, n, &config(Codec::F32, one_bit_adam(4), n))[0].0;
    for (step, got) in (1..).zip(history) {
        power1 *= f64::from(beta1);
        if step <= 4 {
            power2 *= f64::from(beta2);
        }
        let rate = (f64::from(RATE) / (1.0 - power1)) as f32;
        let unbias = (1.0 / (1.0 - power2)) as f32;
        for (i, g) in gradient(0, step, n).into_iter().enumerate() {
            m[i] = beta1 * m[i] + (1.0 - beta1) * g;
            if step <= 4 {
                v[i] = beta2 * v[i] + (1.0 - beta2) * (g * g);
            }
            x[i] -= rate * (m[i] / ((v[i] * unbias).sqrt() + epsilon));
        }
        assert_eq!(*got, bits(&x), "step {step}");
    }
}

#[test]
fn a_parameter_without_gradients_never_moves() {
    let n = 200;
    for codec in codecs() {
        for optimizer in [one_bit_adam(3), one_bit_lamb(3), zero_one_adam(2)] {
            for (history, _) in train(3, 12, n, &config(codec, optimizer, n)) {
                for (i, start) in bits(&initial(n)).into_iter().enumerate() {
                    let moved = history.iter().any(|parameters| parameters[i] != start);
                    assert_eq!(moved, !is_unused(i), "element {i} under {optimizer:?}, {codec:?}");
                }
            }
        }
    }
}

#[test]
fn reports_say_what_traveled_and_what_it_cost() {
    let n = 960;
    let exchanged = |reports: &[StepReport]| -> String {
        let letter = |report: &StepReport| match report.exchanged {
            Exchanged::Gradient => 'g',
            Exchanged::ExactGradient => 'e',
            Exchanged::Momentum => 'm',
        };
        reports.iter().map(letter).collect()
    };
    let cases = [
        (optim::Config::AdamW(adam()), "gggggggggg"),
        (one_bit_adam(3), "eeemmmmmmm"),
        (one_bit_lamb(4), "eeeemmmmmm"),
        // Distances 1, 1, 2, 2, 4: steps 1, 2, 3, 5, 7, 11.
        (zero_one_adam(2), "eeemememmm"),
    ];
    for (optimizer, expected) in cases {
        for (_, reports) in train(3, 10, n, &config(fixed(), optimizer, n)) {
            assert_eq!(exchanged(&reports), expected, "{optimizer:?}");
            for report in &reports {
                // Two shards of 320 elements, each behind a header of 32 bytes.
                let (bytes, scale) = match report.exchanged {
                    Exchanged::ExactGradient => (2 * (32 + 320 * 4), None),
                    _ => (2 * (32 + 320 / 2), Some(5)),
                };
                assert_eq!((report.gradient_packet_bytes, report.scale_log2), (bytes, scale), "{report:?}");
                assert_eq!(report.reset, scale.is_some() && report.step % 5 == 0, "{report:?}");
            }
        }
    }
}

#[test]
fn an_automatic_scale_is_agreed_on_when_the_first_momentum_travels() {
    let n = 300;
    let automatic = Config { scale: Scale::Auto, ..config(fixed(), one_bit_adam(2), n) };
    for (_, reports) in train(2, 4, n, &automatic) {
        let scales: Vec<_> = reports.iter().map(|report| report.scale_log2).collect();
        // Momenta after three steps are 0.027 from the gradients' mean and 0.023 from the rest, together 0.035: times
        // 2^6 = 2.3 codes. Of the gradients themselves the scale would be 2^4.
        assert_eq!(scales, [None, None, Some(6), Some(6)]);
    }
}

/// A run in which step `bad`, on rank 1, has a gradient that is not finite; or in which it does not take place.
fn poisoned(config: &Config, n: usize, bad: u64, poison: Option<f32>) -> Vec<Vec<u32>> {
    fleet(3, |rank, communicator| {
        let mut parameters = initial(n);
        let mut synchronizer = Synchronizer::new(communicator, config.clone(), &parameters).unwrap();
        for step in 1..=8 {
            let mut gradient = gradient(rank, step, n);
            if step == bad {
                let Some(poison) = poison else { continue };
                if rank == 1 {
                    gradient[3] = poison;
                    gradient[n - 1] = poison;
                }
                let before = bits(&parameters);
                match synchronizer.step(&gradient, 1, RATE, &mut parameters) {
                    Ok(report) => {
                        assert!(report.skipped, "{report:?}");
                        assert_eq!(report.nonfinite, [0, 2, 0], "rank {rank}");
                    }
                    Err(error) => {
                        let message = error.to_string();
                        let expected = format!("rank 1 has 2 of {n} gradient elements not finite");
                        assert!(message.ends_with(&expected), "{message}");
                    }
                }
                assert_eq!(bits(&parameters), before, "rank {rank}");
                continue;
            }
            synchronizer.step(&gradient, 1, RATE, &mut parameters).unwrap();
        }
        synchronizer.finish().unwrap();
        bits(&parameters)
    })
}

#[test]
fn a_gradient_that_is_not_finite_leaves_no_trace_in_momentum_or_optimizer() {
    let n = 100;
    for optimizer in [one_bit_adam(3), one_bit_lamb(3), zero_one_adam(1)] {
        for nonfinite in [NonFinite::Fail, NonFinite::Skip] {
            let config = Config { nonfinite, ..config(Codec::F32, optimizer, n) };
            // In the warm-up, in its last step, in the first one with momenta, and later.
            for bad in [2, 3, 4, 6] {
                for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let with = poisoned(&config, n, bad, Some(poison));
                    assert_eq!(with, poisoned(&config, n, bad, None), "{poison} in step {bad}: {config:?}");
                }
            }
        }
    }
}

/// The truth of [`regression`].
fn truth() -> Vec<f32> {
    initial(40).into_iter().map(|value| value + 1.5).collect()
}

/// Least squares of 40 unknowns, data split over three ranks: the mean squared error after 400 steps from 1.
fn regression(codec: Codec, optimizer: optim::Config, rate: f32) -> f64 {
    let truth = truth();
    let (n, count, batch) = (truth.len(), 400, 16);
    let errors = fleet(3, |rank, communicator| {
        let mut x = vec![1.0; n];
        let config = Config { scale: Scale::Fixed, tensors: vec![25, 15], ..Config::new(codec, optimizer) };
        let mut synchronizer = Synchronizer::new(communicator, config, &x).unwrap();
        for step in 1..=count {
            let mut random = Random(SEED ^ (u64::from(rank) << 40) ^ step);
            let mut gradient = vec![0.0_f32; n];
            for _ in 0..batch {
                let a: Vec<f32> = (0..n).map(|_| random.unit() as f32).collect();
                let noise = random.unit() as f32 * 0.1;
                let dot: f32 = a.iter().zip(&x).zip(&truth).map(|((a, x), t)| a * (x - t)).sum();
                for (g, a) in gradient.iter_mut().zip(&a) {
                    *g += (dot + noise) * a / batch as f32;
                }
            }
            // To a tenth over the run, as schedules do.
            let rate = rate * (1.0 - 0.9 * (step as f32 / count as f32));
            synchronizer.step(&gradient, batch, rate, &mut x).unwrap();
        }
        synchronizer.finish().unwrap();
        x.iter().zip(&truth).map(|(x, t)| f64::from(x - t).powi(2)).sum::<f64>() / n as f64
    });
    errors[0]
}

#[test]
fn compressed_optimizers_end_near_adamw() {
    let start: f64 = truth().iter().map(|t| f64::from(t - 1.0).powi(2)).sum::<f64>() / 40.0;
    let adamw = regression(Codec::F32, optim::Config::AdamW(adam()), 0.02);
    let lamb = regression(Codec::F32, one_bit_lamb(u32::MAX), 0.02);
    assert!(adamw < start / 20_000.0 && lamb < start / 20_000.0, "AdamW {adamw}, LAMB {lamb}, from {start}");
    // LoCo at a scale at which the first momenta are not clamped: what is clamped is not made up for by a variance that is
    // frozen. Of the others those with a scale per block, and with error feedback or 8 bits.
    let coarse = Codec::Loco(loco::Config { scale_log2: 5, reset_every: None, ..loco::Config::default() });
    let fit = |id: &CodecId| matches!(id.name(), "f32" | "sign" | "loco-block" | "block8" | "ef21");
    for codec in CodecId::ALL.into_iter().filter(fit).map(Codec::new).chain([coarse]) {
        for optimizer in [one_bit_adam(60), one_bit_lamb(60), zero_one_adam(8)] {
            let error = regression(codec, optimizer, 0.02);
            let case = format!("AdamW {adamw}, LAMB {lamb}, from {start}: {codec:?}, {optimizer:?}");
            assert!(error < start / 4000.0, "{error}, {case}");
        }
    }
}

/// All optimizers, those that gradients travel to in the codec included.
fn optimizers() -> [optim::Config; 6] {
    [
        optim::Config::Sgd(optim::Sgd::default()),
        optim::Config::AdamW(AdamW::default()),
        one_bit_adam(4),
        one_bit_lamb(4),
        zero_one_adam(1),
        optim::Config::OneBitAdam(OneBitAdam { adam: AdamW::default(), warmup: steps(1) }),
    ]
}

/// The steps of `span` on every rank, from `checkpoints` if there are any; the bits after each, and new checkpoints.
fn stretch(
    world_size: u32,
    n: usize,
    config: &Config,
    span: std::ops::Range<u64>,
    checkpoints: Option<&[Checkpoint]>,
) -> Vec<(Vec<Vec<u32>>, Checkpoint)> {
    fleet(world_size, |rank, communicator| {
        // A restored rank has its parameters from its checkpoint: those that it is made with must not matter.
        let mut parameters = if checkpoints.is_some() { vec![9.0; n] } else { initial(n) };
        let mut synchronizer = Synchronizer::new(communicator, config.clone(), &parameters).unwrap();
        if let Some(checkpoints) = checkpoints {
            synchronizer.restore(&checkpoints[rank as usize]).unwrap();
        }
        let history = span.clone().map(|step| {
            synchronizer.step(&gradient(rank, step, n), samples(rank), RATE, &mut parameters).unwrap();
            bits(&parameters)
        });
        let history = history.collect();
        let checkpoint = synchronizer.checkpoint().unwrap();
        synchronizer.finish().unwrap();
        (history, checkpoint)
    })
}

#[test]
fn a_restored_run_goes_on_with_the_bits_of_an_unbroken_one() {
    let n = 203;
    let powersgd = powersgd::Config { low_rank: 2, min_compression: 1, ..powersgd::Config::default() };
    let codecs =
        codecs().into_iter().flat_map(|codec| [(codec.into(), Scale::Fixed), (codec.into(), Scale::Auto)]);
    let schemes: Vec<(Scheme, Scale)> = codecs.chain([(powersgd.into(), Scale::Fixed)]).collect();
    for (turn, world_size) in [1, 3, 5].into_iter().enumerate() {
        for (row, optimizer) in optimizers().into_iter().enumerate() {
            for (column, &(scheme, scale)) in schemes.iter().enumerate() {
                let shapes = vec![Shape::new(0, &[9, 12]), Shape::new(108, &[10, 7])];
                let config = Config { scale, shapes, ..config(scheme, optimizer, n) };
                let whole = stretch(world_size, n, &config, 1..10, None);
                // One place of four each: every scheme and every optimizer meets all of them.
                let cut = [0, 2, 4, 6][(turn + row + column) % 4];
                let case = format!("{world_size} ranks, cut after {cut}: {config:?}");
                let first = stretch(world_size, n, &config, 1..cut + 1, None);
                let checkpoints: Vec<Checkpoint> = first.into_iter().map(|(_, saved)| saved).collect();
                let second = stretch(world_size, n, &config, cut + 1..10, Some(&checkpoints));
                for (whole, second) in whole.iter().zip(&second) {
                    assert_eq!(whole.0[cut as usize..], second.0, "{case}");
                    assert_eq!(whole.1, second.1, "{case}");
                }
            }
        }
    }
}

#[test]
fn every_part_of_a_checkpoint_matters() {
    // The guard of the test above: a checkpoint with one part left as in the beginning gives other bits.
    let n = 203;
    let config = config(fixed(), one_bit_adam(2), n);
    let whole = stretch(2, n, &config, 1..10, None);
    let fresh: Vec<Checkpoint> = stretch(2, n, &config, 1..1, None).into_iter().map(|(_, c)| c).collect();
    let saved: Vec<Checkpoint> = stretch(2, n, &config, 1..5, None).into_iter().map(|(_, c)| c).collect();
    type Spoil = fn(&mut Checkpoint, &Checkpoint);
    let spoils: [Spoil; 4] = [
        |saved, fresh| saved.codec_state.clone_from(&fresh.codec_state),
        |saved, fresh| saved.momentum.clone_from(&fresh.momentum),
        |saved, fresh| saved.parameters.clone_from(&fresh.parameters),
        |saved, fresh| saved.optimizer.clone_from(&fresh.optimizer),
    ];
    for (index, spoil) in spoils.into_iter().enumerate() {
        let mut spoiled = saved.clone();
        for (spoiled, fresh) in spoiled.iter_mut().zip(&fresh) {
            spoil(spoiled, fresh);
        }
        let second = stretch(2, n, &config, 5..10, Some(&spoiled));
        assert_ne!(whole[0].0[4..], second[0].0, "part {index}");
    }
}

#[test]
fn a_checkpoint_that_does_not_fit_is_refused_by_name_on_all_ranks() {
    let n = 100;
    let config = config(fixed(), one_bit_adam(2), n);
    let of = |count: u64| -> Vec<Checkpoint> {
        stretch(2, n, &config, 1..count + 1, None).into_iter().map(|(_, saved)| saved).collect()
    };
    let (saved, later) = (of(3), of(4));
    let attempt = |checkpoints: [&Checkpoint; 2]| -> Vec<String> {
        fleet(2, |rank, communicator| {
            let mut synchronizer = Synchronizer::new(communicator, config.clone(), &initial(n)).unwrap();
            let result = synchronizer.restore(checkpoints[rank as usize]);
            result.map_err(|error| error.to_string()).unwrap_err()
        })
    };
    let errors = attempt([&saved[0], &later[1]]);
    assert!(errors[0].contains("step of the checkpoint 5, ours is 4"), "{errors:?}");
    assert!(errors[1].contains("step of the checkpoint"), "{errors:?}");
    let errors = attempt([&saved[0], &saved[0]]);
    assert_eq!(errors[1], "rank is 0 in the checkpoint, must be 1");
    assert!(errors[0].contains("rank 1 failed: rank is 0 in the checkpoint, must be 1"), "{errors:?}");
    let spoiled = |spoil: fn(&mut Checkpoint)| {
        let mut spoiled = saved[0].clone();
        spoil(&mut spoiled);
        attempt([&spoiled, &saved[1]]).swap_remove(0)
    };
    type Spoil = fn(&mut Checkpoint);
    let cases: [(Spoil, &str); 7] = [
        (|saved| saved.world_size = 3, "world size is 3 in the checkpoint, must be 2"),
        (|saved| saved.elements = 101, "number of parameters is 101 in the checkpoint, must be 100"),
        (|saved| saved.next_step = 0, "next step is 0 in the checkpoint, must be 1 to 18446744073709551614"),
        (|saved| saved.scale_log2 = Some(6), "scale_log2 is 6 in the checkpoint, must be 5"),
        (|saved| saved.momentum.truncate(99), "length of the momentum is 99 in the checkpoint, must be 100"),
        (|saved| saved.optimizer.optimizer = 2, "optimizer is 2 in the checkpoint, must be 3"),
        (
            |saved| saved.optimizer.vectors[1].truncate(50),
            "length of an optimizer vector is 50 in the checkpoint, must be 56",
        ),
    ];
    for (spoil, expected) in cases {
        assert_eq!(spoiled(spoil), expected);
    }
}

#[test]
fn tensors_that_are_not_the_parameters_are_refused_with_both_numbers() {
    fleet(1, |_, communicator| {
        let config = Config { tensors: vec![5, 6], ..Config::new(fixed(), one_bit_lamb(3)) };
        let error = Synchronizer::new(communicator, config, &[0.0; 10]).map(|_| ()).unwrap_err();
        assert!(matches!(error, SyncError::Tensors { given: 11, expected: 10 }), "{error}");
    });
}

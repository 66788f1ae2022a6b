//! What of a checkpoint is believed: nothing that no step leaves, and nothing that differs between ranks where it must not.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

#[path = "common/fleet.rs"]
mod fleet;
#[path = "common/random.rs"]
mod random;

use std::num::NonZeroU32;

use fleet::fleet;
use gradwire::codec::{Codec, CodecId, loco};
use gradwire::optim::{self, AdamW, OneBitAdam, OneBitLamb, RestoreError, Saved};
use gradwire::sync::powersgd::{self, Shape, State};
use gradwire::sync::scale::Moment;
use gradwire::sync::{Checkpoint, Config, Scale, Scheme, Synchronizer};
use random::Random;

/// 13 units of 8 for 2 ranks: shards of 56 and 44.
const N: usize = 100;
const SEED: u64 = 20_261_203;

fn gradient(rank: u32, step: u64) -> Vec<f32> {
    let mut random = Random(SEED ^ (u64::from(rank) << 32) ^ step);
    (0..N).map(|_| random.unit() as f32).collect()
}

fn config(scheme: impl Into<Scheme>, optimizer: optim::Config) -> Config {
    Config { scale: Scale::Fixed, tensors: vec![60, 40], ..Config::new(scheme, optimizer) }
}

fn loco() -> Codec {
    Codec::Loco(loco::Config { scale_log2: 2, ..loco::Config::default() })
}

fn adam() -> optim::Config {
    optim::Config::AdamW(AdamW::default())
}

fn one_bit_adam() -> optim::Config {
    let warmup = NonZeroU32::new(2).unwrap();
    optim::Config::OneBitAdam(OneBitAdam { warmup, ..OneBitAdam::default() })
}

fn one_bit_lamb() -> optim::Config {
    let warmup = NonZeroU32::new(2).unwrap();
    optim::Config::OneBitLamb(OneBitLamb { warmup, ..OneBitLamb::default() })
}

fn powersgd() -> Config {
    let method = powersgd::Config { low_rank: 2, min_compression: 1, ..powersgd::Config::default() };
    Config { shapes: vec![Shape::new(0, &[9, 10])], ..config(method, adam()) }
}

fn automatic(id: CodecId) -> Config {
    Config { scale: Scale::Auto, ..config(Codec::new(id), adam()) }
}

/// What both ranks have after 3 steps.
fn saved(config: &Config) -> Vec<Checkpoint> {
    fleet(2, |rank, communicator| {
        let mut parameters = vec![0.5; N];
        let mut synchronizer = Synchronizer::new(communicator, config.clone(), &parameters).unwrap();
        for step in 1..=3 {
            synchronizer.step(&gradient(rank, step), 1, 0.01, &mut parameters).unwrap();
        }
        let checkpoint = synchronizer.checkpoint().unwrap();
        synchronizer.finish().unwrap();
        checkpoint
    })
}

/// What ranks say that go on from these; a rank that refuses is as it was before.
fn attempt(config: &Config, checkpoints: &[Checkpoint]) -> Vec<Result<(), String>> {
    fleet(2, |rank, communicator| {
        let mut synchronizer = Synchronizer::new(communicator, config.clone(), &[0.5; N]).unwrap();
        let before = synchronizer.checkpoint().unwrap();
        let result = synchronizer.restore(&checkpoints[rank as usize]);
        let after = synchronizer.checkpoint().unwrap();
        match &result {
            Ok(()) => assert_eq!(after, checkpoints[rank as usize], "rank {rank}"),
            Err(error) => assert_eq!(format!("{after:?}"), format!("{before:?}"), "rank {rank}: {error}"),
        }
        result.map_err(|error| error.to_string())
    })
}

type Spoil = fn(&mut Checkpoint);

/// Rank 0's checkpoint is spoiled: it says why it refuses, and rank 1 hears of it.
fn refused(config: &Config, cases: &[(Spoil, &str)]) {
    let saved = saved(config);
    assert_eq!(attempt(config, &saved), [Ok(()), Ok(())], "{config:?}");
    for (index, (spoil, expected)) in cases.iter().enumerate() {
        let mut spoiled = saved.clone();
        spoil(&mut spoiled[0]);
        let results = attempt(config, &spoiled);
        let [own, other] = [0, 1].map(|rank: usize| results[rank].clone().unwrap_err());
        assert_eq!(own, *expected, "case {index}");
        assert!(other.contains("rank 0 failed: "), "case {index}: {other}");
    }
}

#[test]
fn numbers_of_the_run_that_no_step_leaves_are_refused() {
    let most = "must be 1 to 18446744073709551614";
    refused(
        &config(loco(), one_bit_adam()),
        &[
            (|c| c.next_step = 0, &format!("next step is 0 in the checkpoint, {most}")),
            (
                |c| c.next_step = u64::MAX,
                &format!("next step is 18446744073709551615 in the checkpoint, {most}"),
            ),
            (
                |c| c.optimizer.counters[0] = 4,
                "count of optimizer steps is 4 in the checkpoint, must be 0 to 3",
            ),
            (
                |c| c.optimizer.counters[0] = u64::MAX,
                "count of optimizer steps is 18446744073709551615 in the checkpoint, must be 0 to 3",
            ),
            (|c| c.parameters[7] = f32::NAN, "parameters[7] is NaN in the checkpoint, must be finite"),
            (
                |c| c.momentum[99] = f32::NEG_INFINITY,
                "momentum[99] is -inf in the checkpoint, must be finite",
            ),
            (|c| c.scale_log2 = None, "scale_log2 is none in the checkpoint, must be 2"),
            (|c| c.scale_log2 = Some(-3), "scale_log2 is -3 in the checkpoint, must be 2"),
            (
                |c| c.moment = Some(Moment { sum_of_squares: 1.0, elements: 1 }),
                "last mean is in the checkpoint, this run has none",
            ),
            (
                |c| c.powersgd = Some(State { errors: vec![], factors: vec![] }),
                "state of powersgd is in the checkpoint, this run has none",
            ),
        ],
    );
    refused(
        &config(Codec::F32, adam()),
        &[(|c| c.scale_log2 = Some(0), "scale_log2 is 0 in the checkpoint, must be none")],
    );
}

#[test]
fn codec_state_that_no_encoder_leaves_is_refused() {
    refused(
        &config(loco(), adam()),
        &[(
            |c| c.codec_state[25] = 0x0100,
            "codec state in the checkpoint: word 25 of the state has 0x00000100 behind the last of 100 elements, \
             must be 0 there",
        )],
    );
    refused(
        &config(Codec::new(CodecId::Ef21), adam()),
        &[
            (
                |c| c.codec_state[3] = f32::NAN.to_bits(),
                "codec state in the checkpoint: word 3 of the state is NaN, must be finite",
            ),
            (
                |c| c.mean_state[256] = f32::INFINITY.to_bits(),
                "codec state in the checkpoint: word 256 of the mean state is inf, must be finite",
            ),
        ],
    );
    refused(
        &config("topk:residual_bits=8".parse::<Codec>().unwrap(), adam()),
        &[(
            |c| c.codec_state[1024] |= 0xFF,
            "codec state in the checkpoint: word 1024 of the state has a residual exponent of 255, must be 0 to 254",
        )],
    );
}

#[test]
fn a_scale_or_a_last_mean_that_no_codec_has_is_refused() {
    refused(
        &automatic(CodecId::IntSgd),
        &[
            (|c| c.scale_log2 = Some(65), "scale_log2 is 65, intsgd takes -64 to 64"),
            (
                |c| c.moment = Some(Moment { sum_of_squares: f64::NAN, elements: 1 }),
                "sum of squares of the last mean is NaN in the checkpoint, must be finite and not negative",
            ),
            (
                |c| c.moment = Some(Moment { sum_of_squares: -1.0, elements: 1 }),
                "sum of squares of the last mean is -1 in the checkpoint, must be finite and not negative",
            ),
            (
                |c| c.moment = Some(Moment { sum_of_squares: 1.0, elements: 101 }),
                "number of elements of the last mean is 101 in the checkpoint, must be 0 to 100",
            ),
        ],
    );
}

#[test]
fn optimizer_state_that_no_step_leaves_is_refused() {
    const FINITE: &str = "must be -3.4028234663852886e38 to 3.4028234663852886e38";
    const POSITIVE: &str = "must be 0.0 to 3.4028234663852886e38";
    let said = |what: &str| format!("optimizer's {what}");
    refused(
        &config(loco(), optim::Config::Sgd(optim::Sgd::default())),
        &[(
            |c| c.optimizer.vectors[0][9] = f32::NAN,
            &said(&format!("velocity[9] is NaN in the checkpoint, {FINITE}")),
        )],
    );
    refused(
        &config(loco(), adam()),
        &[
            (
                |c| c.optimizer.vectors[0][55] = f32::INFINITY,
                &said(&format!("mean[55] is inf in the checkpoint, {FINITE}")),
            ),
            (
                |c| c.optimizer.vectors[1][1] = -1.0e-30,
                &said(&format!("square[1] is -1.0000000031710769e-30 in the checkpoint, {POSITIVE}")),
            ),
            (
                |c| c.optimizer.vectors[1][0] = f32::NAN,
                &said(&format!("square[0] is NaN in the checkpoint, {POSITIVE}")),
            ),
            (
                |c| c.optimizer.scalars[1] = 1.25,
                &said("power of beta2[0] is 1.25 in the checkpoint, must be 0.0 to 1.0"),
            ),
            (
                |c| c.optimizer.scalars[0] = f64::NAN,
                &said("power of beta1[0] is NaN in the checkpoint, must be 0.0 to 1.0"),
            ),
        ],
    );
    refused(
        &config(loco(), one_bit_lamb()),
        &[
            (
                |c| c.optimizer.vectors[2][3] = -1.0,
                &said(&format!("fresh square[3] is -1.0 in the checkpoint, {POSITIVE}")),
            ),
            // A variance that was never measured, under a count of steps that measured it.
            (
                |c| c.optimizer.scalars[1] = 1.0,
                &said("power of beta2[0] is 1.0 in the checkpoint, must be 0.0 to 0.9999999999999999"),
            ),
            (
                |c| c.optimizer.scalars[6] = f64::INFINITY,
                &said("sum of ratios[1] is inf in the checkpoint, must be 0.0 to 10.00001"),
            ),
            (
                |c| c.optimizer.scalars[4] = 1.0e-300,
                &said("weight of ratios[0] is 1e-300 in the checkpoint, must be 0.10000002384185791 to 1.0"),
            ),
            (
                |c| c.optimizer.scalars[8] = -0.5,
                &said("factor of ratios[1] is -0.5 in the checkpoint, must be 0.5 to 4.0"),
            ),
        ],
    );
}

#[test]
fn powersgd_without_its_state_or_with_factors_that_no_step_leaves_is_refused() {
    let missing = "state of powersgd is missing in the checkpoint, this run has one";
    refused(
        &powersgd(),
        &[
            (|c| c.powersgd = None, missing),
            (
                |c| c.powersgd.as_mut().unwrap().factors[3] = f32::NAN,
                "powersgd state: element 3 of the factors is NaN, must be a number of at most 2 in magnitude",
            ),
            (|c| c.scale_log2 = Some(1), "scale_log2 is 1 in the checkpoint, must be none"),
            (
                |c| c.moment = Some(Moment { sum_of_squares: 1.0, elements: 1 }),
                "last mean is in the checkpoint, this run has none",
            ),
        ],
    );
}

/// Rank 1's checkpoint is another, though one that a step may leave: both ranks refuse, and rank 0 says what differs.
fn differs(config: &Config, spoil: Spoil, expected: &str) {
    let mut checkpoints = saved(config);
    spoil(&mut checkpoints[1]);
    let results = attempt(config, &checkpoints);
    let [own, other] = [0, 1].map(|rank: usize| results[rank].clone().unwrap_err());
    assert!(own.starts_with(expected), "{own}");
    let name = expected.trim_start_matches("rank 1 has ").split(" checkpoint").next().unwrap();
    assert!(other.contains(name), "{other}");
}

#[test]
fn ranks_that_differ_in_what_all_of_them_compute_alike_are_refused_by_all() {
    let bits = one_bit_adam;
    differs(
        &config(loco(), bits()),
        |c| c.optimizer.counters[0] = 2,
        "rank 1 has count of optimizer steps in the checkpoint 2, ours is 3",
    );
    differs(&config(loco(), bits()), |c| c.next_step = 5, "rank 1 has step of the checkpoint 5, ours is 4");
    differs(
        &automatic(CodecId::Loco),
        |c| c.scale_log2 = Some(-3),
        "rank 1 has scale of the checkpoint -3, ours is ",
    );
    differs(
        &automatic(CodecId::Loco),
        |c| c.scale_log2 = None,
        "rank 1 has scale of the checkpoint none, ours is ",
    );
    differs(
        &automatic(CodecId::IntSgd),
        |c| c.moment = None,
        "rank 1 has number of last means in the checkpoint 0, ours is 1",
    );
    differs(
        &config(loco(), one_bit_lamb()),
        // The ratio of a tensor of which rank 1 has nothing.
        |c| c.optimizer.scalars[5] = 1.5,
        "rank 1 has digest of the optimizer's scalars in the checkpoint 0x",
    );
    differs(
        &powersgd(),
        |c| c.powersgd.as_mut().unwrap().factors[0] *= -1.0,
        "rank 1 has digest of powersgd's factors in the checkpoint 0x",
    );
}

#[test]
fn a_count_of_steps_at_its_end_overflows_nothing() {
    for config in [one_bit_adam(), one_bit_lamb(), optim::Config::ZeroOneAdam(optim::ZeroOneAdam::default())]
    {
        let mut state = config.state(3);
        state.step(0.01, &[0.5, 1.0, -1.0], &mut [0.5; 3]);
        let mut saved = state.save(&config);
        saved.counters[0] = u64::MAX;
        state.restore(&config, &saved).unwrap();
        let mut parameters = [0.5; 3];
        for _ in 0..2 {
            state.step(0.01, &[0.1; 3], &mut parameters);
        }
        assert!(parameters.iter().all(|value| value.is_finite()), "{parameters:?}");
        assert_eq!(state.save(&config).counters, [u64::MAX]);
    }
}

#[test]
fn an_optimizer_that_refuses_a_state_is_as_it_was() {
    let config = adam();
    let mut state = config.state(3);
    state.step(0.01, &[0.5, 1.0, -1.0], &mut [0.5; 3]);
    let before = state.save(&config);
    let spoiled = |spoil: fn(&mut Saved)| {
        let mut spoiled = Saved::new(2, vec![], vec![0.5; 2], vec![vec![0.25; 3]; 2]);
        spoil(&mut spoiled);
        spoiled
    };
    let mut refuse = |spoil| state.restore(&config, &spoiled(spoil)).unwrap_err();
    let last = refuse(|saved| saved.vectors[1][2] = -0.25);
    assert!(matches!(last, RestoreError::Range { name: "square", index: 2, found: -0.25, .. }), "{last}");
    let long = refuse(|saved| saved.scalars.push(0.5));
    assert_eq!(long.to_string(), "number of optimizer scalars is 3 in the checkpoint, must be 2");
    assert_eq!(state.save(&config), before);
    state.restore(&config, &spoiled(|_| {})).unwrap();
    assert_eq!(state.save(&config), spoiled(|_| {}));
}

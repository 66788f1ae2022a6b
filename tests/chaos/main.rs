//! Seeded runs of 64 ranks on a virtual clock with random faults: each ends in the right mean or in a typed error that
//! names a rank which had a fault. `GRADWIRE_CHAOS_RUNS=1000 GRADWIRE_CHAOS_SEED=7` runs as many, from that seed on.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod plan;
#[path = "../common/random.rs"]
mod random;
mod verdict;

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use gradwire::codec::{Codec, Step, loco};
use gradwire::optim;
use gradwire::sync::{Config, Scale, SyncError, Synchronizer};
use gradwire::transport::sim::{self, Fault, Killed, SimConfig};
use gradwire::transport::{Communicator, Limits, Mesh, Rank};
use plan::Plan;
use random::Random;
use verdict::{Outcome, Tally, verdict};

const RANKS: u32 = 64;
const ELEMENTS: usize = 300;
const STEPS: u64 = 2;
const SILENCE: Duration = Duration::from_secs(10);
/// No run may take longer by its own clock: start, steps and end with all short faults, then one deadline.
const VIRTUAL_LIMIT: Duration = Duration::from_secs(300);
/// No run may take longer by the clock on the wall.
const WATCHDOG: Duration = Duration::from_secs(120);

fn codec() -> Codec {
    Codec::Loco(loco::Config { scale_log2: 4, ..loco::Config::default() })
}

fn gradient(rank: u32, step: u64) -> Vec<f32> {
    let mut random = Random((u64::from(rank) << 32) ^ step);
    (0..ELEMENTS).map(|_| random.unit() as f32 * 0.25).collect()
}

fn initial() -> Vec<f32> {
    let mut random = Random(1);
    (0..ELEMENTS).map(|_| random.unit() as f32).collect()
}

fn samples(rank: u32) -> u32 {
    rank % 5
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// The same steps without ranks, shards or packets.
fn reference() -> Vec<u32> {
    let (codec, mut parameters) = (codec(), initial());
    let mut states = vec![vec![0; codec.state_words(ELEMENTS)]; RANKS as usize];
    let mut mean_state = vec![0; codec.mean_state_words(RANKS as usize, ELEMENTS)];
    let mut optimizer = optim::Config::Sgd(optim::Sgd::default()).state(ELEMENTS);
    let weights: Vec<u32> = (0..RANKS).map(samples).collect();
    for step in 1..=STEPS {
        let encode = |(rank, state): (u32, &mut Vec<u32>)| {
            let mut packet = vec![0; codec.packet_words(ELEMENTS)];
            codec.encode(Step::new(step).unwrap(), (&gradient(rank, step)).into(), state, &mut packet);
            packet
        };
        let packets: Vec<Vec<u32>> = (0..RANKS).zip(&mut states).map(encode).collect();
        let packets: Vec<&[u32]> = packets.iter().map(Vec::as_slice).collect();
        let mut mean = vec![0.0; ELEMENTS];
        codec.average(&packets, &weights, &mut mean_state, &mut mean).unwrap();
        optimizer.step(0.125, &mean, &mut parameters);
    }
    bits(&parameters)
}

fn train(mesh: sim::SimMesh) -> Outcome {
    let rank = mesh.world().rank().0;
    let mut parameters = initial();
    let optimizer = optim::Config::Sgd(optim::Sgd::default());
    let config = Config { scale: Scale::Fixed, ..Config::new(codec(), optimizer) };
    let communicator = Communicator::new(Box::new(mesh), Limits::default());
    let steps = || -> Result<Synchronizer, SyncError> {
        let mut synchronizer = Synchronizer::new(communicator, config, &parameters)?;
        for step in 1..=STEPS {
            synchronizer.step(&gradient(rank, step), samples(rank), 0.125, &mut parameters)?;
        }
        Ok(synchronizer)
    };
    match steps().map(Synchronizer::finish) {
        Ok(Ok(_)) => Outcome::Parameters(bits(&parameters)),
        Ok(Err(error)) => Outcome::Unfinished(bits(&parameters), error),
        Err(error) => Outcome::Error(error),
    }
}

/// Runs a world to its end: what became of each rank. An error says how many ranks ended in time.
fn run(config: &SimConfig) -> Result<Vec<Outcome>, String> {
    let (sender, receiver) = mpsc::channel();
    let meshes = sim::mesh(RANKS, 0, config);
    let clock = meshes[0].clock();
    for (rank, mesh) in (0..).zip(meshes) {
        let sender = sender.clone();
        let body = move || {
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| train(mesh)));
            let outcome = ended.unwrap_or_else(|payload| {
                if payload.is::<Killed>() { Outcome::Killed } else { std::panic::resume_unwind(payload) }
            });
            let _ = sender.send((rank, outcome));
        };
        thread::Builder::new().stack_size(512 << 10).spawn(body).unwrap();
    }
    drop(sender);
    let mut outcomes = BTreeMap::new();
    let end = Instant::now() + WATCHDOG;
    while outcomes.len() < RANKS as usize {
        let wait = end.saturating_duration_since(Instant::now());
        let (rank, outcome): (u32, _) = receiver
            .recv_timeout(wait)
            .map_err(|error| format!("hangs: {} ranks ended, {error}", outcomes.len()))?;
        outcomes.insert(rank, outcome);
    }
    let elapsed = clock.elapsed();
    if elapsed >= VIRTUAL_LIMIT {
        return Err(format!("hangs: {elapsed:?} of virtual time, limit {VIRTUAL_LIMIT:?}"));
    }
    Ok(outcomes.into_values().collect())
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

#[test]
fn every_run_ends_in_the_right_mean_or_names_a_rank_with_a_fault() {
    let (runs, first) = (number("GRADWIRE_CHAOS_RUNS", 24), number("GRADWIRE_CHAOS_SEED", 1));
    let (expected, start, mut tally) = (reference(), Instant::now(), Tally::default());
    for seed in first..first + runs {
        let plan = Plan::new(seed);
        println!(
            "seed {seed}: {:?}; again: GRADWIRE_CHAOS_RUNS=1 GRADWIRE_CHAOS_SEED={seed} cargo test --test chaos every",
            plan.config
        );
        tally.count(seed, &plan, run(&plan.config), &expected);
    }
    let Tally { right, failed, wrong } = tally;
    let wrong_runs = wrong.len();
    println!(
        "{runs} runs: {right} right on every rank, {failed} with explained errors, {wrong_runs} wrong, {:.1?}",
        start.elapsed()
    );
    assert!(wrong.is_empty(), "by seed: {wrong:#?}");
    assert!(
        runs < 24 || (right > 0 && failed > 0),
        "{right} right, {failed} failed: the faults are too many or too few"
    );
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let mut config = Plan::new(5).config;
    config.faults.push((Duration::from_millis(50), Fault::Crash(Rank(9))));
    let once = || format!("{:?}", run(&config));
    assert_eq!(once(), once(), "outcomes of seed 5");
}

#[test]
fn a_wrong_mean_and_errors_that_no_fault_explains_are_noticed() {
    let mut plan = Plan::new(1);
    let at = Duration::from_millis(50);
    plan.config.faults = vec![(at, Fault::Crash(Rank(3)))];
    let expected = reference();
    let outcomes = run(&plan.config).unwrap();
    assert_eq!(verdict(&plan, &outcomes, &expected), Ok(()), "a fault that the plan knows");
    for other in [
        Vec::new(),
        vec![(at, Fault::Crash(Rank(4)))],
        vec![(at, Fault::Corrupt(Rank(3)))],
        vec![(at, Fault::Stop { rank: Rank(3), length: SILENCE - Duration::from_millis(1) })],
    ] {
        let plan = Plan { config: SimConfig { faults: other, ..plan.config.clone() } };
        assert!(verdict(&plan, &outcomes, &expected).is_err(), "{:?} explains nothing", plan.config.faults);
    }
    // A rank that is cut off may say so of others, but not be believed by them.
    let cut = Fault::Partition { ranks: vec![Rank(3)], length: None };
    plan.config.faults = vec![(at, cut)];
    let mut outcomes = run(&plan.config).unwrap();
    assert_eq!(verdict(&plan, &outcomes, &expected), Ok(()), "cut off");
    outcomes.swap(2, 3);
    assert!(verdict(&plan, &outcomes, &expected).is_err(), "its words from another rank");

    plan.config.faults.clear();
    let mut outcomes = run(&plan.config).unwrap();
    assert_eq!(verdict(&plan, &outcomes, &expected), Ok(()), "no fault");
    let mut wrong = expected.clone();
    wrong[ELEMENTS / 2] ^= 1;
    assert!(verdict(&plan, &outcomes, &wrong).is_err(), "one bit of one mean");
    outcomes[7] = Outcome::Killed;
    assert!(verdict(&plan, &outcomes, &expected).is_err(), "killed by nobody");
}

//! Seeded runs of 64 ranks on a virtual clock with random faults: each ends in the right mean or in a typed error that
//! names a rank which had a fault. `GRADWIRE_CHAOS_RUNS=1000 GRADWIRE_CHAOS_SEED=7` runs as many, from that seed on.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

#[path = "common/random.rs"]
mod random;

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use gradwire::codec::{Codec, Step, loco};
use gradwire::optim;
use gradwire::sync::{Config, Scale, SyncError, Synchronizer};
use gradwire::transport::sim::{self, Fault, Killed, SimConfig};
use gradwire::transport::{Communicator, Limits, Mesh, Rank};
use random::Random;

const RANKS: u32 = 64;
const ELEMENTS: usize = 300;
const STEPS: u64 = 2;
const SILENCE: Duration = Duration::from_secs(10);
/// No run may take longer by its own clock: start, steps and end with all short faults, then one deadline.
const VIRTUAL_LIMIT: Duration = Duration::from_secs(300);
/// No run may take longer by the clock on the wall.
const WATCHDOG: Duration = Duration::from_secs(120);

/// What became of one rank.
#[derive(Debug)]
enum Outcome {
    Parameters(Vec<u32>),
    Error { text: String, culprit: Option<Rank> },
    Killed,
}

struct Plan {
    config: SimConfig,
    /// Ranks that an error may name, besides those across a partition that lasts.
    faulty: Vec<Rank>,
    /// Ranks on one side of a partition that lasts, and so can't tell who is cut off.
    apart: Vec<Rank>,
}

impl Plan {
    /// Of ten runs about four have a fault that nobody can ride out.
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let links = [
            "1Gbit,20ms,0%",
            "100Mbit,80ms,1%",
            "1Gbit,80ms,5%,jitter=2ms",
            "10Mbit,30ms,0.1%,reorder=5%,duplicate=2%",
        ];
        let link = links[random.below(links.len() as u64) as usize].parse().unwrap();
        let (mut faults, mut faulty, mut apart) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..random.below(4) {
            let at = Duration::from_millis(random.below(600));
            let rank = Rank(random.below(RANKS.into()) as u32);
            let short = Duration::from_millis(random.below(9_000));
            let long = SILENCE + Duration::from_millis(1 + random.below(20_000));
            let fault = match random.below(12) {
                0 => Fault::Crash(rank),
                1 => Fault::Stop { rank, length: long },
                2 => Fault::Partition { ranks: vec![rank], length: None },
                3 => Fault::Corrupt(rank),
                4 => Fault::Repeat(rank),
                5..=7 => Fault::Stop { rank, length: short },
                8..=9 => Fault::Partition { ranks: vec![rank], length: Some(short) },
                _ => Fault::Slow { rank, rate: 200_000 + random.below(1_000_000) },
            };
            match &fault {
                Fault::Partition { length: None, .. } => apart.push(rank),
                Fault::Slow { .. } => {}
                Fault::Stop { length, .. } | Fault::Partition { length: Some(length), .. }
                    if *length < SILENCE => {}
                _ => faulty.push(rank),
            }
            faults.push((at, fault));
        }
        faulty.extend(&apart);
        // Two short partitions or stops of one rank may add up to a long one.
        for (at, (_, fault)) in faults.iter().enumerate() {
            let of = |fault: &Fault| match fault {
                Fault::Stop { rank, .. } => Some(*rank),
                Fault::Partition { ranks, .. } => ranks.first().copied(),
                _ => None,
            };
            if let Some(rank) =
                of(fault).filter(|rank| faults[..at].iter().any(|(_, other)| of(other) == Some(*rank)))
            {
                faulty.push(rank);
                apart.push(rank);
            }
        }
        Self { config: SimConfig { link, silence: SILENCE, seed, faults }, faulty, apart }
    }
}

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

fn train(mesh: sim::SimMesh) -> Result<Vec<u32>, SyncError> {
    let rank = mesh.world().rank().0;
    let mut parameters = initial();
    let optimizer = optim::Config::Sgd(optim::Sgd::default());
    let config = Config { scale: Scale::Fixed, ..Config::new(codec(), optimizer) };
    let communicator = Communicator::new(Box::new(mesh), Limits::default());
    let mut synchronizer = Synchronizer::new(communicator, config, &parameters)?;
    for step in 1..=STEPS {
        synchronizer.step(&gradient(rank, step), samples(rank), 0.125, &mut parameters)?;
    }
    // The last barrier may find a rank gone that had all it needed; the parameters are what counts.
    let _ = synchronizer.finish();
    Ok(bits(&parameters))
}

/// Runs a world to its end: what became of each rank.
fn run(config: &SimConfig) -> Vec<Outcome> {
    let (sender, receiver) = mpsc::channel();
    let meshes = sim::mesh(RANKS, 0, config);
    let clock = meshes[0].clock();
    for (rank, mesh) in (0..).zip(meshes) {
        let sender = sender.clone();
        let body = move || {
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| train(mesh)));
            let outcome = match ended {
                Ok(Ok(parameters)) => Outcome::Parameters(parameters),
                Ok(Err(error)) => {
                    let culprit = match &error {
                        SyncError::Exchange(error) => error.culprit(),
                        SyncError::Packet { rank, .. } | SyncError::Settings { rank, .. } => Some(*rank),
                        _ => None,
                    };
                    Outcome::Error { text: error.to_string(), culprit }
                }
                Err(payload) if payload.is::<Killed>() => Outcome::Killed,
                Err(payload) => std::panic::resume_unwind(payload),
            };
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
            .unwrap_or_else(|error| panic!("{} ranks ended: {error}", outcomes.len()));
        outcomes.insert(rank, outcome);
    }
    let elapsed = clock.elapsed();
    assert!(elapsed < VIRTUAL_LIMIT, "{elapsed:?} of virtual time, limit {VIRTUAL_LIMIT:?}");
    outcomes.into_values().collect()
}

/// What is wrong with the outcomes of a run, if anything.
fn verdict(plan: &Plan, outcomes: &[Outcome], expected: &[u32]) -> Result<(), String> {
    for (rank, outcome) in (0..).map(Rank).zip(outcomes) {
        match outcome {
            Outcome::Parameters(parameters) if parameters != expected => {
                return Err(format!("rank {rank} has wrong bits"));
            }
            Outcome::Parameters(_) => {}
            Outcome::Killed if plan.faulty.contains(&rank) => {}
            Outcome::Killed => return Err(format!("rank {rank} was killed without a fault")),
            // Who is cut off can only see the others silent, and who was stopped knows that it was.
            Outcome::Error { .. } if plan.apart.contains(&rank) => {}
            Outcome::Error { culprit: None, .. } if plan.faulty.contains(&rank) => {}
            Outcome::Error { culprit: Some(culprit), .. } if plan.faulty.contains(culprit) => {}
            Outcome::Error { text, .. } => {
                return Err(format!("rank {rank}: {text}; ranks with faults: {:?}", plan.faulty));
            }
        }
    }
    Ok(())
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

#[test]
fn every_run_ends_in_the_right_mean_or_names_a_rank_with_a_fault() {
    let (runs, first) = (number("GRADWIRE_CHAOS_RUNS", 24), number("GRADWIRE_CHAOS_SEED", 1));
    let (expected, start) = (reference(), Instant::now());
    let (mut right, mut failed) = (0, 0);
    for seed in first..first + runs {
        let plan = Plan::new(seed);
        println!(
            "seed {seed}: {:?}; again: GRADWIRE_CHAOS_RUNS=1 GRADWIRE_CHAOS_SEED={seed} cargo test --test chaos every",
            plan.config
        );
        let outcomes = run(&plan.config);
        verdict(&plan, &outcomes, &expected).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        let all = outcomes.iter().all(|outcome| matches!(outcome, Outcome::Parameters(_)));
        if all { right += 1 } else { failed += 1 }
    }
    println!("{runs} runs: {right} right on every rank, {failed} with typed errors, {:.1?}", start.elapsed());
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
fn a_wrong_mean_and_a_swallowed_fault_are_noticed() {
    let mut plan = Plan::new(1);
    plan.config.faults = vec![(Duration::from_millis(50), Fault::Crash(Rank(3)))];
    (plan.faulty, plan.apart) = (Vec::new(), Vec::new());
    let expected = reference();
    let outcomes = run(&plan.config);
    assert!(verdict(&plan, &outcomes, &expected).is_err(), "a fault that the plan does not know");
    plan.faulty = vec![Rank(3)];
    assert_eq!(verdict(&plan, &outcomes, &expected), Ok(()), "a fault that the plan knows");
    plan.faulty = vec![Rank(4)];
    assert!(verdict(&plan, &outcomes, &expected).is_err(), "the wrong rank named");
    plan.config.faults.clear();
    let outcomes = run(&plan.config);
    assert_eq!(verdict(&plan, &outcomes, &expected), Ok(()), "no fault");
    let mut wrong = expected;
    wrong[ELEMENTS / 2] ^= 1;
    assert!(verdict(&plan, &outcomes, &wrong).is_err(), "one bit of one mean");
}

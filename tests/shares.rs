//! Shards of unequal size: the same bits as of equal ones, before and after they change hands.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

#[path = "common/fleet.rs"]
mod fleet;
#[path = "common/random.rs"]
mod random;

use std::num::NonZeroU32;

use fleet::fleet;
use gradwire::codec::{Codec, CodecId};
use gradwire::optim;
use gradwire::sync::powersgd::Shape;
use gradwire::sync::shares::Speed;
use gradwire::sync::{Checkpoint, Config, Scheme, Shares, Synchronizer, powersgd};
use random::Random;

const RANKS: u32 = 4;
/// Not a multiple of anything, and more than one group for every rank and codec.
const N: usize = 33_331;
const STEPS: u64 = 5;

fn gradient(rank: u32, step: u64) -> Vec<f32> {
    let mut random = Random((u64::from(rank) << 32) ^ step ^ 0x7368_6172_6573);
    (0..N).map(|_| random.unit() as f32 * 0.25).collect()
}

fn initial() -> Vec<f32> {
    let mut random = Random(1);
    (0..N).map(|_| random.unit() as f32).collect()
}

fn adamw() -> optim::Config {
    optim::Config::AdamW(optim::AdamW::default())
}

/// All that a rank has after [`STEPS`] steps, with `weights` before the step of each.
fn train(config: &Config, weights: &[(u64, [u32; 4])]) -> Vec<(Vec<u32>, Checkpoint)> {
    fleet(RANKS, |rank, communicator| {
        let mut parameters = initial();
        let mut synchronizer = Synchronizer::new(communicator, config.clone(), &parameters).unwrap();
        for step in 1..=STEPS {
            for (_, weights) in weights.iter().filter(|(at, _)| *at == step) {
                synchronizer.reshape(weights, &parameters).unwrap();
            }
            let samples = [3, 0, 7, 1][rank as usize];
            synchronizer.step(&gradient(rank, step), samples, 0.125, &mut parameters).unwrap();
        }
        let checkpoint = synchronizer.checkpoint().unwrap();
        synchronizer.finish().unwrap();
        (parameters.iter().map(|value| value.to_bits()).collect(), checkpoint)
    })
}

/// What a run remembers of all elements, wherever it lies: vectors of the optimizer, and parameters.
fn remembered(ranks: &[(Vec<u32>, Checkpoint)]) -> Vec<Vec<u32>> {
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<u32>>();
    let vectors = ranks[0].1.optimizer.vectors.len();
    let vector = |index: usize| ranks.iter().flat_map(|(_, it)| bits(&it.optimizer.vectors[index])).collect();
    let mut all: Vec<Vec<u32>> = (0..vectors).map(vector).collect();
    all.push(ranks.iter().flat_map(|(_, it)| bits(&it.parameters)).collect());
    all.extend(ranks.iter().map(|(_, it)| it.codec_state.clone()));
    all
}

fn check(config: &Config, name: &str) {
    let equal = train(config, &[]);
    assert!(equal.iter().all(|(parameters, _)| *parameters == equal[0].0), "{name}");
    let weighted = Config { shares: Shares::Weights(vec![1, 0, 5, 2]), ..config.clone() };
    // In the beginning; in the middle, twice, one of them to nobody but one; and before the last step back to equal ones.
    let moved = [(1, [9, 1, 1, 1]), (3, [0, 1, 0, 0]), (3, [3, 1, 4, 1]), (5, [1; 4])];
    for (how, shared) in [
        ("by weight", train(&weighted, &[])),
        ("in motion", train(config, &moved)),
        ("both", train(&weighted, &moved)),
    ] {
        for (rank, (parameters, _)) in shared.iter().enumerate() {
            assert!(*parameters == equal[0].0, "{name}, {how}: rank {rank} has other parameters");
        }
        assert!(remembered(&shared) == remembered(&equal), "{name}, {how}: state differs");
    }
}

#[test]
fn every_codec_gives_the_same_bits_whoever_owns_what() {
    let others = ["ef21:momentum_log2=2", "sign:block=64,reset_every=3", "topk:chunk=64,k=16"];
    let others = others.map(|text| text.parse().unwrap());
    // An automatic scale of intsgd is of sums over shards.
    let codecs = CodecId::ALL.into_iter().map(Codec::new).filter(|codec| !codec.rescales());
    for codec in codecs.chain(others) {
        check(&Config::new(codec, adamw()), &codec.to_string());
    }
}

#[test]
fn every_optimizer_goes_on_where_the_owner_before_stopped() {
    let warmup = NonZeroU32::new(2).unwrap();
    for optimizer in [
        optim::Config::Sgd(optim::Sgd::default()),
        optim::Config::OneBitAdam(optim::OneBitAdam { warmup, ..optim::OneBitAdam::default() }),
        optim::Config::ZeroOneAdam(optim::ZeroOneAdam::default()),
    ] {
        let sign: Codec = "sign".parse().unwrap();
        check(&Config::new(sign, optimizer), &format!("{optimizer:?}"));
    }
}

#[test]
fn powersgd_and_sites_have_shares_too() {
    let shapes = vec![Shape { offset: 0, rows: 100, columns: 300 }];
    let scheme: Scheme = powersgd::Config::default().into();
    check(&Config { shapes, ..Config::new(scheme, adamw()) }, "powersgd");
    check(&Config { sites: vec![0, 0, 1, 1], ..Config::new(Codec::new(CodecId::Loco), adamw()) }, "sites");
}

fn learned(steps: u32) -> Config {
    let shares = Shares::Learned { steps: NonZeroU32::new(steps).unwrap() };
    Config { shares, ..Config::new(Codec::new(CodecId::Ef21), adamw()) }
}

/// Steps `steps` of every rank, from its checkpoint if there are some: parameters and another checkpoint.
fn go_on(
    config: &Config,
    from: Option<&[(Vec<f32>, Checkpoint)]>,
    steps: std::ops::RangeInclusive<u64>,
    weights: Option<[u32; 4]>,
) -> Vec<(Vec<f32>, Checkpoint)> {
    fleet(RANKS, |rank, communicator| {
        let from = from.map(|ranks| &ranks[rank as usize]);
        let mut parameters = from.map_or_else(initial, |(parameters, _)| parameters.clone());
        let mut synchronizer = Synchronizer::new(communicator, config.clone(), &parameters).unwrap();
        if let Some((_, checkpoint)) = from {
            synchronizer.restore(checkpoint).unwrap();
        }
        for step in steps.clone() {
            synchronizer.step(&gradient(rank, step), 1 + rank, 0.125, &mut parameters).unwrap();
        }
        if let Some(weights) = weights {
            synchronizer.reshape(&weights, &parameters).unwrap();
        }
        let checkpoint = synchronizer.checkpoint().unwrap();
        synchronizer.finish().unwrap();
        (parameters, checkpoint)
    })
}

#[test]
fn a_run_goes_on_with_the_shares_of_its_checkpoint() {
    let config = learned(1000);
    let straight = go_on(&config, None, 1..=6, None);
    let first = go_on(&config, None, 1..=3, Some([1, 0, 6, 1]));
    assert_eq!(first[0].1.shares, [1, 0, 6, 1]);
    assert_eq!(first[1].1.parameters.len(), 0, "it owns nothing");
    let second = go_on(&config, Some(&first), 4..=6, None);
    for (rank, (parameters, checkpoint)) in second.iter().enumerate() {
        assert!(*parameters == straight[rank].0, "rank {rank}");
        assert_eq!(checkpoint.shares, [1, 0, 6, 1]);
    }
}

#[test]
fn what_is_learned_is_the_same_on_every_rank_and_changes_no_bit() {
    // What comes out of it, if anything, depends on the machine.
    let config = learned(2);
    let fixed = go_on(&learned(1000), None, 1..=5, None);
    let learned = go_on(&config, None, 1..=5, None);
    for (rank, (parameters, checkpoint)) in learned.iter().enumerate() {
        assert!(*parameters == fixed[rank].0, "rank {rank}");
        assert_eq!(checkpoint.shares, learned[0].1.shares, "rank {rank}");
    }
}

#[test]
fn declared_lines_decide_before_the_first_step() {
    let owned = fleet(RANKS, |rank, communicator| {
        let down = 10_000_000;
        let up = if rank == 2 { 1_000_000 } else { 10_000_000 };
        let shares = Shares::Declared(Speed { up, down, owner: 0 });
        let config = Config { shares, ..Config::new(Codec::new(CodecId::Loco), adamw()) };
        let mut parameters = initial();
        let mut synchronizer = Synchronizer::new(communicator, config, &parameters).unwrap();
        let report = synchronizer.step(&gradient(rank, 1), 1, 0.125, &mut parameters).unwrap();
        synchronizer.finish().unwrap();
        report.owned
    });
    assert_eq!(owned.iter().sum::<usize>(), N);
    assert!(owned[2] < N / 16 && owned[0] > N / 4, "{owned:?}");
    assert!(owned[0].abs_diff(owned[1]) <= 8, "{owned:?}");
}

#[test]
fn ranks_that_do_not_choose_alike_are_named() {
    let errors = fleet(RANKS, |rank, communicator| {
        let config = Config::new(Codec::new(CodecId::Loco), adamw());
        let parameters = initial();
        let mut synchronizer = Synchronizer::new(communicator, config, &parameters).unwrap();
        let weights = if rank == 3 { [1, 1, 1, 2] } else { [1, 1, 1, 1] };
        synchronizer.reshape(&weights, &parameters).unwrap_err().to_string()
    });
    for error in &errors[..3] {
        assert!(error.starts_with("rank 3 has fingerprint of weights for shards 0x"), "{errors:?}");
    }
    let kinds = fleet(2, |rank, communicator| {
        let shares = if rank == 1 { Shares::LEARNED } else { Shares::Equal };
        let config = Config { shares, ..Config::new(Codec::new(CodecId::Loco), adamw()) };
        Synchronizer::new(communicator, config, &initial()).map(|_| ()).unwrap_err().to_string()
    });
    assert_eq!(kinds[0], "rank 1 has shares learned, ours is equal");
    let counts = fleet(2, |_, communicator| {
        let shares = Shares::Weights(vec![1, 2, 3]);
        let config = Config { shares, ..Config::new(Codec::new(CodecId::Loco), adamw()) };
        Synchronizer::new(communicator, config, &initial()).map(|_| ()).unwrap_err().to_string()
    });
    assert!(counts.iter().any(|error| error == "3 weights for shards of 2 ranks"), "{counts:?}");
}

#[test]
fn a_checkpoint_of_other_shares_is_refused_where_shares_are_fixed() {
    let first = go_on(&learned(1000), None, 1..=2, Some([1, 0, 6, 1]));
    let errors = fleet(RANKS, |rank, communicator| {
        let (parameters, checkpoint) = &first[rank as usize];
        let config = Config::new(Codec::new(CodecId::Ef21), adamw());
        let mut synchronizer = Synchronizer::new(communicator, config, parameters).unwrap();
        synchronizer.restore(checkpoint).unwrap_err().to_string()
    });
    assert!(errors.iter().any(|error| error.starts_with("fingerprint of shares is ")), "{errors:?}");
    for bad in [vec![0; 4], vec![1; 3]] {
        let errors = fleet(RANKS, |rank, communicator| {
            let (parameters, checkpoint) = &first[rank as usize];
            let mut checkpoint = checkpoint.clone();
            checkpoint.shares.clone_from(&bad);
            let mut synchronizer = Synchronizer::new(communicator, learned(1000), parameters).unwrap();
            synchronizer.restore(&checkpoint).unwrap_err().to_string()
        });
        assert!(errors.iter().any(|error| error.contains("share")), "{errors:?}");
    }
}

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

//! CPU and GPU ranks in one world: the same parameters, whoever computes them.
#![cfg(feature = "gpu")]
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

#[path = "common/gpu.rs"]
mod common;

use std::thread;

use common::{Random, gpus};
use gradwire::codec::{Codec, loco};
use gradwire::optim;
use gradwire::sync::{Backend, Checkpoint, Config, SyncError, Synchronizer};
use gradwire::transport::{Communicator, Limits, Rank, memory};

const STEPS: u64 = 4;

/// Trains one rank per backend; the bits of the last parameters on every rank.
fn train(backends: &[Backend], n: usize) -> Vec<Vec<u32>> {
    let world_size = u32::try_from(backends.len()).unwrap();
    thread::scope(|scope| {
        let ranks = (0..).zip(memory::mesh(world_size, 0)).zip(backends);
        let ranks: Vec<_> = ranks
            .map(|((rank, mesh), backend)| scope.spawn(move || one_rank(rank, mesh, backend.clone(), n)))
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn synchronizer(mesh: memory::MemoryMesh, backend: Backend, parameters: &[f32]) -> Synchronizer {
    let config = loco::Config { reset_every: std::num::NonZeroU32::new(3), ..loco::Config::default() };
    let codec = Codec::Loco(config);
    let optimizer = optim::Config::AdamW(optim::AdamW::default());
    let config = Config { backend, ..Config::new(codec, optimizer) };
    let communicator = Communicator::new(Box::new(mesh), Limits::default());
    Synchronizer::new(communicator, config, parameters).unwrap()
}

fn one_rank(rank: u64, mesh: memory::MemoryMesh, backend: Backend, n: usize) -> Vec<u32> {
    let mut parameters = vec![0.5; n];
    let mut synchronizer = synchronizer(mesh, backend, &parameters);
    for step in 0..STEPS {
        let mut random = Random(1000 * rank + step);
        let gradient: Vec<f32> = (0..n).map(|_| random.unit() as f32).collect();
        let samples = u32::try_from(rank).unwrap() + 1;
        synchronizer.step(&gradient, samples, 0.1, &mut parameters).unwrap();
    }
    synchronizer.finish().unwrap();
    parameters.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn a_mixed_fleet_has_the_bits_of_a_fleet_of_cpus() {
    for gpu in gpus() {
        let gpu = || Backend::Gpu(gpu.clone());
        for n in [1, 9, 1000, 5003] {
            let expected = train(&[Backend::Cpu, Backend::Cpu, Backend::Cpu], n);
            assert!(expected.iter().all(|parameters| *parameters == expected[0]));
            for fleet in
                [[Backend::Cpu, gpu(), Backend::Cpu], [gpu(), Backend::Cpu, gpu()], [gpu(), gpu(), gpu()]]
            {
                assert_eq!(train(&fleet, n), expected, "{n} parameters, {fleet:?}");
            }
        }
    }
}

#[test]
fn a_nan_that_a_device_finds_is_the_same_error_on_every_rank() {
    for gpu in gpus() {
        let errors: Vec<SyncError> = thread::scope(|scope| {
            let ranks = memory::mesh(2, 0).into_iter().zip([Backend::Gpu(gpu.clone()), Backend::Cpu]);
            let ranks: Vec<_> = ranks
                .enumerate()
                .map(|(rank, (mesh, backend))| {
                    scope.spawn(move || {
                        let mut parameters = vec![0.5; 100];
                        let mut synchronizer = synchronizer(mesh, backend, &parameters);
                        let mut gradient = vec![1.0; 100];
                        gradient[77] = if rank == 0 { f32::NAN } else { 1.0 };
                        synchronizer.step(&gradient, 1, 0.1, &mut parameters).unwrap_err()
                    })
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        for error in errors {
            assert!(
                matches!(&error, SyncError::NonFinite { counts, .. } if counts[..] == [(Rank(0), 1)]),
                "{error}"
            );
        }
    }
}

#[test]
fn a_checkpoint_moves_between_cpu_and_device() {
    let n = 1003;
    /// Steps `span` on every rank, from `checkpoints` if there are any: last parameters and new checkpoints.
    fn stretch(
        backends: [Backend; 2],
        span: std::ops::Range<u64>,
        n: usize,
        checkpoints: Option<&[Checkpoint]>,
    ) -> (Vec<Vec<u32>>, Vec<Checkpoint>) {
        thread::scope(|scope| {
            let ranks: Vec<_> = memory::mesh(2, 0)
                .into_iter()
                .zip(backends)
                .enumerate()
                .map(|(rank, (mesh, backend))| {
                    let span = span.clone();
                    scope.spawn(move || {
                        let mut parameters = vec![0.5; n];
                        let mut synchronizer = synchronizer(mesh, backend, &parameters);
                        if let Some(checkpoints) = checkpoints {
                            synchronizer.restore(&checkpoints[rank]).unwrap();
                        }
                        for step in span {
                            let mut random = Random(1000 * rank as u64 + step);
                            let gradient: Vec<f32> = (0..n).map(|_| random.unit() as f32).collect();
                            synchronizer.step(&gradient, 1, 0.1, &mut parameters).unwrap();
                        }
                        let checkpoint = synchronizer.checkpoint().unwrap();
                        synchronizer.finish().unwrap();
                        (parameters.iter().map(|value| value.to_bits()).collect(), checkpoint)
                    })
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).unzip()
        })
    }
    for gpu in gpus() {
        let (cpu, gpu) = (Backend::Cpu, Backend::Gpu(gpu));
        let whole = stretch([cpu.clone(), cpu.clone()], 0..5, n, None);
        let first = stretch([cpu.clone(), gpu.clone()], 0..2, n, None);
        let second = stretch([gpu, cpu], 2..5, n, Some(&first.1));
        assert_eq!(second, whole);
    }
}

//! CPU and GPU ranks in one world: the same parameters, whoever computes them.
#![cfg(feature = "gpu")]
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

#[path = "common/gpu.rs"]
mod common;

use std::num::NonZeroU32;
use std::thread;

use common::{Random, gpus};
use gradwire::codec::{Codec, loco};
use gradwire::gpu::Gpu;
use gradwire::optim;
use gradwire::sync::powersgd::{self, Shape};
use gradwire::sync::{Backend, Checkpoint, Config, OptimizerOn, Scale, Scheme, SyncError, Synchronizer};
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
    let config = loco::Config { reset_every: NonZeroU32::new(3), ..loco::Config::default() };
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

/// The parameters of every rank after 20 steps down the square of their distance from 0.
fn descend(codec: Codec, backends: &[Backend], optimizer: optim::Config, on: OptimizerOn) -> Vec<Vec<f32>> {
    const N: usize = 5003;
    let world_size = u32::try_from(backends.len()).unwrap();
    let one_rank = |rank: u64, mesh: memory::MemoryMesh, backend: Backend| {
        let mut parameters: Vec<f32> = (0_u16..).map(|at| f32::from(at % 251) / 50.0 - 2.5).take(N).collect();
        let scale = if codec.rescales() { Scale::Auto } else { Scale::Fixed };
        let config = Config { backend, scale, optimizer_on: on, ..Config::new(codec, optimizer) };
        let communicator = Communicator::new(Box::new(mesh), Limits::default());
        let mut synchronizer = Synchronizer::new(communicator, config, &parameters).unwrap();
        for _ in 0..20 {
            let gradient = parameters.clone();
            let samples = u32::try_from(rank).unwrap() + 1;
            let report = synchronizer.step(&gradient, samples, 0.05, &mut parameters).unwrap();
            assert!(!report.skipped, "every gradient is finite");
        }
        synchronizer.finish().unwrap();
        parameters
    };
    thread::scope(|scope| {
        let ranks = (0..).zip(memory::mesh(world_size, 0)).zip(backends);
        let ranks: Vec<_> = ranks
            .map(|((rank, mesh), backend)| scope.spawn(move || one_rank(rank, mesh, backend.clone())))
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn with_optimizers_on_devices_all_ranks_have_the_same_bits_and_go_where_cpus_go() {
    let bits = |parameters: &[f32]| parameters.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    let mut codecs = common::codecs();
    codecs.retain(|codec| codec.scale_log2().is_none_or(|scale| (0..=3).contains(&scale)));
    codecs.extend([Codec::F32, Codec::Loco(loco::Config { scale_log2: 2, ..loco::Config::default() })]);
    for gpu in gpus() {
        let gpu = || Backend::Gpu(gpu.clone());
        for &codec in &codecs {
            for optimizer in
                [optim::Config::AdamW(optim::AdamW::default()), optim::Config::Sgd(optim::Sgd::default())]
            {
                let cpus =
                    descend(codec, &[Backend::Cpu, Backend::Cpu, Backend::Cpu], optimizer, OptimizerOn::Cpu);
                for fleet in [[gpu(), Backend::Cpu, gpu()], [gpu(), gpu(), gpu()]] {
                    let found = descend(codec, &fleet, optimizer, OptimizerOn::Device);
                    assert!(found.iter().all(|rank| bits(rank) == bits(&found[0])), "{codec:?}, {fleet:?}");
                    // A last place can turn a code over, and error feedback turns it back: near, and 1 or more from the start.
                    let pairs = found[0].iter().zip(&cpus[0]);
                    let farthest = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                    assert!(farthest < 0.2, "{codec:?}, {optimizer:?}, {fleet:?}: {farthest} from the CPUs");
                    // The default puts no float on a device.
                    let found = descend(codec, &fleet, optimizer, OptimizerOn::default());
                    assert_eq!(bits(&found[0]), bits(&cpus[0]), "{codec:?}, {optimizer:?}, {fleet:?}");
                }
            }
        }
    }
}

#[test]
fn an_optimizer_without_a_kernel_has_the_bits_of_cpus_also_where_a_device_is_asked_for() {
    let steps = NonZeroU32::new(3).unwrap();
    let optimizers = [
        optim::Config::OneBitAdam(optim::OneBitAdam { warmup: steps, ..optim::OneBitAdam::default() }),
        optim::Config::OneBitLamb(optim::OneBitLamb { warmup: steps, ..optim::OneBitLamb::default() }),
        optim::Config::ZeroOneAdam(optim::ZeroOneAdam { doubling: steps, ..optim::ZeroOneAdam::default() }),
    ];
    for gpu in gpus() {
        let gpu = || Backend::Gpu(gpu.clone());
        for codec in [Codec::F32, Codec::Loco(loco::Config { scale_log2: 2, ..loco::Config::default() })] {
            for optimizer in optimizers {
                let cpus = [Backend::Cpu, Backend::Cpu, Backend::Cpu];
                let expected = descend(codec, &cpus, optimizer, OptimizerOn::Cpu);
                let found = descend(codec, &[gpu(), Backend::Cpu, gpu()], optimizer, OptimizerOn::Device);
                assert_eq!(found, expected, "{codec:?}, {optimizer:?}");
            }
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

/// A run whose optimizers are on devices: the steps of `span` on every rank, from `checkpoints` if there are any; the
/// parameters after each, and new checkpoints.
fn on_devices(
    gpu: &Gpu,
    (scheme, scale): (Scheme, Scale),
    optimizer: optim::Config,
    span: std::ops::Range<u64>,
    checkpoints: Option<&[Checkpoint]>,
) -> Vec<(Vec<Vec<u32>>, Checkpoint)> {
    const N: usize = 1003;
    let one_rank = |rank: usize, mesh: memory::MemoryMesh, backend: Backend| {
        // A restored rank has its parameters from its checkpoint: those that it is made with must not matter.
        let mut parameters = vec![if checkpoints.is_some() { 9.0 } else { 0.5 }; N];
        let shapes = vec![Shape::new(3, &[20, 31])];
        let config = Config {
            backend,
            scale,
            shapes,
            optimizer_on: OptimizerOn::Device,
            ..Config::new(scheme, optimizer)
        };
        let communicator = Communicator::new(Box::new(mesh), Limits::default());
        let mut synchronizer = Synchronizer::new(communicator, config, &parameters).unwrap();
        if let Some(checkpoints) = checkpoints {
            synchronizer.restore(&checkpoints[rank]).unwrap();
        }
        let history = span.clone().map(|step| {
            let mut random = Random(1000 * rank as u64 + step);
            let gradient: Vec<f32> = (0..N).map(|_| random.unit() as f32).collect();
            synchronizer.step(&gradient, 1, 0.1, &mut parameters).unwrap();
            parameters.iter().map(|value| value.to_bits()).collect()
        });
        let history = history.collect();
        let checkpoint = synchronizer.checkpoint().unwrap();
        synchronizer.finish().unwrap();
        (history, checkpoint)
    };
    let backends = [Backend::Gpu(gpu.clone()), Backend::Cpu, Backend::Gpu(gpu.clone())];
    thread::scope(|scope| {
        let ranks = memory::mesh(3, 0).into_iter().zip(backends).enumerate();
        let ranks: Vec<_> = ranks
            .map(|(rank, (mesh, backend))| {
                let one_rank = &one_rank;
                scope.spawn(move || one_rank(rank, mesh, backend))
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn a_run_with_its_optimizers_on_devices_goes_on_with_the_bits_of_an_unbroken_one() {
    let codec = Codec::Loco(loco::Config { scale_log2: 5, ..loco::Config::default() });
    let powersgd = powersgd::Config { low_rank: 2, min_compression: 1, ..powersgd::Config::default() };
    // Packets to the optimizer in one kernel and in two, and a mean by way of the host.
    let schemes: [(Scheme, Scale); 5] = [
        (codec.into(), Scale::Fixed),
        (codec.into(), Scale::Auto),
        (Codec::F32.into(), Scale::Fixed),
        (Codec::F32.into(), Scale::Auto),
        (powersgd.into(), Scale::Fixed),
    ];
    let one_bit = optim::OneBitAdam { warmup: NonZeroU32::new(2).unwrap(), ..optim::OneBitAdam::default() };
    for gpu in gpus() {
        for optimizer in [
            optim::Config::AdamW(optim::AdamW::default()),
            optim::Config::Sgd(optim::Sgd::default()),
            // No kernel: on the CPU, wherever it is asked for.
            optim::Config::OneBitAdam(one_bit),
        ] {
            for scheme in schemes {
                let run = |span, checkpoints: Option<&[Checkpoint]>| {
                    on_devices(&gpu, scheme, optimizer, span, checkpoints)
                };
                let case = format!("{scheme:?}, {optimizer:?}");
                let whole = run(0..6, None);
                for cut in [0, 1, 3] {
                    let first: Vec<Checkpoint> =
                        run(0..cut, None).into_iter().map(|(_, saved)| saved).collect();
                    let second = run(cut..6, Some(&first));
                    for (whole, second) in whole.iter().zip(&second) {
                        assert_eq!(whole.0[cut as usize..], second.0, "cut after {cut}: {case}");
                        assert_eq!(whole.1, second.1, "cut after {cut}: {case}");
                    }
                }
                // The guard: what a device keeps is in the checkpoint, and goes back.
                let first: Vec<Checkpoint> = run(0..3, None).into_iter().map(|(_, saved)| saved).collect();
                let fresh: Vec<Checkpoint> = run(0..0, None).into_iter().map(|(_, saved)| saved).collect();
                let spoils: [fn(&mut Checkpoint, &Checkpoint); 2] = [
                    |saved, fresh| saved.parameters.clone_from(&fresh.parameters),
                    |saved, fresh| saved.optimizer.vectors.clone_from(&fresh.optimizer.vectors),
                ];
                for (index, spoil) in spoils.into_iter().enumerate() {
                    for rank in [0, 2] {
                        let mut spoiled = first.clone();
                        spoil(&mut spoiled[rank], &fresh[rank]);
                        let second = run(3..6, Some(&spoiled));
                        assert_ne!(whole[0].0[3..], second[0].0, "part {index} of rank {rank}: {case}");
                    }
                }
            }
        }
    }
}

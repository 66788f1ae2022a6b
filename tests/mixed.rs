//! CPU and GPU ranks in one world: the same parameters, whoever computes them.
#![cfg(feature = "gpu")]
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

#[path = "common/gpu.rs"]
mod common;

use std::num::NonZeroU32;
use std::thread;

use common::{Random, Values, gpus};
use gradwire::codec::{Codec, CodecId, Input, loco};
use gradwire::gpu::Gpu;
use gradwire::optim;
use gradwire::shard::ShardLayout;
use gradwire::sync::powersgd::{self, Shape};
use gradwire::sync::{
    Backend, Checkpoint, Config, NonFinite, OptimizerOn, Scale, Scheme, SyncError, Synchronizer,
};
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

/// Every codec of this build, and EF21 with all the state that it can have; at a scale for gradients below 1.
fn every_codec() -> Vec<Codec> {
    let mut codecs: Vec<Codec> = CodecId::ALL.into_iter().map(Codec::new).collect();
    codecs.push("ef21:momentum_log2=2".parse().unwrap());
    for codec in &mut codecs {
        codec.set_scale_log2(2);
    }
    codecs
}

/// A training of `steps` steps.
#[derive(Clone, Copy, Debug)]
struct Run {
    codec: Codec,
    scale: Scale,
    n: usize,
    steps: u64,
    /// Types of the gradients, in turn.
    inputs: &'static [Input],
    nonfinite: NonFinite,
    /// Steps in which the gradient of a rank is not finite.
    bad: &'static [(u64, usize)],
    optimizer_on: OptimizerOn,
    sites: &'static [u32],
}

impl Run {
    /// One rank's bits after every step, and its checkpoint after the last one.
    fn one_rank(
        &self,
        rank: usize,
        mesh: memory::MemoryMesh,
        backend: Backend,
    ) -> (Vec<Vec<u32>>, Checkpoint) {
        let Self { codec, scale, n, steps, inputs, nonfinite, bad, optimizer_on, sites } = *self;
        let mut parameters = vec![0.5; n];
        let optimizer = optim::Config::AdamW(optim::AdamW::default());
        let config = Config {
            backend,
            scale,
            nonfinite,
            optimizer_on,
            sites: sites.to_vec(),
            ..Config::new(codec, optimizer)
        };
        let communicator = Communicator::new(Box::new(mesh), Limits::default());
        let mut synchronizer = Synchronizer::new(communicator, config, &parameters).unwrap();
        let mut history = Vec::new();
        for step in 1..=steps {
            let mut random = Random(1000 * rank as u64 + step);
            let mut gradient: Vec<f32> = (0..n).map(|_| random.unit() as f32).collect();
            if bad.contains(&(step, rank)) {
                (gradient[0], gradient[n / 2], gradient[n - 1]) =
                    (f32::NAN, f32::NEG_INFINITY, f32::INFINITY);
            }
            let gradient = Values::new(inputs[step as usize % inputs.len()], &gradient);
            let samples = u32::try_from(rank).unwrap() + 1;
            let result = synchronizer.step(gradient.gradient(), samples, 0.1, &mut parameters);
            if bad.iter().any(|(bad, _)| *bad == step) {
                match nonfinite {
                    NonFinite::Skip => assert!(result.unwrap().skipped, "{self:?}"),
                    NonFinite::Fail => {
                        let error = result.unwrap_err();
                        assert!(matches!(error, SyncError::NonFinite { .. }), "{error}, {self:?}");
                    }
                }
            } else {
                assert!(!result.unwrap().skipped, "{self:?}");
            }
            history.push(parameters.iter().map(|value| value.to_bits()).collect());
        }
        let checkpoint = synchronizer.checkpoint().unwrap();
        synchronizer.finish().unwrap();
        (history, checkpoint)
    }

    fn on(&self, backends: &[Backend]) -> Vec<(Vec<Vec<u32>>, Checkpoint)> {
        let world_size = u32::try_from(backends.len()).unwrap();
        thread::scope(|scope| {
            let ranks = memory::mesh(world_size, 0).into_iter().zip(backends).enumerate();
            let ranks: Vec<_> = ranks
                .map(|(rank, (mesh, backend))| {
                    scope.spawn(move || self.one_rank(rank, mesh, backend.clone()))
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    /// Parameters after every step, the codec's states of encoders and owners, and the optimizers' are those of CPUs.
    fn is_that_of_cpus(&self, fleet: &[Backend]) {
        let expected = self.on(&vec![Backend::Cpu; fleet.len()]);
        for (rank, found) in self.on(fleet).iter().enumerate() {
            assert_eq!(found.0, expected[0].0, "rank {rank}, {self:?}");
            assert_eq!(found.1, expected[rank].1, "checkpoint of rank {rank}, {self:?}");
        }
    }
}

/// Whether the owner of every shard keeps of every rank what that rank keeps of itself; of EF21, the only one to keep both.
fn both_ends_agree(codec: &Codec, n: usize, checkpoints: &[&Checkpoint]) -> bool {
    let unit = codec.unit();
    let layout = ShardLayout::new(n, checkpoints.len(), unit.elements);
    layout.ranges().zip(checkpoints).all(|(shard, owner)| {
        let units = shard.len().div_ceil(unit.elements);
        // An empty shard begins at the end.
        let first = shard.start.div_ceil(unit.elements);
        let kept = owner.mean_state.chunks(units.max(1) * unit.elements);
        kept.zip(checkpoints).all(|(kept, rank)| {
            // What is tracked comes first in a unit of the sender's state.
            let of_unit = |at: usize| &rank.codec_state[(first + at) * unit.state_words..][..unit.elements];
            (0..units).all(|at| kept[at * unit.elements..][..unit.elements] == *of_unit(at))
        })
    })
}

#[test]
fn a_mixed_fleet_has_the_bits_of_a_fleet_of_cpus_with_every_codec_and_half_gradients() {
    for gpu in gpus() {
        let fleet = [Backend::Cpu, Backend::Gpu(gpu), Backend::Cpu];
        for codec in every_codec() {
            // Fewer units than ranks; shards that end inside a unit; a type that changes, and with it the kernel.
            for (n, scale, inputs) in [
                (9, Scale::Fixed, &[Input::F32][..]),
                (2 * codec.unit().elements + 1, Scale::Auto, &[Input::Bf16]),
                (5003, Scale::Fixed, &[Input::F32, Input::Bf16]),
            ] {
                let (nonfinite, optimizer_on) = (NonFinite::Fail, OptimizerOn::Cpu);
                let run =
                    Run { codec, scale, n, steps: 3, inputs, nonfinite, bad: &[], optimizer_on, sites: &[] };
                run.is_that_of_cpus(&fleet);
            }
        }
    }
}

#[test]
fn a_mixed_fleet_goes_on_as_one_of_cpus_after_steps_that_no_rank_took() {
    for gpu in gpus() {
        let gpu = || Backend::Gpu(gpu.clone());
        for codec in every_codec() {
            // What is not finite comes from a device, in the first step; then from a CPU; then from both at once.
            let bad: &[(u64, usize)] = &[(1, 1), (3, 2), (4, 0), (4, 1)];
            for (nonfinite, scale) in [(NonFinite::Fail, Scale::Auto), (NonFinite::Skip, Scale::Fixed)] {
                let n = 2 * codec.unit().elements + 1;
                let (inputs, optimizer_on) = (&[Input::F32, Input::Bf16], OptimizerOn::Cpu);
                let run = Run { codec, scale, n, steps: 6, inputs, nonfinite, bad, optimizer_on, sites: &[] };
                run.is_that_of_cpus(&[Backend::Cpu, gpu(), Backend::Cpu]);
                // With masters on devices the last places are their own, but the same on every rank; and the codec's state,
                // as the gradients of this test do not depend on them, is still that of CPUs.
                let run = Run { optimizer_on: OptimizerOn::Device, ..run };
                let (cpus, found) = (run.on(&vec![Backend::Cpu; 3]), run.on(&[Backend::Cpu, gpu(), gpu()]));
                if codec.id() == CodecId::Ef21 {
                    let checkpoints: Vec<&Checkpoint> =
                        found.iter().map(|(_, checkpoint)| checkpoint).collect();
                    assert!(both_ends_agree(&codec, n, &checkpoints), "{run:?}");
                    // The guard: another order of the ranks is another state.
                    let turned = [checkpoints[1], checkpoints[2], checkpoints[0]];
                    assert!(!both_ends_agree(&codec, n, &turned), "{run:?}");
                }
                for (rank, (cpu, found_here)) in cpus.iter().zip(&found).enumerate() {
                    assert_eq!(found_here.0, found[0].0, "rank {rank}, {run:?}");
                    assert_eq!(found_here.1.codec_state, cpu.1.codec_state, "rank {rank}, {run:?}");
                    assert_eq!(found_here.1.mean_state, cpu.1.mean_state, "rank {rank}, {run:?}");
                    assert_eq!(found_here.1.scale_log2, cpu.1.scale_log2, "rank {rank}, {run:?}");
                }
            }
        }
    }
}

#[test]
fn a_mixed_fleet_in_sites_has_the_bits_of_one_of_cpus() {
    for gpu in gpus() {
        let gpu = || Backend::Gpu(gpu.clone());
        let fleet = [gpu(), Backend::Cpu, Backend::Cpu, gpu(), gpu()];
        for codec in every_codec() {
            // Members without a slice; slices that end inside a unit.
            for (n, scale) in [(9, Scale::Fixed), (3 * codec.unit().elements + 1, Scale::Auto)] {
                for sites in [&[0, 0, 1, 1, 1][..], &[0, 1, 0, 0, 2]] {
                    let (inputs, bad) = (&[Input::F32, Input::Bf16][..], &[(2, 1)][..]);
                    let (nonfinite, optimizer_on) = (NonFinite::Skip, OptimizerOn::Cpu);
                    let run = Run { codec, scale, n, steps: 4, inputs, nonfinite, bad, optimizer_on, sites };
                    run.is_that_of_cpus(&fleet);
                    let run = Run { optimizer_on: OptimizerOn::Device, ..run };
                    let (cpus, found) = (run.on(&vec![Backend::Cpu; 5]), run.on(&fleet));
                    for (rank, (cpu, found_here)) in cpus.iter().zip(&found).enumerate() {
                        assert_eq!(found_here.0, found[0].0, "rank {rank}, {run:?}");
                        assert_eq!(found_here.1.codec_state, cpu.1.codec_state, "rank {rank}, {run:?}");
                        assert_eq!(found_here.1.mean_state, cpu.1.mean_state, "rank {rank}, {run:?}");
                    }
                }
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
    const N: usize = 1003;
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
    codecs.push(Codec::Loco(loco::Config { scale_log2: 2, ..loco::Config::default() }));
    for gpu in gpus() {
        let gpu = || Backend::Gpu(gpu.clone());
        for (index, &codec) in codecs.iter().enumerate() {
            let optimizers =
                [optim::Config::AdamW(optim::AdamW::default()), optim::Config::Sgd(optim::Sgd::default())];
            for (turn, optimizer) in optimizers.into_iter().enumerate() {
                let cpus =
                    descend(codec, &[Backend::Cpu, Backend::Cpu, Backend::Cpu], optimizer, OptimizerOn::Cpu);
                // Each codec with both fleets, one for each optimizer.
                let second = if (index + turn) % 2 == 0 { Backend::Cpu } else { gpu() };
                let fleet = [gpu(), second, gpu()];
                let found = descend(codec, &fleet, optimizer, OptimizerOn::Device);
                assert!(found.iter().all(|rank| bits(rank) == bits(&found[0])), "{codec:?}, {fleet:?}");
                // A last place can turn a code over, and error feedback turns it back: near, and 1 or more from the start.
                let pairs = found[0].iter().zip(&cpus[0]);
                let farthest = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(farthest < 0.2, "{codec:?}, {optimizer:?}, {fleet:?}: {farthest} from the CPUs");
                // The default puts no float on a device.
                if turn == 0 {
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

//! Every adapter equals the CPU definition in every bit: packets, residuals, counts and means.

#![cfg(feature = "gpu")]
#![allow(clippy::unwrap_used, reason = "test code")]
#![allow(clippy::cast_possible_truncation, reason = "random bits are cut to size, values rounded to f32")]

#[path = "common/gpu.rs"]
mod common;

use common::{Cpu, Encoder, Random, TINY, compare, configs, gpus, gradient, means, narrow};
use gradwire::codec::loco::{Config, packet_words, variants};
use gradwire::codec::{AverageError, Step};
use gradwire::gpu::loco::{Average, Encode};
use gradwire::gpu::source::LOCO_ENCODE;
use gradwire::gpu::{AdapterChoice, Gpu, GpuError, Limits, wgpu};

const SEED: u64 = 20_261_129;
const LENGTHS: [usize; 20] =
    [1, 7, 8, 9, 31, 32, 33, 63, 64, 65, 255, 256, 257, 2047, 2048, 2049, 2305, 4097, 50_257, 65_537];

/// Runs steps that cross a reset over every configuration; `make` gives a fresh encoder.
fn equals_the_definition<E: Encoder>(
    elements: usize,
    mut make: impl FnMut(usize) -> E,
) -> Result<(), String> {
    for (number, config) in (0..).zip(configs()) {
        let mut random = Random(SEED + number + elements as u64);
        let steps: Vec<_> = (0..4).map(|_| gradient(&mut random, elements, &config)).collect();
        let first_step = config.reset_every.map_or(1, |every| u64::from(every.get()) - 1).max(1);
        compare(&config, first_step, &steps, &mut make(elements))?;
    }
    Ok(())
}

#[test]
fn every_cpu_variant_equals_the_definition() {
    for variant in variants() {
        for elements in LENGTHS {
            equals_the_definition(elements, |elements| Cpu(variant, vec![0; elements]))
                .unwrap_or_else(|difference| panic!("{}, seed {SEED}: {difference}", variant.name));
        }
    }
}

#[test]
fn every_adapter_encodes_as_the_definition_at_every_length_and_however_the_work_is_cut() {
    for gpu in gpus() {
        for limits in [Limits::of(&gpu), narrow(&gpu), TINY] {
            // 50,257 elements in parts of 64 are 786 dispatches a step: slow, and they show nothing new.
            for elements in LENGTHS.into_iter().filter(|&elements| limits != TINY || elements < 2400) {
                equals_the_definition(elements, |elements| {
                    Encode::with_limits(&gpu, elements, limits).unwrap()
                })
                .unwrap_or_else(|difference| {
                    panic!("{}, {limits:?}, seed {SEED}: {difference}", gpu.info().name)
                });
            }
        }
    }
}

#[test]
fn a_shader_that_rounds_half_up_or_forgets_the_residual_is_noticed() {
    let source = LOCO_ENCODE.source();
    for (right, wrong) in [
        ("return (value + half - vec4<i32>(1) + odd) >> shift;", "return (value + half) >> shift;"),
        ("let h = fixed + (old <<", "let h = fixed + (vec4<i32>(0) <<"),
        ("count4(finite & (code != rounded))", "count4(code != rounded)"),
        ("& params.keep", ""),
        ("vec4<i32>(25)", "vec4<i32>(23)"),
    ] {
        let edited = source.replace(right, wrong);
        assert_ne!(edited, source, "{right} is no longer in the shader: edit this test");
        for gpu in gpus() {
            let limits = Limits::of(&gpu);
            let result = equals_the_definition(2305, |elements| {
                Encode::with_source(&gpu, elements, limits, &edited).unwrap()
            });
            assert!(result.is_err(), "{wrong} in place of {right} went unnoticed on {}", gpu.info().name);
        }
    }
}

#[test]
fn a_dispatch_of_many_rows_changes_no_bit() {
    // Rows of 2 workgroups stand for rows of 65,535, which 512 MiB of gradient would be needed to fill.
    let elements = 3 * 65_536 * 8 + 13;
    let config = Config::default();
    for gpu in gpus() {
        for workgroups_per_dimension in [2, 65_535] {
            let limits = Limits { binding_bytes: Limits::of(&gpu).binding_bytes, workgroups_per_dimension };
            let mut random = Random(SEED);
            let steps: Vec<_> = (0..2).map(|_| gradient(&mut random, elements, &config)).collect();
            let mut encode = Encode::with_limits(&gpu, elements, limits).unwrap();
            compare(&config, 1, &steps, &mut encode)
                .unwrap_or_else(|difference| panic!("{limits:?}: {difference}"));
        }
    }
}

#[test]
fn every_adapter_averages_as_the_definition_for_any_world_size_length_and_cut() {
    for gpu in gpus() {
        for limits in [Limits::of(&gpu), narrow(&gpu), TINY] {
            for elements in [1, 7, 8, 9, 63, 64, 65, 257, 2305, 4097] {
                let mut average = Average::with_limits(&gpu, elements, limits).unwrap();
                // Up, down and up again: buffers of a larger world serve a smaller one.
                for (world_size, config) in [1, 2, 17, 3, 33, 5].into_iter().zip(configs()) {
                    let mut random = Random(SEED + world_size as u64);
                    let words = packet_words(elements);
                    let packets: Vec<Vec<u32>> =
                        (0..world_size).map(|_| (0..words).map(|_| random.bits() as u32).collect()).collect();
                    let mut weights: Vec<u32> = (0..world_size).map(|_| random.below(1000) as u32).collect();
                    weights[0] += 1;
                    let (got, want) = means(&mut average, &config, &packets, &weights).unwrap();
                    let different = (0..elements).find(|&at| got[at] != want[at]);
                    assert_eq!(
                        different.map(|at| (at, got[at], want[at])),
                        None,
                        "{}, {limits:?}, {elements} elements, world size {world_size}, {config:?}, seed {SEED}",
                        gpu.info().name
                    );
                }
            }
        }
    }
}

#[test]
fn the_product_of_the_mean_is_rounded_as_ieee_754_says_for_every_sum() {
    // Weights near the limit, so that sums and totals use all 24 bits and the product is inexact almost everywhere.
    let elements = 8192;
    for gpu in gpus() {
        let mut average = Average::new(&gpu, elements).unwrap();
        let mut random = Random(SEED);
        for round in 0..40_u64 {
            let scale_log2 = [19, -64, 64, 0][round as usize % 4];
            let config = Config { scale_log2, ..Config::default() };
            let weights: Vec<u32> = (0..8).map(|k| (random.below(1 << (18 - k)) + 1) as u32).collect();
            let packets: Vec<Vec<u32>> =
                (0..8).map(|_| (0..packet_words(elements)).map(|_| random.bits() as u32).collect()).collect();
            let (got, want) = means(&mut average, &config, &packets, &weights).unwrap();
            let different = (0..elements).find(|&at| got[at] != want[at]);
            assert_eq!(
                different.map(|at| (at, got[at], want[at])),
                None,
                "{}, round {round}, weights {weights:?}, {config:?}, seed {SEED}",
                gpu.info().name
            );
        }
    }
}

#[test]
fn a_mean_of_4096_ranks_is_exact_and_a_sum_of_zero_is_plus_zero() {
    let elements = 65;
    for gpu in gpus() {
        for limits in [Limits::of(&gpu), TINY] {
            let mut average = Average::with_limits(&gpu, elements, limits).unwrap();
            let mut random = Random(SEED);
            let packets: Vec<Vec<u32>> = (0..4096)
                // Element 0 is 1 on even ranks and -1 on odd ones: its sum is 0.
                .map(|rank| {
                    (0..9)
                        .map(|_| (random.bits() as u32 & !0xF) | if rank % 2 == 0 { 1 } else { 0xF })
                        .collect()
                })
                .collect();
            let (got, want) = means(&mut average, &Config::default(), &packets, &[511; 4096]).unwrap();
            assert_eq!(got, want, "{}, {limits:?}", gpu.info().name);
            assert_eq!(got[0], 0, "plus zero, {}", gpu.info().name);
        }
    }
}

#[test]
fn a_residual_that_was_read_goes_back_and_continues_the_run() {
    let config = Config { reset_every: None, ..Config::default() };
    for gpu in gpus() {
        for limits in [Limits::of(&gpu), TINY] {
            let mut random = Random(SEED);
            let gradients: Vec<_> = (0..2).map(|_| gradient(&mut random, 203, &config)).collect();
            let mut first = Encode::with_limits(&gpu, 203, limits).unwrap();
            let mut packets = [[0; 26]; 2];
            let step = Step::FIRST;
            first.encode(&config, step, &gradients[0], &mut packets[0]).unwrap();
            let mut second = Encode::new(&gpu, 203).unwrap();
            second.set_residual(&first.residual().unwrap()).unwrap();
            first.encode(&config, step, &gradients[1], &mut packets[0]).unwrap();
            second.encode(&config, step, &gradients[1], &mut packets[1]).unwrap();
            assert_eq!(packets[0], packets[1]);
            assert_eq!(first.residual().unwrap(), second.residual().unwrap());
        }
    }
}

#[test]
fn threads_that_share_one_device_do_not_disturb_each_other() {
    for gpu in gpus() {
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let gpu = &gpu;
                scope.spawn(move || {
                    let make = |elements| Encode::with_limits(gpu, elements, TINY).unwrap();
                    equals_the_definition(257 + thread, make)
                        .unwrap_or_else(|difference| panic!("{difference}"));
                });
            }
        });
    }
}

#[test]
fn wrong_arguments_are_errors_of_the_caller_and_change_nothing() {
    for gpu in gpus() {
        let config = Config::default();
        let mut encode = Encode::new(&gpu, 9).unwrap();
        let short = encode.encode(&config, Step::FIRST, &[0.0; 8], &mut [0; 2]).unwrap_err();
        assert_eq!(short.to_string(), "gradient has 8 elements, this state was made for 9");
        let narrow = encode.encode(&config, Step::FIRST, &[0.0; 9], &mut [0; 1]).unwrap_err();
        assert_eq!(narrow.to_string(), "packet has 1 words, this state was made for 2");
        let wild = Config { residual_scale_log2: 7, ..config };
        let wild = encode.encode(&wild, Step::FIRST, &[0.0; 9], &mut [0; 2]).unwrap_err();
        assert!(matches!(wild, GpuError::Config(_)), "{wild}");
        assert!(matches!(encode.set_residual(&[0; 8]).unwrap_err(), GpuError::Length { given: 8, .. }));
        assert_eq!(encode.residual().unwrap(), [0; 9]);

        let mut average = Average::new(&gpu, 9).unwrap();
        let error = average.average(&config, &[&[0; 1]], &[1], &mut [0.0; 9]).unwrap_err();
        assert!(matches!(error, GpuError::Average(AverageError::PacketLength { words: 1, .. })), "{error}");
        let error = average.average(&config, &[&[0; 2]], &[0], &mut [0.0; 9]).unwrap_err();
        assert!(matches!(error, GpuError::Average(AverageError::NoSamples { .. })), "{error}");
    }
}

#[test]
fn an_empty_shard_encodes_and_averages_to_nothing() {
    for gpu in gpus() {
        let mut encode = Encode::new(&gpu, 0).unwrap();
        let stats = encode.encode(&Config::default(), Step::FIRST, &[], &mut []).unwrap();
        assert_eq!((stats.nonfinite, stats.saturated), (0, 0));
        assert_eq!(encode.residual().unwrap(), []);
        Average::new(&gpu, 0).unwrap().average(&Config::default(), &[&[]], &[1], &mut []).unwrap();
    }
}

#[test]
fn a_destroyed_device_is_a_typed_error_and_no_panic() {
    for gpu in gpus() {
        let config = Config::default();
        let mut encode = Encode::new(&gpu, 100).unwrap();
        encode.encode(&config, Step::FIRST, &[1.0; 100], &mut [0; 13]).unwrap();
        gpu.device().destroy();
        let error = encode.encode(&config, Step::FIRST, &[1.0; 100], &mut [0; 13]).unwrap_err();
        assert!(matches!(error, GpuError::DeviceLost { .. }), "{error}");
        let error = Encode::new(&gpu, 100).unwrap_err();
        assert!(matches!(error, GpuError::DeviceLost { .. }), "{error}");
    }
}

#[test]
fn a_device_of_the_caller_serves_as_well_and_its_loss_is_a_typed_error() {
    for gpu in gpus() {
        let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle_from_env());
        let adapters = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::all()));
        let adapter =
            adapters.into_iter().find(|adapter| adapter.get_info().name == gpu.info().name).unwrap();
        let descriptor = wgpu::DeviceDescriptor {
            required_limits: wgpu::Limits::downlevel_defaults(),
            ..Default::default()
        };
        let (device, queue) = pollster::block_on(adapter.request_device(&descriptor)).unwrap();
        let own = Gpu::from_device(&adapter.get_info(), device.clone(), queue);
        equals_the_definition(2305, |elements| Encode::new(&own, elements).unwrap())
            .unwrap_or_else(|difference| panic!("{}: {difference}", gpu.info().name));

        let mut encode = Encode::new(&own, 100).unwrap();
        device.destroy();
        let error = encode.encode(&Config::default(), Step::FIRST, &[1.0; 100], &mut [0; 13]).unwrap_err();
        assert!(matches!(error, GpuError::DeviceLost { .. }), "{error}");
    }
}

#[test]
fn a_device_that_misses_its_deadline_is_a_typed_error_and_the_state_waits_for_a_residual() {
    let elements = 1 << 22;
    let (gradient, mut packet) = (vec![1.0; elements], vec![0; packet_words(elements)]);
    for gpu in gpus() {
        let hurried = gpu.with_deadline(std::time::Duration::ZERO);
        let mut encode = Encode::new(&hurried, elements).unwrap();
        let mut run =
            |encode: &mut Encode| encode.encode(&Config::default(), Step::FIRST, &gradient, &mut packet);
        // A device may be done before anyone waits, when this thread is put to sleep in between; not every time.
        let error = (0..20).find_map(|_| run(&mut encode).err()).unwrap();
        assert!(matches!(error, GpuError::Timeout { .. }), "{error}");
        let error = run(&mut encode).unwrap_err();
        assert!(matches!(error, GpuError::Broken { .. }), "{error}");
        encode.set_residual(&vec![0; elements]).unwrap();
        let result = run(&mut encode);
        assert!(
            matches!(result, Ok(_) | Err(GpuError::Timeout { .. })),
            "usable again, late or not: {result:?}"
        );
    }
}

#[test]
fn a_shader_that_does_not_compile_is_a_typed_error_and_no_panic() {
    for gpu in gpus() {
        let error =
            Encode::with_source(&gpu, 8, Limits::of(&gpu), "fn main() { let x: u32 = 1.0; }").unwrap_err();
        assert!(matches!(error, GpuError::Device { .. }), "{error}");
        assert!(!error.to_string().contains('\n'), "{error}");
    }
}

#[test]
fn an_adapter_is_found_by_a_part_of_its_name_in_any_case() {
    for gpu in gpus() {
        let name = gpu.info().name.to_uppercase();
        assert_eq!(Gpu::open(&AdapterChoice { name: Some(name) }).unwrap().info().name, gpu.info().name);
    }
    let error = Gpu::open(&AdapterChoice { name: Some("no such adapter".into()) }).unwrap_err();
    assert!(matches!(error, GpuError::NoAdapter { .. }), "{error}");
}

//! Every adapter equals the CPU definition in every bit: packets, residuals, counts and means.

#![cfg(feature = "gpu")]
#![allow(clippy::unwrap_used, reason = "test code")]
#![allow(clippy::cast_possible_truncation, reason = "random bits are cut to size, values rounded to f32")]

#[path = "common/gpu.rs"]
mod common;

use common::{
    Cpu, Encoder, Means, Random, TINY, Values, before_reset, codecs, codecs_and_first_of_each, compare,
    configs, definition, gpus, gradient, narrow, notices, spread,
};
use gradwire::codec::loco::{Config, packet_words, variants};
use gradwire::codec::{AverageError, Codec, Input, Step};
use gradwire::gpu::source::{LOCO_AVERAGE, LOCO_ENCODE};
use gradwire::gpu::{AdapterChoice, Average, Encode, Gpu, GpuError, Limits, wgpu};
use half::{bf16, f16};

const SEED: u64 = 20_261_129;

/// Around every boundary of a word, a workgroup, a block, and a chunk of 4096.
const LENGTHS: [usize; 12] = [1, 7, 8, 9, 63, 64, 65, 2305, 4095, 4096, 4097, 50_257];

/// LoCo as it is by default.
const LOCO: fn() -> Codec = || Codec::Loco(Config::default());

/// Runs steps that cross a reset; `encoder` is fresh.
fn equals_the_definition(
    codec: &Codec,
    input: Input,
    elements: usize,
    encoder: &mut dyn Encoder,
) -> Result<(), String> {
    let mut random = Random(SEED + elements as u64);
    // Three steps show everything; of 50,257 elements two must do, as this is a debug build.
    let steps = if elements < 10_000 { 4 } else { 2 };
    let steps: Vec<_> = (0..steps).map(|_| gradient(&mut random, elements, codec, input)).collect();
    compare(codec, before_reset(codec), &steps, encoder)
}

#[test]
fn every_cpu_variant_of_loco_equals_the_definition() {
    for variant in variants() {
        for codec in configs().into_iter().map(Codec::Loco) {
            for elements in LENGTHS.into_iter().chain([31, 32, 33, 255, 256, 257, 2047, 2048, 2049, 65_537]) {
                equals_the_definition(&codec, Input::F32, elements, &mut Cpu::new(variant, &codec, elements))
                    .unwrap_or_else(|difference| panic!("{}, seed {SEED}: {difference}", variant.name));
            }
        }
    }
}

/// How the work is cut, with the lengths at which that shows: all of them would be minutes of tiny dispatches.
fn cuts(gpu: &Gpu, codec: &Codec) -> [(Limits, Vec<usize>); 3] {
    let unit = codec.unit().elements;
    [
        (Limits::of(gpu), LENGTHS.to_vec()),
        (narrow(gpu), vec![2305, 4097]),
        (TINY, vec![1, 9, 65, 203, unit + 1, 2 * unit + 9]),
    ]
}

#[test]
fn every_adapter_encodes_as_the_definition_at_every_length_and_however_the_work_is_cut() {
    for gpu in gpus() {
        for (index, (codec, first)) in codecs_and_first_of_each().into_iter().enumerate() {
            for (limits, lengths) in cuts(&gpu, &codec) {
                let lengths = if first { lengths } else { spread(&lengths, index, 2) };
                for input in Input::ALL {
                    let few = |elements: &usize| input == Input::F32 || [7, 65, 4097].contains(elements);
                    // The longest has three times the elements of all others together.
                    let long = |elements: &usize| first || *elements < 10_000;
                    for elements in lengths.iter().copied().filter(few).filter(long) {
                        let mut encode = Encode::with_limits(&gpu, &codec, input, elements, limits).unwrap();
                        equals_the_definition(&codec, input, elements, &mut encode).unwrap_or_else(
                            |difference| panic!("{}, {limits:?}, seed {SEED}: {difference}", gpu.info().name),
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn every_half_value_is_widened_as_on_the_cpu() {
    // At scale 2^-64 everything is small; the widened value itself shows at scales around its own exponent.
    let all = || 0..=u16::MAX;
    for (values, scales) in [
        (Values::F16(all().map(f16::from_bits).collect()), [24, 14, 0, -14]),
        (Values::Bf16(all().map(bf16::from_bits).collect()), [64, 20, 0, -64]),
    ] {
        for gpu in gpus() {
            for scale_log2 in scales {
                let codec = Codec::Loco(Config { scale_log2, ..Config::default() });
                let input = values.gradient().input();
                let mut encode = Encode::new(&gpu, &codec, input, 1 << 16).unwrap();
                compare(&codec, 1, std::slice::from_ref(&values), &mut encode)
                    .unwrap_or_else(|difference| panic!("{}: {difference}", gpu.info().name));
            }
        }
    }
}

#[test]
fn a_shader_that_rounds_half_up_or_forgets_the_residual_is_noticed() {
    for (input, right, wrong) in [
        (
            Input::F32,
            "return (value + half - vec4<i32>(1) + odd) >> shift;",
            "return (value + half) >> shift;",
        ),
        (Input::F32, "let h = fixed + (old <<", "let h = fixed + (vec4<i32>(0) <<"),
        (Input::F32, "count_set4(finite & (code != rounded))", "count_set4(code != rounded)"),
        (Input::F32, "atomicAdd(&stats[0], nonfinite)", "atomicAdd(&stats[0], 1u)"),
        (Input::F32, "& params.keep", ""),
        (Input::F32, "vec4<i32>(25)", "vec4<i32>(23)"),
        (Input::F16, "select(normal, subnormal,", "select(normal, vec4<u32>(0u),"),
        (
            Input::F16,
            "select(vec4<u32>(112u << 23u), vec4<u32>(224u << 23u), special)",
            "vec4<u32>(112u << 23u)",
        ),
        (Input::Bf16, "vec4<u32>(16u, 0u, 16u, 0u)", "vec4<u32>(0u, 16u, 0u, 16u)"),
    ] {
        notices(&LOCO_ENCODE.source(input), right, wrong, |gpu, text| {
            configs().into_iter().map(Codec::Loco).try_for_each(|codec| {
                let limits = Limits::of(gpu);
                let mut encode = Encode::with_source(gpu, &codec, input, 2305, limits, text).unwrap();
                equals_the_definition(&codec, input, 2305, &mut encode)
            })
        });
    }
}

#[test]
fn an_average_that_forgets_a_weight_or_rounds_half_up_is_noticed() {
    for (right, wrong) in [
        ("low += weight *", "low += "),
        ("(rest == half) && ((kept & 1u) == 1u)", "rest == half"),
        ("rank * params.units + group", "group"),
    ] {
        notices(&LOCO_AVERAGE.source(Input::F32), right, wrong, |gpu, text| {
            let codec = Codec::Loco(Config { scale_log2: 0, ..Config::default() });
            // A power of two as total and sums of 25 bits or less: ties of the product need an odd factor.
            let average = Average::with_source(gpu, &codec, 8192, Limits::of(gpu), text).unwrap();
            let mut means = Means::new(average);
            let mut random = Random(SEED);
            (0..40).try_for_each(|_| {
                let weights: Vec<u32> = (0..8).map(|k| (random.below(1 << (18 - k)) + 1) as u32).collect();
                let packets = any_packets(&mut random, &codec, 8192, 8);
                means.compare(&codec, &packets, &weights)
            })
        });
    }
}

#[test]
fn a_dispatch_of_many_rows_changes_no_bit() {
    // Rows of 2 workgroups stand for rows of 65,535, which 512 MiB of gradient would be needed to fill.
    let elements = 3 * 65_536 * 8 + 13;
    for gpu in gpus() {
        for workgroups_per_dimension in [2, 65_535] {
            let limits = Limits { binding_bytes: Limits::of(&gpu).binding_bytes, workgroups_per_dimension };
            let mut random = Random(SEED);
            let steps: Vec<_> =
                (0..2).map(|_| gradient(&mut random, elements, &LOCO(), Input::F32)).collect();
            let mut encode = Encode::with_limits(&gpu, &LOCO(), Input::F32, elements, limits).unwrap();
            compare(&LOCO(), 1, &steps, &mut encode)
                .unwrap_or_else(|difference| panic!("{limits:?}: {difference}"));
        }
    }
}

/// Packets of random words, one per rank: any may come from a peer.
fn any_packets(random: &mut Random, codec: &Codec, elements: usize, ranks: usize) -> Vec<Vec<u32>> {
    let words = codec.packet_words(elements);
    (0..ranks).map(|_| (0..words).map(|_| random.bits() as u32).collect()).collect()
}

/// Packets as encoders write them, one per rank.
fn true_packets(random: &mut Random, codec: &Codec, elements: usize, ranks: usize) -> Vec<Vec<u32>> {
    let encode = |_| {
        let values = gradient(random, elements, codec, Input::F32);
        let mut packet = vec![0; codec.packet_words(elements)];
        codec.encode(Step::FIRST, values.gradient(), &mut vec![0; codec.state_words(elements)], &mut packet);
        packet
    };
    (0..ranks).map(encode).collect()
}

#[test]
fn every_adapter_averages_as_the_definition_for_any_world_size_length_and_cut() {
    for gpu in gpus() {
        for (index, (codec, first)) in codecs_and_first_of_each().into_iter().enumerate() {
            for (limits, lengths) in cuts(&gpu, &codec) {
                let lengths = if first { lengths } else { spread(&lengths, index, 2) };
                for elements in lengths.into_iter().filter(|&elements| elements < 10_000) {
                    // Of small buffers all world sizes, of large ones some.
                    let small = elements < 1000;
                    let mut means = Means::new(Average::with_limits(&gpu, &codec, elements, limits).unwrap());
                    // Up, down and up again: buffers of a larger world serve a smaller one.
                    for ranks in if small { vec![1, 2, 17, 3, 5, 5] } else { vec![2, 17, 3] } {
                        let mut random = Random(SEED + ranks as u64);
                        let packets = if ranks == 17 { any_packets } else { true_packets }(
                            &mut random,
                            &codec,
                            elements,
                            ranks,
                        );
                        let mut weights: Vec<u32> = (0..ranks).map(|_| random.below(1000) as u32).collect();
                        weights[0] += 1;
                        // One rank without samples, whose packet does not count.
                        if let [.., last] = &mut weights[1..] {
                            *last = 0;
                        }
                        means.compare(&codec, &packets, &weights).unwrap_or_else(|difference| {
                            panic!("{}, {limits:?}, seed {SEED}: {difference}", gpu.info().name)
                        });
                    }
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
        let mut means = Means::new(Average::new(&gpu, &LOCO(), elements).unwrap());
        let mut random = Random(SEED);
        for round in 0..40_u64 {
            let scale_log2 = [19, -64, 64, 0][round as usize % 4];
            let codec = Codec::Loco(Config { scale_log2, ..Config::default() });
            let weights: Vec<u32> = (0..8).map(|k| (random.below(1 << (18 - k)) + 1) as u32).collect();
            let packets = any_packets(&mut random, &codec, elements, 8);
            means.compare(&codec, &packets, &weights).unwrap_or_else(|difference| {
                panic!("{}, round {round}, seed {SEED}: {difference}", gpu.info().name)
            });
        }
    }
}

#[test]
fn a_mean_of_4096_ranks_is_exact_and_a_sum_of_zero_is_plus_zero() {
    let elements = 65;
    for gpu in gpus() {
        for limits in [Limits::of(&gpu), TINY] {
            let average = Average::with_limits(&gpu, &LOCO(), elements, limits).unwrap();
            let mut means = Means::new(average);
            let mut random = Random(SEED);
            let packets: Vec<Vec<u32>> = (0..4096)
                // Element 0 is 1 on even ranks and -1 on odd ones: its sum is 0.
                .map(|rank| {
                    (0..9)
                        .map(|_| (random.bits() as u32 & !0xF) | if rank % 2 == 0 { 1 } else { 0xF })
                        .collect()
                })
                .collect();
            means.compare(&LOCO(), &packets, &[511; 4096]).unwrap();
            let packets: Vec<&[u32]> = packets.iter().map(Vec::as_slice).collect();
            let mut mean = vec![f32::NAN; elements];
            means.average.average(&LOCO(), &packets, &[511; 4096], &mut mean).unwrap();
            assert_eq!(mean[0].to_bits(), 0, "plus zero, {}", gpu.info().name);
        }
    }
}

#[test]
fn a_state_that_was_read_goes_back_and_continues_the_run_on_either_side() {
    for gpu in gpus() {
        for codec in codecs() {
            for limits in [Limits::of(&gpu), TINY] {
                let elements = 203;
                let mut random = Random(SEED);
                let mut values = || gradient(&mut random, elements, &codec, Input::F32);
                let (first_step, second_step) = (values(), values());
                let mut packets = vec![vec![0; codec.packet_words(elements)]; 3];
                let make = |limits| Encode::with_limits(&gpu, &codec, Input::F32, elements, limits).unwrap();
                let mut first = make(limits);
                let step = Step::FIRST;
                first.encode(&codec, step, first_step.gradient(), &mut packets[0]).unwrap();
                let mut second = make(Limits::of(&gpu));
                let mut cpu = first.state().unwrap();
                second.set_state(&cpu).unwrap();
                first.encode(&codec, step, second_step.gradient(), &mut packets[0]).unwrap();
                second.encode(&codec, step, second_step.gradient(), &mut packets[1]).unwrap();
                codec.encode(step, second_step.gradient(), &mut cpu, &mut packets[2]);
                assert_eq!(packets[0], packets[1], "{codec:?}");
                assert_eq!(packets[0], packets[2], "{codec:?}");
                assert_eq!(first.state().unwrap(), cpu, "{codec:?}");
                assert_eq!(second.state().unwrap(), cpu, "{codec:?}");
            }
        }
    }
}

#[test]
fn a_gradient_of_another_type_is_refused_until_it_is_announced_and_the_state_goes_on() {
    let elements = 203;
    for gpu in gpus() {
        let mut random = Random(SEED);
        let mut encode = Encode::with_limits(&gpu, &LOCO(), Input::F32, elements, TINY).unwrap();
        let mut cpu = Cpu::new(definition(), &LOCO(), elements);
        let (mut got, mut want) = (vec![0; packet_words(elements)], vec![0; packet_words(elements)]);
        for input in [Input::F32, Input::F16, Input::Bf16, Input::F32] {
            let values = gradient(&mut random, elements, &LOCO(), input);
            if input != Input::F32 {
                let error = encode.encode(&LOCO(), Step::FIRST, values.gradient(), &mut got).unwrap_err();
                assert!(matches!(error, GpuError::Input { given, .. } if given == input), "{error}");
            }
            encode.set_input(input).unwrap();
            encode.encode(&LOCO(), Step::FIRST, values.gradient(), &mut got).unwrap();
            cpu.encode(&LOCO(), Step::FIRST, values.gradient(), &mut want);
            assert_eq!(got, want, "{input:?}");
            assert_eq!(encode.state().unwrap(), cpu.state(), "{input:?}");
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
                    for codec in codecs() {
                        let elements = 257 + thread;
                        let mut encode =
                            Encode::with_limits(gpu, &codec, Input::F32, elements, TINY).unwrap();
                        equals_the_definition(&codec, Input::F32, elements, &mut encode)
                            .unwrap_or_else(|difference| panic!("{difference}"));
                    }
                });
            }
        });
    }
}

#[test]
fn wrong_arguments_are_errors_of_the_caller_and_change_nothing() {
    for gpu in gpus() {
        let codec = LOCO();
        let mut encode = Encode::new(&gpu, &codec, Input::F32, 9).unwrap();
        let short = encode.encode(&codec, Step::FIRST, (&[0.0_f32; 8]).into(), &mut [0; 2]).unwrap_err();
        assert_eq!(short.to_string(), "gradient has 8 elements, this state was made for 9");
        let gradient = (&[0.0_f32; 9]).into();
        let narrow = encode.encode(&codec, Step::FIRST, gradient, &mut [0; 1]).unwrap_err();
        assert_eq!(narrow.to_string(), "packet has 1 words, this state was made for 2");
        let wild = Codec::Loco(Config { residual_scale_log2: 7, ..Config::default() });
        let error = encode.encode(&wild, Step::FIRST, gradient, &mut [0; 2]).unwrap_err();
        assert!(matches!(error, GpuError::Config(_)), "{error}");
        let error = Encode::new(&gpu, &wild, Input::F32, 9).unwrap_err();
        assert!(matches!(error, GpuError::Config(_)), "{error}");
        let other = encode.encode(&Codec::F32, Step::FIRST, gradient, &mut [0; 2]).unwrap_err();
        assert_eq!(other.to_string(), "codec is f32, this state was made for loco");
        let half = [f16::ZERO; 9];
        let half = encode.encode(&codec, Step::FIRST, (&half).into(), &mut [0; 2]).unwrap_err();
        assert_eq!(half.to_string(), "gradient is f16, this state was made for f32");
        assert!(matches!(encode.set_state(&[0; 3]).unwrap_err(), GpuError::Length { given: 3, .. }));
        assert_eq!(encode.state().unwrap(), [0; 4]);

        let mut average = Average::new(&gpu, &codec, 9).unwrap();
        let error = average.average(&codec, &[&[0; 1]], &[1], &mut [0.0; 9]).unwrap_err();
        assert!(matches!(error, GpuError::Average(AverageError::PacketLength { words: 1, .. })), "{error}");
        let error = average.average(&codec, &[&[0; 2]], &[0], &mut [0.0; 9]).unwrap_err();
        assert!(matches!(error, GpuError::Average(AverageError::NoSamples { .. })), "{error}");
        let error = average.average(&Codec::F32, &[&[0; 9]], &[1], &mut [0.0; 9]).unwrap_err();
        assert!(matches!(error, GpuError::Codec { .. }), "{error}");
        assert_eq!(average.state().unwrap(), [0; 0]);
        assert!(matches!(average.set_state(&[0]).unwrap_err(), GpuError::Length { given: 1, .. }));
    }
}

#[test]
fn an_empty_shard_encodes_and_averages_to_nothing() {
    for gpu in gpus() {
        for codec in codecs() {
            let mut encode = Encode::new(&gpu, &codec, Input::F32, 0).unwrap();
            let stats = encode.encode(&codec, Step::FIRST, (&[0.0_f32; 0]).into(), &mut []).unwrap();
            assert_eq!((stats.nonfinite, stats.saturated), (0, 0));
            assert_eq!(encode.state().unwrap(), [0; 0]);
            Average::new(&gpu, &codec, 0).unwrap().average(&codec, &[&[]], &[1], &mut []).unwrap();
        }
    }
}

#[test]
fn a_destroyed_device_is_a_typed_error_and_no_panic() {
    for gpu in gpus() {
        let gradient = (&[1.0_f32; 100]).into();
        let mut encode = Encode::new(&gpu, &LOCO(), Input::F32, 100).unwrap();
        let mut average = Average::new(&gpu, &LOCO(), 100).unwrap();
        encode.encode(&LOCO(), Step::FIRST, gradient, &mut [0; 13]).unwrap();
        average.average(&LOCO(), &[&[0; 13]], &[1], &mut [0.0; 100]).unwrap();
        gpu.device().destroy();
        let error = encode.encode(&LOCO(), Step::FIRST, gradient, &mut [0; 13]).unwrap_err();
        assert!(matches!(error, GpuError::DeviceLost { .. }), "{error}");
        let error = average.average(&LOCO(), &[&[0; 13]], &[1], &mut [0.0; 100]).unwrap_err();
        assert!(matches!(error, GpuError::DeviceLost { .. }), "{error}");
        let error = Encode::new(&gpu, &LOCO(), Input::F32, 100).unwrap_err();
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
        for codec in codecs() {
            let mut encode = Encode::new(&own, &codec, Input::F32, 2305).unwrap();
            equals_the_definition(&codec, Input::F32, 2305, &mut encode)
                .unwrap_or_else(|difference| panic!("{}: {difference}", gpu.info().name));
        }
        let mut encode = Encode::new(&own, &LOCO(), Input::F32, 100).unwrap();
        device.destroy();
        let gradient = (&[1.0_f32; 100]).into();
        let error = encode.encode(&LOCO(), Step::FIRST, gradient, &mut [0; 13]).unwrap_err();
        assert!(matches!(error, GpuError::DeviceLost { .. }), "{error}");
    }
}

#[test]
fn a_device_that_misses_its_deadline_is_a_typed_error_and_the_encoder_waits_for_a_state() {
    let elements = 1 << 22;
    let (gradient, mut packet) = (vec![1.0_f32; elements], vec![0; packet_words(elements)]);
    for gpu in gpus() {
        let hurried = gpu.with_deadline(std::time::Duration::ZERO);
        let mut encode = Encode::new(&hurried, &LOCO(), Input::F32, elements).unwrap();
        let mut run =
            |encode: &mut Encode| encode.encode(&LOCO(), Step::FIRST, (&gradient).into(), &mut packet);
        // A device may be done before anyone waits, when this thread is put to sleep in between; not every time.
        let error = (0..20).find_map(|_| run(&mut encode).err()).unwrap();
        assert!(matches!(error, GpuError::Timeout { .. }), "{error}");
        let error = run(&mut encode).unwrap_err();
        assert!(matches!(error, GpuError::Broken { .. }), "{error}");
        encode.set_state(&vec![0; LOCO().state_words(elements)]).unwrap();
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
        let text = "fn main() { let x: u32 = 1.0; }";
        let error = Encode::with_source(&gpu, &LOCO(), Input::F32, 8, Limits::of(&gpu), text).unwrap_err();
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

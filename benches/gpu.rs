//! LoCo and AdamW on every adapter of this machine against the CPU twin, whole calls with their transfers.
//!
//! The kernels alone, against a copy on the same device: `gradwire::gpu::throughput`.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use gradwire::codec::{Codec, Input, Step, loco};
use gradwire::gpu::{AdapterChoice, Average, Encode, Gpu, GpuError, Limits, Optimizer, Owner, adapters};
use gradwire::optim::{AdamW, Config};

/// A small model, one that fits the caches, and one part of a large gradient.
const ELEMENTS: [usize; 3] = [50_257, 1 << 20, 16 << 20];
const RANKS: usize = 4;

fn gradient(elements: usize) -> Vec<f32> {
    (0_u16..251).map(|k| f32::from(k) / 50.0 - 2.5).cycle().take(elements).collect()
}

fn encode_on_cpu(c: &mut Criterion, codec: &Codec) {
    let mut group = c.benchmark_group("encode");
    for elements in ELEMENTS {
        let gradient = gradient(elements);
        let (mut state, mut packet) =
            (vec![0; codec.state_words(elements)], vec![0; codec.packet_words(elements)]);
        group.throughput(Throughput::Elements(elements as u64));
        group.bench_function(BenchmarkId::new("cpu", elements), |b| {
            b.iter(|| codec.encode(Step::FIRST, black_box((&gradient).into()), &mut state, &mut packet));
        });
    }
}

fn adamw_on_cpu(c: &mut Criterion) {
    let mut group = c.benchmark_group("adamw");
    for elements in ELEMENTS {
        let (gradient, mut parameters) = (gradient(elements), vec![0.5; elements]);
        let mut state = Config::AdamW(AdamW::default()).state(elements);
        group.throughput(Throughput::Elements(elements as u64));
        group.bench_function(BenchmarkId::new("cpu", elements), |b| {
            b.iter(|| state.step(1e-3, black_box(&gradient), &mut parameters));
        });
    }
}

fn on_adapter(c: &mut Criterion, codec: &Codec, gpu: &Gpu) -> Result<(), GpuError> {
    for elements in ELEMENTS {
        let gradient = gradient(elements);
        let mut packet = vec![0; codec.packet_words(elements)];
        let mut group = c.benchmark_group("encode");
        group.throughput(Throughput::Elements(elements as u64));
        let mut encode = Encode::new(gpu, codec, Input::F32, elements)?;
        // Once in the open, so that a failing device ends here and not inside a measurement.
        encode.encode(codec, Step::FIRST, (&gradient).into(), &mut packet)?;
        group.bench_function(BenchmarkId::new(&gpu.info().name, elements), |b| {
            b.iter(|| encode.encode(codec, Step::FIRST, black_box((&gradient).into()), &mut packet));
        });
        group.finish();

        let mut group = c.benchmark_group("average of 4");
        group.throughput(Throughput::Elements(elements as u64));
        let (packets, mut mean) = ([packet.as_slice(); RANKS], gradient);
        let mut average = Average::new(gpu, codec, elements)?;
        average.average(codec, &packets, &[1; RANKS], &mut mean)?;
        group.bench_function(BenchmarkId::new(&gpu.info().name, elements), |b| {
            b.iter(|| average.average(codec, black_box(&packets), &[1; RANKS], &mut mean));
        });
        group.finish();

        let mut group = c.benchmark_group("adamw");
        group.throughput(Throughput::Elements(elements as u64));
        let (adamw, mut parameters) = (Config::AdamW(AdamW::default()), vec![0.5; elements]);
        let mut optimizer = Optimizer::new(gpu, &adamw, &parameters)?;
        optimizer.step(1e-3, &mean, &mut parameters)?;
        group.bench_function(BenchmarkId::new(&gpu.info().name, elements), |b| {
            b.iter(|| optimizer.step(1e-3, black_box(&mean), &mut parameters));
        });
        drop(optimizer);
        group.finish();

        // What the two above do, without the mean on the host: in one kernel, and in two.
        let mut group = c.benchmark_group("average of 4, then adamw");
        group.throughput(Throughput::Elements(elements as u64));
        let limits = Limits::of(gpu);
        for (way, mut owner) in [
            ("one kernel", Owner::with_limits(gpu, codec, &adamw, &parameters, limits)?),
            ("two kernels", Owner::with_two_kernels(gpu, codec, &adamw, &parameters, limits)?),
        ] {
            owner.step(codec, &packets, &[1; RANKS], 1e-3, &mut parameters)?;
            group.bench_function(BenchmarkId::new(format!("{}, {way}", gpu.info().name), elements), |b| {
                b.iter(|| owner.step(codec, black_box(&packets), &[1; RANKS], 1e-3, &mut parameters));
            });
        }
    }
    Ok(())
}

fn all(c: &mut Criterion) {
    let codec = Codec::Loco(loco::Config { scale_log2: 0, ..loco::Config::default() });
    encode_on_cpu(c, &codec);
    adamw_on_cpu(c);
    for info in adapters() {
        let opened = Gpu::open(&AdapterChoice { name: Some(info.label()) });
        if let Err(error) = opened.and_then(|gpu| on_adapter(c, &codec, &gpu)) {
            eprintln!("{info}: {error}");
        }
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10);
    targets = all
}
criterion_main!(benches);

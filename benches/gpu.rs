//! LoCo on every adapter of this machine against the CPU twin, whole calls with their transfers.
//!
//! The kernels alone, against a copy on the same device: `gradwire::gpu::throughput`.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use gradwire::codec::Step;
use gradwire::codec::loco::{self, Config, packet_words};
use gradwire::gpu::loco::{Average, Encode};
use gradwire::gpu::{AdapterChoice, Gpu, GpuError, adapters};

/// A small model, one that fits the caches, and one part of a large gradient.
const ELEMENTS: [usize; 3] = [50_257, 1 << 20, 16 << 20];
const RANKS: usize = 4;

fn gradient(elements: usize) -> Vec<f32> {
    (0_u16..251).map(|k| f32::from(k) / 50.0 - 2.5).cycle().take(elements).collect()
}

fn encode_on_cpu(c: &mut Criterion, config: &Config) {
    let mut group = c.benchmark_group("encode");
    for elements in ELEMENTS {
        let gradient = gradient(elements);
        let (mut residual, mut packet) = (vec![0; elements], vec![0; packet_words(elements)]);
        group.throughput(Throughput::Elements(elements as u64));
        group.bench_function(BenchmarkId::new("cpu", elements), |b| {
            b.iter(|| {
                loco::encode(config, Step::FIRST, black_box((&gradient).into()), &mut residual, &mut packet)
            });
        });
    }
}

fn on_adapter(c: &mut Criterion, config: &Config, gpu: &Gpu) -> Result<(), GpuError> {
    for elements in ELEMENTS {
        let gradient = gradient(elements);
        let mut packet = vec![0; packet_words(elements)];
        let mut group = c.benchmark_group("encode");
        group.throughput(Throughput::Elements(elements as u64));
        let mut encode = Encode::new(gpu, elements)?;
        // Once in the open, so that a failing device ends here and not inside a measurement.
        encode.encode(config, Step::FIRST, &gradient, &mut packet)?;
        group.bench_function(BenchmarkId::new(&gpu.info().name, elements), |b| {
            b.iter(|| encode.encode(config, Step::FIRST, black_box(&gradient), &mut packet));
        });
        group.finish();

        let mut group = c.benchmark_group("average of 4");
        group.throughput(Throughput::Elements(elements as u64));
        let (packets, mut mean) = ([packet.as_slice(); RANKS], gradient);
        let mut average = Average::new(gpu, elements)?;
        average.average(config, &packets, &[1; RANKS], &mut mean)?;
        group.bench_function(BenchmarkId::new(&gpu.info().name, elements), |b| {
            b.iter(|| average.average(config, black_box(&packets), &[1; RANKS], &mut mean));
        });
    }
    Ok(())
}

fn all(c: &mut Criterion) {
    let config = Config { scale_log2: 0, ..Config::default() };
    encode_on_cpu(c, &config);
    for info in adapters() {
        let opened = Gpu::open(&AdapterChoice { name: Some(info.label()) });
        if let Err(error) = opened.and_then(|gpu| on_adapter(c, &config, &gpu)) {
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

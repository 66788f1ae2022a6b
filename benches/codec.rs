//! Every codec on one core, with a copy of the same bytes beside each. Method and figures: `benches/README.md`.

use std::hint::black_box;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use gradwire::codec::loco::{self, Config};
use gradwire::codec::{Codec, CodecId, Step};

/// Elements per call: one that stays in the second-level cache, one beyond most caches.
const SIZES: [usize; 2] = [1 << 16, 1 << 24];

/// Samples of the ranks of an averaged shard.
const WEIGHTS: [u32; 4] = [3, 5, 8, 13];

/// Values with a root mean square of 1, as bell-shaped as four uniforms make them.
fn gradient(elements: usize) -> Vec<f32> {
    let mut state = 20_261_129_u32;
    let mut uniform = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    // The sum of four uniforms on -1/2..1/2 has variance 1/3.
    (0..elements).map(|_| 3.0_f32.sqrt() * (uniform() + uniform() + uniform() + uniform())).collect()
}

/// A codec at the scale that an automatic one would have for [`gradient`].
fn scaled(id: CodecId) -> Codec {
    let mut codec = Codec::new(id);
    codec.set_scale_log2(codec.rms_log2());
    codec
}

fn group<'a>(c: &'a mut Criterion, name: &str, elements: usize) -> BenchmarkGroup<'a, WallTime> {
    let mut group = c.benchmark_group(format!("{name}/{elements}"));
    group.throughput(Throughput::Elements(elements as u64)).sample_size(10);
    group
}

/// What a copy of one f32 per element takes: the other figures are put beside it.
fn copy(group: &mut BenchmarkGroup<'_, WallTime>, gradient: &[f32]) {
    let mut target = vec![0.0_f32; gradient.len()];
    group.bench_function("copy", |b| b.iter(|| target.copy_from_slice(black_box(gradient))));
}

fn encode(c: &mut Criterion) {
    for elements in SIZES {
        let mut group = group(c, "encode", elements);
        let gradient = gradient(elements);
        copy(&mut group, &gradient);
        for codec in CodecId::ALL.map(scaled) {
            let mut state = vec![0; codec.state_words(elements)];
            let mut packet = vec![0; codec.packet_words(elements)];
            group.bench_function(codec.id().name(), |b| {
                b.iter(|| codec.encode(Step::FIRST, black_box((&gradient).into()), &mut state, &mut packet));
            });
        }
        let config = Config { scale_log2: 1, ..Config::default() };
        let mut residual = vec![0_i8; elements];
        let mut packet = vec![0_u32; loco::packet_words(elements)];
        for variant in loco::variants() {
            group.bench_function(BenchmarkId::new("loco", variant.name), |b| {
                b.iter(|| {
                    let gradient = black_box(&gradient);
                    (variant.encode)(&config, Step::FIRST, gradient, &mut residual, &mut packet)
                });
            });
        }
        group.finish();
    }
}

fn average(c: &mut Criterion) {
    for elements in SIZES {
        let mut group = group(c, &format!("average of {}", WEIGHTS.len()), elements);
        let gradient = gradient(elements);
        copy(&mut group, &gradient);
        let mut mean = vec![0.0_f32; elements];
        for codec in CodecId::ALL.map(scaled) {
            let mut packet = vec![0; codec.packet_words(elements)];
            let mut state = vec![0; codec.state_words(elements)];
            codec.encode(Step::FIRST, (&gradient).into(), &mut state, &mut packet);
            // Packets of their own, so that a rank's bytes are not in a cache because another's were read.
            let packets = [(); WEIGHTS.len()].map(|()| packet.clone());
            let packets = packets.each_ref().map(Vec::as_slice);
            let mut state = vec![0; codec.mean_state_words(packets.len(), elements)];
            group.bench_function(codec.id().name(), |b| {
                b.iter(|| codec.average(black_box(&packets), &WEIGHTS, &mut state, &mut mean));
            });
            if codec.id() == CodecId::Loco {
                for variant in loco::variants() {
                    let config = Config { scale_log2: 1, ..Config::default() };
                    group.bench_function(BenchmarkId::new("loco", variant.name), |b| {
                        b.iter(|| (variant.average)(&config, black_box(&packets), &WEIGHTS, &mut mean));
                    });
                }
            }
        }
        group.finish();
    }
}

criterion_group!(benches, encode, average);
criterion_main!(benches);

//! Codecs on one core, with a copy of the same bytes in the same run. Method and figures: `benches/README.md`.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use gradwire::codec::loco::{self, Config};
use gradwire::codec::{Codec, CodecId, Step, cast};

/// Elements per call: one that stays in the second-level cache, one far beyond every cache.
const SIZES: [usize; 2] = [1 << 16, 1 << 25];

/// Ranks of an averaged shard.
const WORLD_SIZE: usize = 4;

/// Codecs without state and without a variant, with their default parameters.
const STATELESS: [CodecId; 4] = [CodecId::F16, CodecId::Bf16, CodecId::Fp8, CodecId::IntSgd];

/// About two codes root mean square at the default scale, as the codec is meant to be run.
fn gradient(elements: usize) -> Vec<f32> {
    let unit = (-19.0_f32).exp2();
    let mut state = 20_261_129_u32;
    let mut uniform = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    // The sum of four uniforms on -1/2..1/2 has variance 1/3.
    (0..elements)
        .map(|_| 2.0 * 3.0_f32.sqrt() * unit * (uniform() + uniform() + uniform() + uniform()))
        .collect()
}

fn encode(c: &mut Criterion) {
    let config = Config::default();
    for elements in SIZES {
        let mut group = c.benchmark_group(format!("encode/{elements}"));
        group.throughput(Throughput::Elements(elements as u64)).sample_size(10);
        let gradient = gradient(elements);
        let mut residual = vec![0_i8; elements];
        let mut packet = vec![0_u32; elements];
        // 6.5 bytes per element are read and written: a copy moves that with 3.25 in and 3.25 out.
        let copied = elements * 13 / 16;
        let mut copy = vec![0.0_f32; copied];
        group.bench_function("copy", |b| b.iter(|| copy.copy_from_slice(&black_box(&gradient)[..copied])));
        for variant in loco::variants() {
            let words = loco::packet_words(elements);
            group.bench_function(BenchmarkId::new("loco", variant.name), |b| {
                b.iter(|| {
                    let gradient = black_box(&gradient);
                    (variant.encode)(&config, Step::FIRST, gradient, &mut residual, &mut packet[..words])
                });
            });
        }
        group.bench_function("f32", |b| {
            b.iter(|| cast::encode_f32(black_box((&gradient).into()), &mut packet))
        });
        for codec in STATELESS.map(Codec::new) {
            let packet = &mut packet[..codec.packet_words(elements)];
            group.bench_function(codec.id().name(), |b| {
                b.iter(|| codec.encode(Step::FIRST, black_box((&gradient).into()), &mut [], packet));
            });
        }
        group.finish();
    }
}

fn average(c: &mut Criterion) {
    let config = Config::default();
    let weights = [3, 5, 8, 13];
    for elements in SIZES {
        let mut group = c.benchmark_group(format!("average/{WORLD_SIZE} ranks/{elements}"));
        group.throughput(Throughput::Elements(elements as u64)).sample_size(10);
        let gradient = gradient(elements);
        let mut mean = vec![0.0_f32; elements];
        let mut packet = vec![0_u32; loco::packet_words(elements)];
        loco::encode(&config, Step::FIRST, (&gradient).into(), &mut vec![0; elements], &mut packet);
        // Half a byte in for each rank, 4 out: a copy moves these 6 bytes with 3 in and 3 out.
        let copied = elements * (WORLD_SIZE + 8) / 16;
        group.bench_function("copy", |b| {
            b.iter(|| mean[..copied].copy_from_slice(&black_box(&gradient)[..copied]));
        });
        // Packets of their own, so that a rank's bytes are not in a cache because another's were read.
        let packets = vec![packet; WORLD_SIZE];
        let packets: Vec<&[u32]> = packets.iter().map(Vec::as_slice).collect();
        for variant in loco::variants() {
            group.bench_function(BenchmarkId::new("loco", variant.name), |b| {
                b.iter(|| (variant.average)(&config, black_box(&packets), &weights, &mut mean));
            });
        }
        let packet: Vec<u32> = gradient.iter().map(|value| value.to_bits()).collect();
        let packets = vec![packet; WORLD_SIZE];
        let packets: Vec<&[u32]> = packets.iter().map(Vec::as_slice).collect();
        group.bench_function("f32", |b| {
            b.iter(|| cast::average_f32(black_box(&packets), &weights, &mut mean))
        });
        for codec in STATELESS.map(Codec::new) {
            let mut packet = vec![0_u32; codec.packet_words(elements)];
            codec.encode(Step::FIRST, (&gradient).into(), &mut [], &mut packet);
            let packets = vec![packet; WORLD_SIZE];
            let packets: Vec<&[u32]> = packets.iter().map(Vec::as_slice).collect();
            group.bench_function(codec.id().name(), |b| {
                b.iter(|| codec.average(black_box(&packets), &weights, &mut [], &mut mean));
            });
        }
        group.finish();
    }
}

criterion_group!(benches, encode, average);
criterion_main!(benches);

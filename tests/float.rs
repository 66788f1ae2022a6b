//! `shaders/lib/float.wgsl` against `codec::float`, bit by bit, on every adapter.

#![allow(clippy::unwrap_used, reason = "test code")]
#![allow(clippy::cast_possible_truncation, reason = "random bits are cut to size")]
#![cfg(feature = "gpu")]

#[path = "common/gpu.rs"]
mod common;
#[path = "common/kernel.rs"]
mod kernel;

use common::{Random, gpus};
use gradwire::codec::float;
use gradwire::gpu::Gpu;
use gradwire::gpu::source::FRAGMENTS;

const SEED: u64 = 20_261_130;

const BODY: &str = "
@group(0) @binding(0) var<storage, read> pairs: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read_write> results: array<vec4<u32>>;

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let pair = pairs[id.x];
    results[id.x] =
        vec4<u32>(float_add(pair.x, pair.y), float_sub(pair.x, pair.y), float_mul(pair.x, pair.y), float_flush(pair.x));
}
";

fn fragment() -> &'static str {
    FRAGMENTS.iter().find(|(stem, _)| *stem == "float").unwrap().1
}

/// The first pair for which the device and the definition differ.
fn difference(gpu: &Gpu, source: &str, pairs: &[[u32; 2]]) -> Option<String> {
    let got = kernel::run(gpu, source, bytemuck::cast_slice(pairs), 4 * pairs.len(), pairs.len() / 256);
    pairs.iter().zip(got.as_chunks::<4>().0).find_map(|(&[a, b], &got)| {
        let (x, y) = (f32::from_bits(a), f32::from_bits(b));
        let want = [float::add(x, y), float::sub(x, y), float::mul(x, y), float::flush(x)].map(f32::to_bits);
        (got != want).then(|| {
            format!("a {a:#010x}, b {b:#010x}: sum, difference, product, a are {got:08x?}, not {want:08x?}")
        })
    })
}

/// Mantissas whose sums and products tie, carry, cancel or lose a digit.
fn mantissa(random: &mut Random) -> u32 {
    let bits = random.bits() as u32 & 0x7F_FFFF;
    let power = 1_u32 << random.below(24);
    match random.below(8) {
        0 => 0,
        1 => 0x7F_FFFF,
        2 => power & 0x7F_FFFF,
        3 => (power & 0x7F_FFFF) | 1,
        4 => power - 1,
        5 => 0x80_0000 - power,
        6 => bits & !(power - 1),
        _ => bits,
    }
}

fn finite(bits: u32) -> u32 {
    if bits & 0x7F80_0000 == 0x7F80_0000 { bits & 0xBFFF_FFFF } else { bits }
}

/// Multiples of 256 pairs: every pair of exponents, and exponents that meet within the 28 places of an addition, at
/// both ends of the range, or at the ends of a product's.
fn pairs() -> Vec<[u32; 2]> {
    let mut random = Random(SEED);
    let mut pairs = Vec::new();
    for first in 0..255_u32 {
        for second in 0..255_u32 {
            for _ in 0..4 {
                let sign = random.bits() as u32;
                let a = (sign & 1 << 31) | first << 23 | mantissa(&mut random);
                let b = (sign << 1 & 1 << 31) | second << 23 | mantissa(&mut random);
                pairs.push([a, b]);
            }
        }
    }
    for _ in 0..1 << 20 {
        let top = match random.below(4) {
            0 => random.below(30) as u32,
            1 => 254 - random.below(30) as u32,
            _ => random.below(255) as u32,
        };
        let other = match random.below(3) {
            0 => top.saturating_sub(random.below(30) as u32),
            1 => (127 + 254 - top).saturating_sub(random.below(4) as u32).min(254),
            _ => 128_u32.saturating_sub(top).saturating_sub(random.below(3) as u32),
        };
        let sign = random.bits() as u32;
        let (a, b) = (top << 23 | mantissa(&mut random), other << 23 | mantissa(&mut random));
        pairs.push([a | (sign & 1 << 31), b | (sign << 1 & 1 << 31)]);
    }
    // Neighbours of each other, which cancel to few digits.
    for _ in 0..1 << 16 {
        let a = finite(random.bits() as u32);
        pairs.push([a, finite((a ^ 1 << 31).wrapping_add(random.below(9) as u32).wrapping_sub(4))]);
    }
    for _ in 0..1 << 18 {
        pairs.push([finite(random.bits() as u32), finite(random.bits() as u32)]);
    }
    pairs.truncate(pairs.len() / 256 * 256);
    pairs
}

#[test]
fn sums_and_products_in_integers_are_those_of_ieee_754_on_every_adapter() {
    let source = format!("{}{BODY}", fragment());
    let pairs = pairs();
    for gpu in gpus() {
        for part in pairs.chunks(65_536 * 4) {
            let difference = difference(&gpu, &source, part);
            assert_eq!(difference, None, "{}, seed {SEED}", gpu.info().name);
        }
    }
}

#[test]
fn a_fragment_with_one_wrong_digit_is_noticed() {
    let pairs = pairs();
    for (right, wrong) in [
        ("(lost == 8u) && ((kept & 1u) == 1u)", "lost == 8u"),
        ("(lost == half) && ((kept & 1u) == 1u)", "lost == half"),
        ("(addend >> shift) | below", "(addend >> shift)"),
        ("kept == 0xffffffu", "false"),
        ("min(magnitude, float_max)", "magnitude"),
        ("top + 1u <= lift", "false"),
        ("27u);", "25u);"),
    ] {
        let source = format!("{}{BODY}", fragment());
        let edited = source.replace(right, wrong);
        assert_ne!(edited, source, "{right} is no longer in the fragment: edit this test");
        for gpu in gpus() {
            let noticed = pairs.chunks(65_536 * 4).any(|part| difference(&gpu, &edited, part).is_some());
            assert!(noticed, "{wrong} in place of {right} went unnoticed on {}", gpu.info().name);
        }
    }
}

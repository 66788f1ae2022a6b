//! `sign` and `ef21` on every adapter: equal to the definition in every bit.
//!
//! What every codec is asked stands in `parity.rs`. Here the input is aimed at what these two may get wrong: thresholds
//! between scales, sums of a block, shorter last blocks, f32 state of every magnitude, the ends of the scale byte.

#![cfg(feature = "gpu")]

#[path = "common/blocks.rs"]
mod blocks;
#[path = "common/gpu.rs"]
mod common;

use std::num::{NonZeroU8, NonZeroU32};

use blocks::{
    average_as_the_definition, encode_as_the_definition, wrong_encoders_are_noticed, wrong_means_are_noticed,
};
use gradwire::codec::{Codec, ef21, sign};
use gradwire::gpu::source::{EF21_AVERAGE, EF21_ENCODE, SIGN_AVERAGE, SIGN_ENCODE};

fn signs() -> Vec<Codec> {
    let sign = |block, base_log2, reset: u32| {
        Codec::Sign(sign::Config { block, base_log2, reset_every: NonZeroU32::new(reset) })
    };
    vec![
        sign(256, -50, 0),
        sign(32, -50, 0),
        sign(40, -20, 3),
        sign(72, -80, 0),
        sign(96, 55, 0),
        sign(1024, -50, 4),
    ]
}

fn trackers() -> Vec<Codec> {
    let ef21 = |block, base_log2, k| {
        Codec::Ef21(ef21::Config { block, base_log2, momentum_log2: NonZeroU8::new(k) })
    };
    vec![ef21(64, -50, 0), ef21(64, -50, 3), ef21(40, 55, 1), ef21(136, -80, 16), ef21(1024, -20, 0)]
}

fn codecs() -> Vec<Codec> {
    [signs(), trackers()].concat()
}

#[test]
fn every_adapter_encodes_blocks_of_every_magnitude_as_the_definition() {
    encode_as_the_definition(&codecs());
}

#[test]
fn every_adapter_averages_scales_of_every_distance_as_the_definition() {
    average_as_the_definition(&codecs());
}

#[test]
fn a_wrong_twin_of_an_encoder_is_noticed() {
    let sign = [
        ("vec4<u32>(9u, 11u, 13u, 15u), 0u", "vec4<u32>(9u, 11u, 13u, 15u), 1u"),
        ("vec4<u32>(8u, 10u, 12u, 14u), 1u", "vec4<u32>(8u, 10u, 12u, 14u), 0u"),
        ("vec4<u32>(9u, 11u, 13u, 15u), 0u", "vec4<u32>(9u, 11u, 13u, 16u), 0u"),
        (" & inside", ""),
        (
            "ratio_nearest(atomicLoad(&signs_sum[k]), count)",
            "ratio_nearest(atomicLoad(&signs_sum[k]), params.block)",
        ),
        ("min(params.elements - min(first, params.elements), params.block)", "params.block"),
        ("scale_fixed4(bits, signs_digits(k)) + residual", "scale_fixed4(bits, signs_digits(k))"),
        ("* params.keep", ""),
        ("- 32;\n            let steps", "- 31;\n            let steps"),
        ("vec4<i32>(-127)", "vec4<i32>(-128)"),
        ("h < vec4<i32>(0));\n            negative", "h <= vec4<i32>(0));\n            negative"),
        ("byte > 255", "byte > 254"),
    ];
    let ef21 = [
        ("lost > 8u) ||", "lost >= 8u) ||"),
        ("scale_exponent4(difference4(unit, i))", "scale_exponent4(input_load4(unit * params.block + i))"),
        (
            "select(vec4<u32>(0u), track_sub4(value, state[at]), fixed_is_finite(bits))",
            "track_sub4(value, state[at])",
        ),
        ("select(state[at], v, finite)", "v"),
        (
            "let u = track_approach4(state[at + params.block], v,",
            "let u = track_approach4(state[at + params.block], bits,",
        ),
        (
            "track_sub4(track_mul4(value, eta), track_mul4(average, eta))",
            "track_mul4(track_sub4(value, average), eta)",
        ),
        ("state[at] = track_follow4(state[at], code,", "state[at] = track_follow4(state[at], rounded,"),
    ];
    wrong_encoders_are_noticed(SIGN_ENCODE, &signs(), &sign);
    wrong_encoders_are_noticed(EF21_ENCODE, &trackers(), &ef21);
}

#[test]
fn a_wrong_twin_of_a_mean_is_noticed() {
    let sign = [
        ("<< headroom, distance)", "<< headroom, 0u)"),
        ("&& distance <= 31u", ""),
        ("byte >> 2u, counts)", "byte >> 2u, true)"),
        ("(magnitude >> shift) & min(shift, 1u)", "0u"),
        ("bits >> 4u", "bits"),
    ];
    let ef21 = [
        ("weight == params.total", "false"),
        ("weight == 0u)", "false)"),
        ("select(bits, 0u, code == 0 || byte == 0u)", "select(bits, 0u, code == 0)"),
        ("field_unpack4(codes >> 16u, 4u)", "field_unpack4(codes, 4u)"),
        ("state[at + 1u] =\n", "let unused =\n"),
    ];
    wrong_means_are_noticed(SIGN_AVERAGE, &signs(), &sign);
    wrong_means_are_noticed(EF21_AVERAGE, &trackers(), &ef21);
}

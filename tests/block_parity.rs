//! The codecs with one scale per block on every adapter: equal to the definition in every bit.
//!
//! What every codec is asked stands in `parity.rs`. Here the input is aimed at what only a scale per block can get wrong:
//! thresholds between scales, ties of the quotient, blocks of every magnitude side by side, the ends of the scale byte.

#![cfg(feature = "gpu")]

#[path = "common/blocks.rs"]
mod blocks;
#[path = "common/gpu.rs"]
mod common;

use std::num::NonZeroU32;

use blocks::{
    average_as_the_definition, encode_as_the_definition, wrong_encoders_are_noticed, wrong_means_are_noticed,
};
use gradwire::codec::block::{self, Bits};
use gradwire::codec::{Codec, loco_block};
use gradwire::gpu::source::{BLOCK_AVERAGE, LOCO_BLOCK_ENCODE};

fn codecs() -> Vec<Codec> {
    let loco = |bits, block, base_log2, decay, reset: u32| {
        let reset_every = NonZeroU32::new(reset);
        Codec::LocoBlock(loco_block::Config { bits, block, base_log2, decay, reset_every })
    };
    vec![
        loco(Bits::Four, 64, -50, 0, 0),
        loco(Bits::Eight, 40, -20, 205, 3),
        loco(Bits::Two, 32, 0, 255, 0),
        loco(Bits::Two, 72, -80, 64, 0),
        loco(Bits::Four, 1024, 55, 1, 4),
        Codec::Block8(block::Config { block: 64, base_log2: -50 }),
        Codec::Block8(block::Config { block: 96, base_log2: 55 }),
        Codec::Block4(block::Config { block: 136, base_log2: -80 }),
        Codec::Block4(block::Config { block: 32, base_log2: -10 }),
    ]
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
fn a_wrong_twin_of_the_encoder_is_noticed() {
    let edits = [
        ("vec4<u32>(magnitude << zeros) >= thresholds", "vec4<u32>(magnitude << zeros) > thresholds"),
        ("twice + (whole & vec4<u32>(1u)) > vec4<u32>(scale)", "twice > vec4<u32>(scale)"),
        ("select(1u, 0u, params.bits == 8u)", "1u"),
        ("9363u", "9300u"),
        ("+ lives, lives)", ", lives)"),
        ("& params.keep", ""),
        ("i32(256u - params.decay)", "i32(255u - params.decay)"),
        ("+ offset, 0, 255)", "+ offset, 1, 255)"),
        ("select(exponent, vec4<u32>(0u), exponent == vec4<u32>(0xffu))", "exponent"),
    ];
    let with_state: Vec<Codec> = codecs().into_iter().filter(|codec| codec.unit().state_words > 0).collect();
    wrong_encoders_are_noticed(LOCO_BLOCK_ENCODE, &with_state, &edits);
}

#[test]
fn a_wrong_twin_of_the_mean_is_noticed() {
    let edits = [
        ("<< headroom, distance)", "<< headroom, 0u)"),
        ("vec4<u32>(min(term.y, 1u))", "vec4<u32>(0u)"),
        ("vec4<u32>(min(term.y, 1u))", "vec4<u32>(1u)"),
        ("&& distance <= 31u", ""),
        ("byte >> 2u, counts)", "byte >> 2u, true)"),
        ("(magnitude >> shift) & min(shift, 1u)", "0u"),
    ];
    wrong_means_are_noticed(BLOCK_AVERAGE, &codecs(), &edits);
}

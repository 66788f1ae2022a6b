//! Which state a codec goes on from: every one that its encoder leaves, and none with what no encoder leaves.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

#[path = "common/random.rs"]
mod random;

use gradwire::codec::{Codec, CodecId, StateError, Step};
use random::Random;

const SEED: u64 = 20_261_201;

/// Every codec by default, and the others that keep a state of another form or size.
fn codecs() -> Vec<Codec> {
    let others = [
        "loco:decay=0,reset_every=2",
        "topk:chunk=64,k=3,residual_bits=8,decay=256",
        "topk:chunk=64,k=3,decay=256",
        "topk:chunk=1024,k=1,residual_bits=8",
        "loco-block:bits=2,block=40,reset_every=2",
        "loco-block:bits=8,block=1024,base_log2=55,decay=0",
        "ef21:block=32,momentum_log2=1",
        "ef21:block=1024,base_log2=55",
        "sign:block=40,reset_every=3",
        "sign:block=1024,base_log2=-80",
    ];
    let others = others.map(|text| text.parse().unwrap());
    CodecId::ALL.into_iter().map(Codec::new).chain(others).collect()
}

/// Of every magnitude, with zeros, the largest f32 and what is not finite in between.
fn gradient(random: &mut Random, elements: usize) -> Vec<f32> {
    let scale = 2.0_f32.powi(random.below(250) as i32 - 125);
    let element = |_| match random.below(12) {
        0 => f32::from_bits(random.bits() as u32),
        1 => [f32::NAN, f32::INFINITY, f32::MAX, f32::MIN, -0.0][random.below(5) as usize],
        _ => random.unit() as f32 * scale,
    };
    (0..elements).map(element).collect()
}

#[test]
fn what_an_encoder_leaves_after_any_gradient_is_taken() {
    for codec in codecs() {
        let unit = codec.unit().elements;
        for elements in [0, 1, 9, 70, 257, unit - 1, unit, unit + 1, 2 * unit + unit / 2 + 3] {
            let mut random = Random(SEED ^ elements as u64);
            let mut state = vec![0; codec.state_words(elements)];
            let mut packet = vec![0; codec.packet_words(elements)];
            assert_eq!(codec.check_state(elements, &state), Ok(()), "{codec}");
            for step in 1..=12 {
                let gradient = gradient(&mut random, elements);
                codec.encode(Step::new(step).unwrap(), (&gradient).into(), &mut state, &mut packet);
                let taken = codec.check_state(elements, &state);
                assert_eq!(taken, Ok(()), "{codec}, {elements} elements, step {step}, seed {SEED}");
            }
        }
    }
}

#[test]
fn what_an_owner_keeps_after_any_packet_is_taken() {
    for codec in codecs() {
        for elements in [0, 1, 257, 1000] {
            let mut random = Random(SEED ^ elements as u64);
            let mut states = vec![vec![0; codec.state_words(elements)]; 3];
            let mut packets = vec![vec![0; codec.packet_words(elements)]; 3];
            let mut mean_state = vec![0; codec.mean_state_words(3, elements)];
            for step in 1..=5 {
                for (state, packet) in states.iter_mut().zip(&mut packets) {
                    let gradient = gradient(&mut random, elements);
                    codec.encode(Step::new(step).unwrap(), (&gradient).into(), state, packet);
                }
                let packets: Vec<&[u32]> = packets.iter().map(Vec::as_slice).collect();
                codec.average(&packets, &[1, 0, 5], &mut mean_state, &mut vec![0.0; elements]).unwrap();
                assert_eq!(codec.check_mean_state(3, elements, &mean_state), Ok(()), "{codec}, step {step}");
            }
        }
    }
}

/// (codec, elements, word, its bits, what is said).
const REFUSED: [(&str, usize, usize, u32, &str); 26] = [
    (
        "loco",
        9,
        2,
        0x0100,
        "word 2 of the state has 0x00000100 behind the last of 9 elements, must be 0 there",
    ),
    ("loco", 9, 3, 0xFF00_0000, "word 3 of the state has 0xff000000 behind the last of 9 elements"),
    ("ef", 12, 3, 1, "word 3 of the state has 0x00000001 behind the last of 12 elements"),
    ("ef", 3, 0, 0x80FF_FFFF, "word 0 of the state has 0x80000000 behind the last of 3 elements"),
    ("topk:chunk=64", 70, 70, 1, "word 70 of the state has 0x00000001 behind the last of 70 elements"),
    ("topk:chunk=64", 70, 127, 0x3F80_0000, "word 127 of the state has 0x3f800000 behind the last of 70"),
    ("topk:chunk=64", 70, 3, 0x7FC0_0000, "word 3 of the state is NaN, must be finite"),
    ("topk:chunk=64", 64, 63, 0xFF80_0000, "word 63 of the state is -inf, must be finite"),
    (
        "topk:chunk=64,residual_bits=8",
        70,
        0,
        0x0080_0000,
        "word 0 of the state has a residual of -128, must be -127 to 127",
    ),
    (
        "topk:chunk=64,residual_bits=8",
        70,
        16,
        0xFF,
        "word 16 of the state has a residual exponent of 255, must be 0 to 254",
    ),
    ("topk:chunk=64,residual_bits=8", 70, 33, 0xFF, "word 33 of the state has a residual exponent of 255"),
    (
        "topk:chunk=64,residual_bits=8",
        70,
        18,
        0x0001_7F7F,
        "word 18 of the state has 0x00010000 behind the last of 70",
    ),
    ("topk:chunk=64,residual_bits=8", 70, 32, 1, "word 32 of the state has 0x00000001 behind the last of 70"),
    (
        "topk:chunk=64,residual_bits=8",
        70,
        33,
        0x0500,
        "word 33 of the state has 0x00000500 behind the last of 70",
    ),
    (
        "loco-block:block=32",
        130,
        33,
        0x0100,
        "word 33 of the state has 0x00000100 behind the last of 130 elements",
    ),
    (
        "loco-block:block=32",
        130,
        34,
        0x0080_0000,
        "word 34 of the state has 0x00800000 behind the last of 130",
    ),
    ("loco-block:block=32", 130, 65, 1, "word 65 of the state has 0x00000001 behind the last of 130"),
    ("sign:block=32", 161, 33, 0x0100_0000, "word 33 of the state has 0x01000000 behind the last of 161"),
    ("sign:block=32", 161, 42, 0x0200, "word 42 of the state has 0x00000200 behind the last of 161"),
    ("sign:block=32", 161, 65, 0x1000_0000, "word 65 of the state has 0x10000000 behind the last of 161"),
    ("ef21:block=32", 130, 130, 0x8000_0000, "word 130 of the state has 0x80000000 behind the last of 130"),
    ("ef21:block=32", 130, 255, 0x3F80_0000, "word 255 of the state has 0x3f800000 behind the last of 130"),
    ("ef21:block=32", 130, 5, 0x7F80_0000, "word 5 of the state is inf, must be finite"),
    (
        "ef21:block=32,momentum_log2=2",
        130,
        514,
        1,
        "word 514 of the state has 0x00000001 behind the last of 130",
    ),
    (
        "ef21:block=32,momentum_log2=2",
        130,
        642,
        1,
        "word 642 of the state has 0x00000001 behind the last of 130",
    ),
    ("ef21:block=32,momentum_log2=2", 130, 300, 0xFFC0_0000, "word 300 of the state is NaN, must be finite"),
];

#[test]
fn what_no_encoder_leaves_is_refused_with_its_place_and_what_may_be_there() {
    for (codec, elements, word, bits, expected) in REFUSED {
        let codec: Codec = codec.parse().unwrap();
        let mut state = vec![0; codec.state_words(elements)];
        state[word] = bits;
        let message = codec.check_state(elements, &state).unwrap_err().to_string();
        assert!(message.starts_with(expected), "{codec}: {message}");
    }
}

#[test]
fn what_stands_just_before_it_is_taken() {
    let cases = [
        ("loco", 9, 2, 0x80),
        ("ef", 12, 2, 0x807F_FF80),
        ("topk:chunk=64", 70, 69, 0x7F7F_FFFF),
        // A subnormal counts as zero everywhere.
        ("topk:chunk=64", 70, 0, 1),
        ("topk:chunk=64,residual_bits=8", 70, 18, 0x817F),
        ("topk:chunk=64,residual_bits=8", 70, 33, 0xFE),
        ("loco-block:block=32", 130, 33, 0xFF),
        ("loco-block:block=32", 130, 34, 0x8080),
        ("loco-block:block=32", 128, 32, 0x8080_8080),
        ("sign:block=32", 161, 33, 0xFFFF),
        ("sign:block=32", 161, 42, 0x80),
        ("ef21:block=32", 130, 129, 0xFF7F_FFFF),
        ("ef21:block=32,momentum_log2=2", 130, 641, 1),
    ];
    for (codec, elements, word, bits) in cases {
        let codec: Codec = codec.parse().unwrap();
        let mut state = vec![0; codec.state_words(elements)];
        state[word] = bits;
        assert_eq!(codec.check_state(elements, &state), Ok(()), "{codec} {word}");
    }
}

#[test]
fn a_state_of_another_length_or_of_a_codec_out_of_range_is_refused() {
    let message = |codec: Codec, words| codec.check_state(9, &vec![0; words]).unwrap_err().to_string();
    assert_eq!(message(Codec::F32, 1), "state of 1 words for 9 elements, which need 0");
    assert_eq!(message(Codec::new(CodecId::Loco), 3), "state of 3 words for 9 elements, which need 4");
    let mut codec = Codec::new(CodecId::Ef21);
    let message = codec.check_mean_state(2, 9, &[0; 256]).unwrap_err().to_string();
    assert_eq!(message, "mean state of 256 words for 9 elements, which need 512");
    assert!(codec.set_parameter("block", 0));
    assert!(matches!(codec.check_state(9, &[]), Err(StateError::Config(_))));
    assert!(matches!(codec.check_mean_state(2, 9, &[]), Err(StateError::Config(_))));
}

#[test]
fn an_owners_float_that_is_not_finite_is_refused() {
    let codec = Codec::new(CodecId::Ef21);
    for (word, bits, found) in [(0, 0x7F80_0000, "inf"), (511, 0x7FC0_0001, "NaN")] {
        let mut state = vec![0; codec.mean_state_words(2, 9)];
        state[word] = bits;
        let message = codec.check_mean_state(2, 9, &state).unwrap_err().to_string();
        assert_eq!(message, format!("word {word} of the mean state is {found}, must be finite"));
    }
}

//! Frames: what is encoded comes back, and nothing else is taken for a frame.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use bytes::Bytes;
use gradwire_transport::frame::{HEADER_BYTES, MAX_PAYLOAD};
use gradwire_transport::{Frame, FrameError, Header, Operation, Rank, Tag, WIRE_VERSION, World};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

fn sample() -> Header {
    Header {
        operation: Operation { step: 0x0102_0304_0506_0708, tag: Tag(0x090a) },
        epoch: 0x0b0c_0d0e,
        from: Rank(0x0f10),
        total: 1000,
        offset: 64,
        length: 9,
    }
}

fn encode(header: &Header, payload: &[u8]) -> Vec<u8> {
    let mut bytes = header.encode(payload).to_vec();
    bytes.extend_from_slice(payload);
    bytes
}

fn decode(bytes: &[u8]) -> Result<Frame, FrameError> {
    Frame::decode(&Bytes::copy_from_slice(bytes))
}

#[test]
fn a_frame_comes_back_as_it_was() {
    let payload = b"gradients";
    let bytes = encode(&sample(), payload);
    let frame = decode(&bytes).unwrap();
    assert_eq!(frame, Frame { header: sample(), payload: Bytes::from_static(payload) });
    assert_eq!(frame.wire_bytes(), bytes.len() as u64);
}

/// The wire is a public API: whoever changes these bytes raises the version.
#[test]
fn the_bytes_of_a_frame_are_those_of_wire_version_3() {
    assert_eq!(WIRE_VERSION, 3, "a new version needs new bytes below");
    let hex: String = encode(&sample(), b"gradients").iter().map(|byte| format!("{byte:02x}")).collect();
    let due = concat!(
        "47524457",
        "0300",
        "0a09",
        "0e0d0c0b",
        "100f0000",
        "0807060504030201",
        "e803000000000000",
        "4000000000000000",
        "09000000",
        "00000000",
        // From the C library of XXH3, by way of Python.
        "7b2955a8be274bf9",
        "6772616469656e7473",
    );
    assert_eq!(hex, due);
}

#[test]
fn every_single_flipped_bit_is_noticed() {
    let bytes = encode(&sample(), b"gradients");
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(decode(&flipped).is_err(), "bit {bit} flipped and taken: {:?}", decode(&flipped));
    }
}

#[test]
fn a_frame_cut_at_any_byte_is_truncated() {
    let bytes = encode(&sample(), b"gradients");
    for have in 0..bytes.len() {
        let need = if have < HEADER_BYTES { HEADER_BYTES } else { bytes.len() } as u64;
        assert_eq!(decode(&bytes[..have]), Err(FrameError::Truncated { have: have as u64, need }));
    }
}

#[test]
fn a_byte_too_many_is_refused() {
    let mut bytes = encode(&sample(), b"gradients");
    bytes.push(0);
    assert_eq!(decode(&bytes), Err(FrameError::Oversized { length: 66, limit: 65 }));
}

#[test]
fn a_length_above_the_cap_is_refused_before_its_payload_is_looked_at() {
    let limit = MAX_PAYLOAD as u64;
    let header = Header { length: 1 << 20, total: 1 << 20, offset: 0, ..sample() };
    assert!(Header::decode(&header.encode(&[])).is_ok(), "the cap itself is allowed");
    for length in [(1 << 20) + 1, u32::MAX] {
        let header = Header { length, total: u64::MAX, offset: 0, ..sample() };
        let due = Err(FrameError::Oversized { length: u64::from(length), limit });
        assert_eq!(Header::decode(&header.encode(&[])), due);
    }
}

#[test]
fn a_payload_outside_its_message_is_refused() {
    for (offset, total) in [(1, 9), (992, 1000), (u64::MAX, 1000), (u64::MAX - 4, u64::MAX)] {
        let header = Header { offset, total, ..sample() };
        let due = Err(FrameError::Outside { offset, length: 9, total });
        assert_eq!(decode(&encode(&header, b"gradients")), due);
    }
}

#[test]
fn another_wire_version_is_refused_with_both_numbers() {
    let mut bytes = encode(&sample(), b"gradients");
    bytes[4..6].copy_from_slice(&0x0203_u16.to_le_bytes());
    assert_eq!(decode(&bytes), Err(FrameError::Version { theirs: 0x0203, ours: WIRE_VERSION }));
}

#[test]
fn foreign_magic_and_reserved_bits_are_refused_by_name() {
    let mut bytes = encode(&sample(), b"gradients");
    bytes[44] = 1;
    assert_eq!(decode(&bytes), Err(FrameError::Reserved { found: 1 }));
    bytes[0..4].copy_from_slice(b"HTTP");
    assert_eq!(decode(&bytes), Err(FrameError::Magic { found: 0x4854_5450 }));
}

#[test]
fn a_frame_of_another_epoch_or_in_another_name_does_not_belong() {
    let world = World::new(0, 4, 5).unwrap();
    let frame = |epoch, from| Frame {
        header: Header { epoch, from: Rank(from), ..sample() },
        payload: Bytes::from_static(b"gradients"),
    };
    assert_eq!(frame(5, 2).check(&world, Rank(2)), Ok(()));
    assert_eq!(frame(4, 2).check(&world, Rank(2)), Err(FrameError::Epoch { theirs: 4, ours: 5 }));
    let due = Err(FrameError::Sender { claimed: Rank(3), actual: Rank(2) });
    assert_eq!(frame(5, 3).check(&world, Rank(2)), due);
}

#[test]
fn an_error_says_both_numbers() {
    let text = FrameError::Version { theirs: 2, ours: 1 }.to_string();
    assert_eq!(text, "wire version 2, ours is 1");
    let text = FrameError::Piece { offset: 5, length: 3, piece: 16 }.to_string();
    assert_eq!(text, "payload of 3 bytes at 5 is not a piece where messages are cut every 16 bytes");
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(20_261), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_frame_comes_back(
        step: u64, tag: u16, epoch: u32, from: u32, before in 0..1_u64 << 62, after in 0..1_u64 << 62,
        payload in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let length = u32::try_from(payload.len()).unwrap();
        let header = Header {
            operation: Operation { step, tag: Tag(tag) }, epoch, from: Rank(from),
            total: before + u64::from(length) + after, offset: before, length,
        };
        let frame = decode(&encode(&header, &payload));
        prop_assert_eq!(frame, Ok(Frame { header, payload: Bytes::from(payload) }));
    }

    #[test]
    fn no_bytes_make_decoding_panic_and_random_ones_are_no_frame(
        mut bytes in prop::collection::vec(any::<u8>(), 0..200), keep_head: bool,
    ) {
        // Half of them get past magic, version and reserved field, where decoding becomes interesting.
        if keep_head && bytes.len() >= HEADER_BYTES {
            let good = encode(&sample(), b"gradients");
            bytes[0..6].copy_from_slice(&good[0..6]);
            let length = u8::try_from(bytes.len() - HEADER_BYTES).unwrap();
            bytes[40..48].copy_from_slice(&[length, 0, 0, 0, 0, 0, 0, 0]);
            bytes[39] = 0;
            bytes[31] = 1;
        }
        prop_assert!(decode(&bytes).is_err());
    }
}

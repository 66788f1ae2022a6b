//! Frames, and the exchange that they are fed to.
//!
//! Holds: what is decoded is encoded the same again; an exchange ends exactly when every peer's pieces are all there, with
//! the bytes that were sent, in any order, whatever else came in between; and it holds no more than its messages.

use std::time::{Duration, Instant};

use bytes::Bytes;
use gradwire_transport::collective::{self, Exchange};
use gradwire_transport::frame::{HEADER_BYTES, MAX_PAYLOAD};
use gradwire_transport::{Abort, ExchangeError, Frame, Header, Limits, Loss, Operation, Rank, Tag, World};

use crate::{Recipe, memory};

const NOW: Operation = Operation { step: 5, tag: Tag(1) };
const EPOCH: u32 = 9;

pub fn run(input: &[u8]) {
    let mut recipe = Recipe::new(input);
    if recipe.u8().is_multiple_of(4) {
        decode(recipe.rest());
        return;
    }
    // Longer ones are only more of the same.
    memory::within(256 << 10, || exchange(&mut recipe));
}

fn decode(bytes: &[u8]) {
    let bytes = Bytes::copy_from_slice(bytes);
    if let Ok(frame) = memory::within(1024, || Frame::decode(&bytes)) {
        let again = [&frame.header.encode(&frame.payload)[..], &frame.payload].concat();
        assert_eq!(again, bytes, "a frame is written as it was read");
        assert!(frame.payload.len() <= MAX_PAYLOAD, "{} bytes", frame.payload.len());
        assert_eq!(frame.wire_bytes(), bytes.len() as u64, "bytes on the wire");
    }
}

/// What a peer's message is known to be by now.
struct Message {
    bytes: Vec<u8>,
    /// One per piece.
    seen: Vec<bool>,
}

fn exchange(recipe: &mut Recipe<'_>) {
    let size = 2 + u32::from(recipe.u8() % 3);
    let Ok(world) = World::new(recipe.u32() % size, size, EPOCH) else { return };
    let piece = 1 + usize::from(recipe.u8() % 32);
    let limits = Limits {
        stall: Duration::from_secs(1),
        message_bytes: 4096,
        piece_bytes: piece,
        ..Limits::default()
    };
    let lengths: Vec<usize> = world.ranks().map(|_| usize::from(recipe.u8())).collect();
    let expected: Vec<u64> = lengths.iter().map(|length| *length as u64).collect();
    let own = Bytes::from_static(b"the own message");
    let start = Instant::now();
    let outgoing = vec![own.clone(); size as usize];
    let begun = collective::all_to_all(start, world, NOW, outgoing, &expected, &limits);
    let mut exchange = begun.unwrap_or_else(|error| panic!("an exchange within its limits: {error}"));
    while let Some((to, frame)) = exchange.poll_transmit() {
        let bytes = [&frame.header.encode(&frame.payload)[..], &frame.payload].concat();
        assert_eq!(Frame::decode(&bytes.into()), Ok(frame), "a frame for {to} comes back");
    }
    let mut messages: Vec<Message> = lengths
        .iter()
        .map(|length| Message { bytes: vec![0; *length], seen: vec![false; length.div_ceil(piece).max(1)] })
        .collect();
    let mut now = start;
    while !recipe.is_empty() {
        match recipe.u8() % 16 {
            0 => {
                now += Duration::from_millis(recipe.u16().into());
                let _ = exchange.handle_timeout(now);
            }
            1 => {
                let from = Rank(recipe.u32() % (size + 1));
                let blamed = (!recipe.u8().is_multiple_of(2)).then(|| Rank(recipe.u32()));
                let loss = match blamed {
                    None => Loss::Closed,
                    culprit => Loss::Aborted(Abort { culprit, reason: "its reason".into() }),
                };
                let waits = |rank: Rank| {
                    let message = messages.get(rank.index()).filter(|_| rank != world.rank());
                    message.is_some_and(|it| !it.seen.iter().all(|seen| *seen))
                };
                let due = waits(from) || (world.contains(from) && blamed.is_some_and(waits));
                let ended = exchange.handle_loss(from, loss).is_err();
                assert_eq!(ended, due, "the loss of {from:?}, which blames {blamed:?}");
            }
            _ => feed(recipe, &mut exchange, now, &world, piece, &mut messages),
        }
    }
    let peers = || world.peers().map(|rank| &messages[rank.index()]);
    let complete = peers().all(|message| message.seen.iter().all(|seen| *seen));
    match exchange.poll() {
        None => assert!(!complete, "every piece is there"),
        Some(result) => {
            assert!(complete, "a piece is missing");
            assert_eq!(result[world.rank().index()], own, "the own message");
            for rank in world.peers() {
                assert_eq!(result[rank.index()], messages[rank.index()].bytes, "the message of {rank:?}");
            }
            assert_eq!(exchange.poll(), None, "messages come once");
            assert_eq!(exchange.poll_timeout(), None, "nothing to wait for");
        }
    }
}

/// A frame that would be right, but for what is changed in it.
fn feed(
    recipe: &mut Recipe<'_>,
    exchange: &mut Exchange,
    now: Instant,
    world: &World,
    piece: usize,
    messages: &mut [Message],
) {
    let from = Rank(recipe.u32() % world.size());
    let message = &mut messages[from.index()];
    let total = message.bytes.len();
    let index = recipe.below(message.seen.len());
    let offset = index * piece;
    let length = piece.min(total - offset);
    let mut payload: Vec<u8> = recipe.bytes(length).to_vec();
    payload.resize(length, index as u8);
    let right = Header {
        operation: NOW,
        epoch: EPOCH,
        from,
        total: total as u64,
        offset: offset as u64,
        length: length as u32,
    };
    let mut header = right;
    match recipe.u8() {
        0 => header.operation.step = recipe.u64(),
        1 => header.operation.tag = Tag(recipe.u16()),
        2 => header.epoch = recipe.u32(),
        3 => header.from = Rank(recipe.u32()),
        4 => header.total = recipe.u64(),
        5 => header.offset = recipe.u64(),
        6 => header.offset = recipe.u8().into(),
        7 => {
            header.length = u32::from(recipe.u8());
            payload.resize(header.length as usize, 7);
        }
        _ => {}
    }
    // The checksum fits; what is spoiled afterwards it must find.
    let mut bytes = [&header.encode(&payload)[..], &payload].concat();
    let sent = bytes.clone();
    if recipe.u8().is_multiple_of(8) {
        recipe.spoil(&mut bytes);
    }
    let spoiled = bytes != sent;
    let Ok(frame) = Frame::decode(&bytes.into()) else {
        assert!(spoiled || header != right, "a right frame was refused");
        return;
    };
    assert!(
        !spoiled || frame.header != header,
        "a spoiled frame of {HEADER_BYTES} and {length} bytes was taken"
    );
    let taken = exchange.handle_frame(now, from, frame.clone());
    let fits = frame.header == right && from != world.rank() && !message.seen[index];
    match taken {
        Ok(()) => {
            // A header that was changed into that of another piece is that piece.
            let index = usize::try_from(frame.header.offset).unwrap_or(usize::MAX) / piece;
            assert!(!message.seen[index], "piece {index} of {from:?} was taken twice");
            message.seen[index] = true;
            let start = index * piece;
            message.bytes[start..start + frame.payload.len()].copy_from_slice(&frame.payload);
        }
        Err(error) => {
            assert!(!fits, "a right frame was refused: {error}");
            let blamed = match &error {
                ExchangeError::Frame { rank, .. } | ExchangeError::Length { rank, .. } => *rank,
                other => panic!("a frame led to {other}"),
            };
            assert_eq!(blamed, from, "{error}");
        }
    }
}

//! Packets of every codec: the header, then hostile words, averaged.
//!
//! Holds: a header that is taken is written the same again; what `check` takes `average` takes, and nothing else; LoCo's
//! variants give the same bits; and a mean holds no more than its shard needs.

use gradwire::codec::{AverageError, Codec, CodecId, Step, loco};
use gradwire::sync::packet::{self, Form, HEAD_BYTES, Header};

use crate::{Recipe, memory};

/// Besides every codec as it is by default.
const MORE: [&str; 9] = [
    "loco:decay=255,residual_scale_log2=0",
    "topk:k=1",
    "topk:k=256,clip=1",
    "topk:residual_bits=8,contributors=1",
    "loco-block:bits=2",
    "loco-block:bits=8",
    "ef21:momentum_log2=3",
    "block4:block=64",
    "sign:reset_every=2",
];

pub(super) fn codec(recipe: &mut Recipe<'_>) -> Codec {
    let index = recipe.below(CodecId::ALL.len() + MORE.len());
    match CodecId::ALL.get(index) {
        Some(id) => Codec::new(*id),
        None => {
            let text = MORE[index - CodecId::ALL.len()];
            text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
        }
    }
}

pub fn run(input: &[u8]) {
    let mut recipe = Recipe::new(input);
    let mut codec = codec(&mut recipe);
    if recipe.u8().is_multiple_of(4) {
        let before = codec;
        codec.set_scale_log2(recipe.u8().cast_signed());
        if codec.validate().is_err() {
            codec = before;
        }
    }
    let elements = if recipe.u8().is_multiple_of(4) { recipe.below(9000) } else { recipe.below(300) };
    let ranks = 1 + recipe.below(3);
    let form = Form::of(&codec, elements);
    let mut headers = Vec::new();
    let mut packets = Vec::new();
    for rank in 0..ranks {
        let sent = packet(&mut recipe, &codec, form, rank);
        let mut bytes = sent.clone();
        if recipe.u8().is_multiple_of(2) {
            recipe.spoil(&mut bytes);
        }
        let decoded = memory::within(1024, || Header::decode(&bytes, form));
        let Ok(header) = decoded else {
            assert_ne!(bytes, sent, "a right packet was refused");
            return;
        };
        let words: Vec<u32> =
            packet::body(&bytes).as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
        assert_eq!(header.packet(&words), bytes, "a packet is written as it was read");
        pieces(form, &bytes, header);
        headers.push(header);
        packets.push(words);
    }
    let weights: Vec<u32> = headers.iter().map(|header| header.samples).collect();
    average(&mut recipe, &codec, &packets, &weights, elements);
}

/// Where a packet comes in pieces, its ends are read alone, and say the same.
fn pieces(form: Form, bytes: &[u8], whole: Header) {
    let (Some(head), Some(tail)) = (bytes.first_chunk(), bytes.last_chunk()) else {
        panic!("a packet of {} bytes was taken", bytes.len());
    };
    let samples = form.decode_head(head).unwrap_or_else(|error| panic!("a head that was taken: {error}"));
    assert_eq!(form.header(samples, packet::decode_tail(tail)), whole, "head and tail alone");
    assert_eq!(form.head(samples), bytes[..HEAD_BYTES], "a head is written as it was read");
    assert_eq!(packet::tail(whole.stats()), *tail, "a tail is written as it was read");
}

/// A packet whose header is right: encoded, with words changed, or of nothing but hostile words.
fn packet(recipe: &mut Recipe<'_>, codec: &Codec, form: Form, rank: usize) -> Vec<u8> {
    let elements = form.elements as usize;
    let samples = if recipe.u8().is_multiple_of(8) { recipe.u32() } else { u32::from(recipe.u8()) };
    let mut words = vec![0; form.words];
    let mut stats = gradwire::codec::Stats::default();
    if recipe.u8().is_multiple_of(4) {
        words.fill_with(|| recipe.u32());
    } else {
        let seed = recipe.u32();
        let scale = f32::from_bits(recipe.u32() & 0x7FFF_FFFF);
        let gradient: Vec<f32> = (0_u32..)
            .take(elements)
            .map(|i| scale * ((i ^ seed).wrapping_mul(0x9E37_79B9).cast_signed() as f32) / 2.0_f32.powi(31))
            .collect();
        let mut state = vec![0; codec.state_words(elements)];
        stats = codec.encode(Step::FIRST, (&gradient).into(), &mut state, &mut words);
        for _ in 0..recipe.u8() % 4 {
            if !words.is_empty() {
                let at = recipe.below(words.len());
                words[at] = if rank == 0 { words[at] ^ (1 << (recipe.u8() % 32)) } else { recipe.u32() };
            }
        }
    }
    form.header(samples, stats).packet(&words).to_vec()
}

fn average(recipe: &mut Recipe<'_>, codec: &Codec, packets: &[Vec<u32>], weights: &[u32], elements: usize) {
    let packets: Vec<&[u32]> = packets.iter().map(Vec::as_slice).collect();
    let mut state = vec![0; codec.mean_state_words(packets.len(), elements)];
    if recipe.u8().is_multiple_of(2) {
        let mut hostile = state.clone();
        hostile.iter_mut().for_each(|word| *word = recipe.u32());
        if codec.check_mean_state(packets.len(), elements, &hostile).is_ok() {
            state = hostile;
        }
    }
    let mut mean = vec![0.0; elements];
    // Scratch of a few words per element and packet, and of a whole unit for a part of one.
    let bound = (256 << 10) + 64 * (elements + codec.unit().elements) * packets.len();
    let checked = codec.check(&packets, weights, elements);
    let averaged = memory::within(bound, || codec.average(&packets, weights, &mut state, &mut mean));
    assert_eq!(checked.map(|_| ()), averaged, "{codec}: check and average");
    match averaged {
        Ok(()) => {
            let clipped = memory::within(2 * bound, || codec.clip(&packets, weights, elements));
            assert!(clipped.is_none_or(|clipped| clipped.len() == packets.len()), "{codec}: clipped packets");
        }
        Err(AverageError::Malformed { index, .. }) => assert!(index < packets.len(), "packet {index}"),
        Err(error) => assert!(weights.len() == packets.len(), "{error}"),
    }
    if let (Codec::Loco(config), Ok(_)) = (codec, checked) {
        for variant in loco::variants() {
            let mut other = vec![f32::NAN; elements];
            let result = (variant.average)(config, &packets, weights, &mut other);
            assert!(result.is_ok(), "{}: {result:?}", variant.name);
            let same = mean.iter().zip(&other).all(|(one, other)| one.to_bits() == other.to_bits());
            assert!(same, "{} gives other bits", variant.name);
        }
    }
}

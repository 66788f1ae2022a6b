//! How the packet of a shard is cut into pieces.

use std::ops::Range;

use gradwire_transport::Cut;
use gradwire_transport::frame::MAX_PAYLOAD;

use super::packet::{HEAD_BYTES, TAIL_BYTES};
use crate::codec::{Codec, Unit};

/// A *segment* is a run of whole units of a shard whose words travel as one piece, the last one what is left.
///
/// Units have nothing to do with each other, so that encoding and averaging by segments gives the bits of the whole.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segments {
    /// Of a segment that is not the last.
    elements: usize,
    /// Of its words.
    bytes: usize,
}

impl Segments {
    /// Of about `piece_bytes`, but at least one unit and at most what a frame carries.
    pub(super) fn new(codec: &Codec, piece_bytes: usize) -> Self {
        let Unit { elements, words, .. } = codec.unit();
        let most = piece_bytes.min(MAX_PAYLOAD - HEAD_BYTES);
        let units = (most / (4 * words)).max(1);
        Self { elements: units * elements, bytes: 4 * units * words }
    }

    /// The pieces of a packet: one for each segment, the first with the head in front, and the tail.
    pub(super) fn cut(&self) -> Cut {
        Cut { head: HEAD_BYTES, piece: self.bytes, tail: TAIL_BYTES }
    }

    /// Segments of a shard of `elements`, at least 1.
    pub(super) fn count(&self, elements: usize) -> usize {
        elements.div_ceil(self.elements).max(1)
    }

    /// Elements of a segment, counted from the start of its shard of `elements`.
    pub(super) fn range(&self, elements: usize, index: usize) -> Range<usize> {
        let start = index.saturating_mul(self.elements).min(elements);
        start..start.saturating_add(self.elements).min(elements)
    }

    /// Which segment the piece at `offset` of a packet has.
    pub(super) fn index(&self, offset: u64) -> usize {
        let body = offset.saturating_sub(HEAD_BYTES as u64);
        usize::try_from(body / self.bytes as u64).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::codec::CodecId;
    use crate::sync::packet::Form;

    fn codecs() -> Vec<Codec> {
        let others = [
            "topk:chunk=4096,k=4096",
            "topk:chunk=64,k=64",
            "topk:residual_bits=8,k=3",
            "ef21:block=1024",
            "block8:block=1024",
            "loco-block:bits=2,block=40",
            "sign:block=64",
        ];
        CodecId::ALL.into_iter().map(Codec::new).chain(others.map(|text| text.parse().unwrap())).collect()
    }

    #[test]
    fn every_piece_of_every_packet_is_the_words_of_its_segment_and_fits_a_frame() {
        for codec in codecs() {
            let unit = codec.unit().elements;
            for piece_bytes in [0, 100, 5000, 1 << 20, usize::MAX] {
                let segments = Segments::new(&codec, piece_bytes);
                let cut = segments.cut();
                assert!(cut.head + cut.piece <= MAX_PAYLOAD, "{codec} {piece_bytes}: {cut:?}");
                let long = 2 * segments.elements;
                for elements in [0, 1, unit - 1, unit, unit + 1, long - unit, long - 1, long, long + 1] {
                    let case = format!("{elements} of {codec} in pieces of {piece_bytes}");
                    let total = Form::of(&codec, elements).bytes() as u64;
                    let count = segments.count(elements);
                    assert_eq!(cut.count(total), count as u64 + 1, "{case}");
                    let mut next = 0;
                    for index in 0..count {
                        let piece = cut.range(total, index as u64);
                        let range = segments.range(elements, index);
                        assert_eq!(range.start, next, "{case}");
                        next = range.end;
                        assert_eq!(segments.index(piece.start), index, "{case}");
                        let head = if index == 0 { HEAD_BYTES } else { 0 };
                        let words = codec.packet_words(range.len());
                        assert_eq!(piece.end - piece.start, (head + 4 * words) as u64, "{case}: {index}");
                    }
                    assert_eq!(next, elements, "{case}");
                }
            }
        }
    }
}

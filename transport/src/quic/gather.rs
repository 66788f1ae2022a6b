//! A frame from the parts of its stream, in whatever order they come.

use bytes::BytesMut;

use crate::error::FrameError;
use crate::frame::{Frame, HEADER_BYTES, Header, MAX_PAYLOAD};

/// The parts of one stream, each written to its place as it comes: what arrives after a lost packet frees the connection's
/// window at once, and not a round trip later when the packet has come again.
///
/// **Memory**: what the header says, at most one frame; before the header has come, up to the end of the last part.
#[derive(Default)]
pub(super) struct Gather {
    bytes: BytesMut,
    /// Bytes that came, all in all and of the header.
    have: usize,
    head: usize,
    /// Length of the frame, once the header has come.
    need: Option<usize>,
}

impl Gather {
    /// Takes what came at `offset`. No byte comes twice.
    ///
    /// # Errors
    ///
    /// What is wrong with the header, or bytes beyond the frame.
    pub(super) fn put(&mut self, offset: u64, part: &[u8]) -> Result<(), FrameError> {
        let end = offset.saturating_add(part.len() as u64);
        self.inside(end)?;
        // Inside a frame, so it fits.
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        if self.bytes.len() < offset {
            // Only the gap is written twice.
            self.bytes.resize(offset, 0);
        }
        let (inner, beyond) = part.split_at(part.len().min(self.bytes.len() - offset));
        self.bytes[offset..offset + inner.len()].copy_from_slice(inner);
        self.bytes.extend_from_slice(beyond);
        self.have += part.len();
        self.head += (offset + part.len()).min(HEADER_BYTES).saturating_sub(offset);
        if self.need.is_none()
            && self.head == HEADER_BYTES
            && let Some(head) = self.bytes.first_chunk()
        {
            let need = HEADER_BYTES + Header::decode(head)?.0.length as usize;
            self.need = Some(need);
            self.inside(self.bytes.len() as u64)?;
            self.bytes.reserve(need - self.bytes.len());
        }
        Ok(())
    }

    fn inside(&self, end: u64) -> Result<(), FrameError> {
        let limit = self.need.unwrap_or(HEADER_BYTES + MAX_PAYLOAD) as u64;
        if end > limit { Err(FrameError::Oversized { length: end, limit }) } else { Ok(()) }
    }

    /// Whether all of the frame is there.
    pub(super) fn is_complete(&self) -> bool {
        self.need == Some(self.have)
    }

    /// The frame, when it is complete or nothing more will come.
    ///
    /// # Errors
    ///
    /// If bytes are missing, or the checksum is wrong.
    pub(super) fn finish(self) -> Result<Frame, FrameError> {
        let need = self.need.unwrap_or(HEADER_BYTES) as u64;
        let have = self.have as u64;
        if have < need {
            return Err(FrameError::Truncated { have, need });
        }
        Frame::decode(&self.bytes.freeze())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use bytes::Bytes;

    use super::*;
    use crate::frame::{Operation, Tag};
    use crate::sim::Random;
    use crate::world::Rank;

    fn frame(length: u32) -> (Frame, Vec<u8>) {
        let payload: Bytes = (0..=250).cycle().take(length as usize).collect();
        let operation = Operation { step: 1, tag: Tag(0) };
        let total = u64::from(length);
        let header = Header { operation, epoch: 0, from: Rank(0), total, offset: 0, length };
        let bytes = [header.encode(&payload).as_slice(), &payload].concat();
        (Frame { header, payload }, bytes)
    }

    /// Parts of 1 to 999 bytes, in a random order.
    fn parts(bytes: &[u8], random: &mut Random) -> Vec<(usize, Vec<u8>)> {
        let (mut parts, mut at) = (Vec::new(), 0);
        while at < bytes.len() {
            let end = bytes.len().min(at + 1 + usize::try_from(random.below(999)).unwrap());
            parts.push((at, bytes[at..end].to_vec()));
            at = end;
        }
        for last in (1..parts.len()).rev() {
            parts.swap(last, usize::try_from(random.below(last as u64 + 1)).unwrap());
        }
        parts
    }

    #[test]
    fn a_frame_does_not_depend_on_the_order_of_its_parts() {
        let mut random = Random::new(1);
        for length in [0, 1, 700, 5000, 100_000] {
            for _ in 0..20 {
                let (sent, bytes) = frame(length);
                let mut gather = Gather::default();
                for (offset, part) in parts(&bytes, &mut random) {
                    assert!(!gather.is_complete(), "{} of {} bytes", gather.have, bytes.len());
                    gather.put(offset as u64, &part).unwrap();
                }
                assert!(gather.is_complete(), "all {length} bytes have come");
                assert_eq!(gather.finish().unwrap(), sent);
            }
        }
    }

    #[test]
    fn a_part_that_is_missing_and_one_that_is_too_much_are_refused_with_both_numbers() {
        let mut random = Random::new(2);
        let (_, bytes) = frame(5000);
        for _ in 0..20 {
            let mut gather = Gather::default();
            let mut parts = parts(&bytes, &mut random);
            let (_, missing) = parts.pop().unwrap();
            for (offset, part) in parts {
                gather.put(offset as u64, &part).unwrap();
            }
            assert!(!gather.is_complete(), "{} bytes are missing", missing.len());
            let head_came = gather.need.is_some();
            let (have, need) = ((5056 - missing.len()) as u64, 5056);
            match gather.finish() {
                Err(FrameError::Truncated { have: found, need: wanted }) if head_came => {
                    assert_eq!((found, wanted), (have, need));
                }
                // Nobody knows how long it should have been, or its head is taken from a gap.
                Err(_) if !head_came => {}
                other => panic!("{other:?}"),
            }
        }
        let beyond = |first: u64, then: u64| {
            let mut gather = Gather::default();
            let at = |offset: u64| (offset, vec![7; 100]);
            let head = (0, bytes[..100].to_vec());
            let order = if first == 0 { [head, at(then)] } else { [at(first), head] };
            order.into_iter().try_for_each(|(offset, part)| gather.put(offset, &part)).unwrap_err()
        };
        let oversized = |length, limit| FrameError::Oversized { length, limit };
        assert_eq!(beyond(0, 5000), oversized(5100, 5056), "the header came first");
        assert_eq!(beyond(5000, 0), oversized(5100, 5056), "the header came last");
        let longest = (HEADER_BYTES + MAX_PAYLOAD) as u64;
        assert_eq!(beyond(longest, 0), oversized(longest + 100, longest), "no frame is so long");
        assert_eq!(beyond(u64::MAX - 10, 0), oversized(u64::MAX, longest), "no stream is so long");
    }

    #[test]
    fn no_memory_is_taken_for_what_a_header_only_promises_or_a_stranger_sends() {
        let mut gather = Gather::default();
        gather.put(0, &[b'X'; HEADER_BYTES]).unwrap_err();
        assert!(gather.bytes.capacity() < 1024, "{} bytes", gather.bytes.capacity());
    }
}

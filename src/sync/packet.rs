//! What one rank sends to the owner of a shard: a header, then the codec's words.
//!
//! **Wire layout**, little-endian:
//!
//! | bytes | field | |
//! |---|---|---|
//! | 0 | codec | [`CodecId`] |
//! | 1 | scale_log2 | of a codec with one scale for the whole gradient; else 0 |
//! | 2..4 | reserved | 0 |
//! | 4..8 | samples | weight of the sender's gradient |
//! | 8..16 | elements | of this shard, without padding |
//! | 16..24 | nonfinite | elements of the sender's WHOLE gradient that are not finite |
//! | 24..32 | saturated | codes of the sender's WHOLE gradient that were clamped |
//! | 32.. | words | `u32` each |
//!
//! The counts stand in every packet, so that all ranks learn in the same exchange whose gradient was not
//! finite, and decide alike.

use bytes::Bytes;

use crate::codec::{Codec, CodecId, UnknownCodec};

/// Bytes before the words.
pub const HEADER_BYTES: usize = 32;

/// What a packet says about its words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The sender's codec.
    pub codec: Codec,
    /// Elements of the shard.
    pub elements: u64,
    /// Weight of the sender's gradient.
    pub samples: u32,
    /// Elements of the sender's whole gradient that are not finite.
    pub nonfinite: u64,
    /// Codes of the sender's whole gradient that were clamped.
    pub saturated: u64,
}

/// A packet that does not fit this rank's shard.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PacketError {
    /// Another number of bytes than header and words of the shard take.
    #[error("packet of {have} bytes, the shard needs {need}")]
    Length {
        /// Bytes that came.
        have: usize,
        /// Bytes of a packet for this shard.
        need: usize,
    },
    /// A codec that this build does not know.
    #[error(transparent)]
    Unknown(#[from] UnknownCodec),
    /// A codec that this rank does not use.
    #[error("packet of codec {theirs}, ours is {ours}")]
    Codec {
        /// The sender's.
        theirs: CodecId,
        /// This rank's.
        ours: CodecId,
    },
    /// Codes of another scale.
    #[error("packet of scale 2^{theirs}, ours is 2^{ours}")]
    Scale {
        /// The sender's.
        theirs: i8,
        /// This rank's.
        ours: i8,
    },
    /// A shard of another size.
    #[error("packet of {theirs} elements, the shard has {ours}")]
    Elements {
        /// The sender's.
        theirs: u64,
        /// This rank's.
        ours: u64,
    },
    /// Reserved bits are set.
    #[error("reserved field is {found}, must be 0")]
    Reserved {
        /// What was there.
        found: u16,
    },
    /// A number of a tensor that no shard has (see [`crate::optim::Partials`]).
    #[error("a norm or factor of {found}, must be finite and not negative")]
    Norm {
        /// What was there.
        found: f64,
    },
    /// A moment that no gradient has (see [`super::scale`]).
    #[error("a sum of squares of {found}, must be finite and not negative")]
    Moment {
        /// What was there.
        found: f64,
    },
}

/// Bytes of the packet for a shard of `elements`.
#[must_use]
pub fn bytes(codec: &Codec, elements: usize) -> usize {
    HEADER_BYTES + 4 * codec.packet_words(elements)
}

impl Header {
    /// Header and `words` as they travel.
    #[must_use]
    pub fn packet(&self, words: &[u32]) -> Bytes {
        let mut out = vec![0; HEADER_BYTES + 4 * words.len()];
        let (head, body) = out.split_at_mut(HEADER_BYTES);
        head[0] = self.codec.id().into();
        head[1] = scale(&self.codec).cast_unsigned();
        head[4..8].copy_from_slice(&self.samples.to_le_bytes());
        head[8..16].copy_from_slice(&self.elements.to_le_bytes());
        head[16..24].copy_from_slice(&self.nonfinite.to_le_bytes());
        head[24..32].copy_from_slice(&self.saturated.to_le_bytes());
        write_words(words.iter().copied(), body);
        out.into()
    }

    /// Reads the header of a packet for this rank's shard of `elements`, encoded with `codec`.
    ///
    /// # Errors
    ///
    /// Whatever does not fit, with both numbers.
    pub fn decode(packet: &[u8], codec: Codec, elements: usize) -> Result<Self, PacketError> {
        let need = bytes(&codec, elements);
        let (Some(head), true) = (packet.first_chunk::<HEADER_BYTES>(), packet.len() == need) else {
            return Err(PacketError::Length { have: packet.len(), need });
        };
        let theirs = CodecId::try_from(head[0])?;
        if theirs != codec.id() {
            return Err(PacketError::Codec { theirs, ours: codec.id() });
        }
        let theirs = i8::from_le_bytes([head[1]]);
        let ours = scale(&codec);
        if theirs != ours {
            return Err(PacketError::Scale { theirs, ours });
        }
        let found = u16::from_le_bytes([head[2], head[3]]);
        if found != 0 {
            return Err(PacketError::Reserved { found });
        }
        let (theirs, ours) = (number(head, 8), elements as u64);
        if theirs != ours {
            return Err(PacketError::Elements { theirs, ours });
        }
        Ok(Self {
            codec,
            elements: ours,
            samples: u32::from_le_bytes([head[4], head[5], head[6], head[7]]),
            nonfinite: number(head, 16),
            saturated: number(head, 24),
        })
    }
}

/// The scale as it travels.
fn scale(codec: &Codec) -> i8 {
    codec.scale_log2().unwrap_or(0)
}

/// `words` as they travel. Whole words into a buffer that is there already: a loop that compiles to a copy.
pub(super) fn write_words(words: impl Iterator<Item = u32>, out: &mut [u8]) {
    for (bytes, word) in out.as_chunks_mut().0.iter_mut().zip(words) {
        *bytes = word.to_le_bytes();
    }
}

/// The words of a packet whose header is good, into `words`.
pub(super) fn read_words(packet: &[u8], words: &mut Vec<u32>) {
    words.clear();
    let body = packet.get(HEADER_BYTES..).unwrap_or_default();
    words.extend(body.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)));
}

fn number(head: &[u8; HEADER_BYTES], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&head[at..at + 8]);
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::loco;

    fn loco(scale_log2: i8) -> Codec {
        Codec::Loco(loco::Config { scale_log2, ..loco::Config::default() })
    }

    fn header(codec: Codec) -> Header {
        Header { codec, elements: 17, samples: 5, nonfinite: 2, saturated: u64::MAX }
    }

    #[test]
    fn a_packet_comes_back_as_it_was_sent() {
        for (codec, words) in [(loco(-3), vec![1, 2, u32::MAX]), (Codec::F32, (0..17).collect())] {
            let packet = header(codec).packet(&words);
            assert_eq!(packet.len(), bytes(&codec, 17));
            assert_eq!(Header::decode(&packet, codec, 17), Ok(header(codec)));
            let mut read = Vec::new();
            read_words(&packet, &mut read);
            assert_eq!(read, words);
        }
    }

    #[test]
    fn a_packet_that_does_not_fit_is_refused_with_both_numbers() {
        let packet = header(loco(19)).packet(&[0; 3]);
        let decode = |packet: &[u8], codec, elements| Header::decode(packet, codec, elements).map(|_| ());
        for cut in 0..packet.len() {
            assert_eq!(
                decode(&packet[..cut], loco(19), 17),
                Err(PacketError::Length { have: cut, need: 44 })
            );
        }
        let longer = [&packet[..], &[0]].concat();
        assert_eq!(decode(&longer, loco(19), 17), Err(PacketError::Length { have: 45, need: 44 }));
        assert_eq!(decode(&packet, loco(18), 17), Err(PacketError::Scale { theirs: 19, ours: 18 }));
        assert_eq!(decode(&packet, loco(19), 18), Err(PacketError::Elements { theirs: 17, ours: 18 }));
        let f32s = header(Codec::F32).packet(&[0; 3]);
        let wrong = PacketError::Codec { theirs: CodecId::F32, ours: CodecId::Loco };
        assert_eq!(decode(&f32s, loco(19), 17), Err(wrong));
        let mut unknown = packet.to_vec();
        unknown[0] = 77;
        assert_eq!(decode(&unknown, loco(19), 17), Err(PacketError::Unknown(UnknownCodec(77))));
        let mut reserved = packet.to_vec();
        reserved[3] = 1;
        assert_eq!(decode(&reserved, loco(19), 17), Err(PacketError::Reserved { found: 256 }));
    }
}

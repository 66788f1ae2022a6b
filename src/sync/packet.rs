//! What one rank sends to the owner of a shard: a header, then the words of a codec, or of a collective of its own.
//!
//! **Wire layout**, little-endian:
//!
//! | bytes | field | |
//! |---|---|---|
//! | 0 | codec | [`SchemeId`] |
//! | 1 | scale_log2 | of a codec with one scale for the whole gradient; else 0 |
//! | 2..4 | reserved | 0 |
//! | 4..8 | samples | weight of the sender's gradient |
//! | 8..16 | elements | of this shard, without padding; for [`super::powersgd`] the words that follow |
//! | 16..24 | nonfinite | elements of the sender's WHOLE gradient that are not finite |
//! | 24..32 | saturated | codes of the sender's WHOLE gradient that were clamped |
//! | 32.. | words | `u32` each |
//!
//! The counts stand in every packet, so that all ranks learn in the same exchange whose gradient was not
//! finite, and decide alike.

use bytes::Bytes;
use gradwire_transport::Rank;

use super::scheme::{SchemeId, UnknownScheme};
use crate::codec::convert::widen_f16;
use crate::codec::{Codec, CodecId, Stats};

/// Bytes before the words.
pub const HEADER_BYTES: usize = 32;

/// What a packet must be: the same for sender and receiver, who compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    /// The codec.
    pub codec: SchemeId,
    /// Its scale, if it has one for the whole gradient; else 0.
    pub scale_log2: i8,
    /// Elements that the words stand for.
    pub elements: u64,
    /// `u32` words behind the header.
    pub words: usize,
}

/// What a packet says about its words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Codec, scale and lengths.
    pub form: Form,
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
    Unknown(#[from] UnknownScheme),
    /// A codec that this rank does not use.
    #[error("packet of codec {theirs}, ours is {ours}")]
    Codec {
        /// The sender's.
        theirs: SchemeId,
        /// This rank's.
        ours: SchemeId,
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
    /// A float that no rank with a finite gradient sends: in a packet of a codec that sends floats as they are, although no
    /// header of the step counts an element that is not finite, or in one of [`super::powersgd`].
    #[error("word {index} is {found:e}, must be a number of at most {limit:e} in magnitude")]
    Magnitude {
        /// Which word behind the header.
        index: usize,
        /// What was there.
        found: f32,
        /// The largest magnitude that is taken.
        limit: f32,
    },
    /// A moment that no gradient has (see [`super::scale`]).
    #[error("a sum of squares of {found}, must be finite and not negative")]
    Moment {
        /// What was there.
        found: f64,
    },
}

impl Form {
    /// Of `codec`'s packet for a shard of `elements`.
    #[must_use]
    pub fn of(codec: &Codec, elements: usize) -> Self {
        Self {
            codec: codec.id().into(),
            scale_log2: codec.scale_log2().unwrap_or(0),
            elements: elements as u64,
            words: codec.packet_words(elements),
        }
    }

    /// Bytes of the packet, header included.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        HEADER_BYTES + 4 * self.words
    }

    /// With what one rank has to say.
    #[must_use]
    pub const fn header(self, samples: u32, stats: Stats) -> Header {
        Header { form: self, samples, nonfinite: stats.nonfinite, saturated: stats.saturated }
    }
}

impl Header {
    /// Header and `words`, as many as the form says, as they travel.
    #[must_use]
    pub fn packet(&self, words: &[u32]) -> Bytes {
        debug_assert_eq!(words.len(), self.form.words, "words of a packet");
        let mut out = vec![0; HEADER_BYTES + 4 * words.len()];
        let (head, body) = out.split_at_mut(HEADER_BYTES);
        head[0] = self.form.codec.into();
        head[1] = self.form.scale_log2.cast_unsigned();
        head[4..8].copy_from_slice(&self.samples.to_le_bytes());
        head[8..16].copy_from_slice(&self.form.elements.to_le_bytes());
        head[16..24].copy_from_slice(&self.nonfinite.to_le_bytes());
        head[24..32].copy_from_slice(&self.saturated.to_le_bytes());
        write_words(words.iter().copied(), body);
        out.into()
    }

    /// Reads the header of a packet that must be of the form `ours`.
    ///
    /// # Errors
    ///
    /// Whatever does not fit, with both numbers.
    pub fn decode(packet: &[u8], ours: Form) -> Result<Self, PacketError> {
        let need = ours.bytes();
        let (Some(head), true) = (packet.first_chunk::<HEADER_BYTES>(), packet.len() == need) else {
            return Err(PacketError::Length { have: packet.len(), need });
        };
        let theirs = SchemeId::try_from(head[0])?;
        if theirs != ours.codec {
            return Err(PacketError::Codec { theirs, ours: ours.codec });
        }
        let theirs = i8::from_le_bytes([head[1]]);
        if theirs != ours.scale_log2 {
            return Err(PacketError::Scale { theirs, ours: ours.scale_log2 });
        }
        let found = u16::from_le_bytes([head[2], head[3]]);
        if found != 0 {
            return Err(PacketError::Reserved { found });
        }
        let theirs = number(head, 8);
        if theirs != ours.elements {
            return Err(PacketError::Elements { theirs, ours: ours.elements });
        }
        let samples = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
        Ok(ours.header(samples, Stats { nonfinite: number(head, 16), saturated: number(head, 24) }))
    }
}

/// Whether every float in `packets` is finite, unless one of their headers counts an element that is not: then no mean is
/// made of them. An error comes with the rank that its packet came from.
///
/// Only codecs that send floats as they are can be lied with so. Their mean would be NaN, and the owner of the shard would
/// be taken for the one who made it so.
pub(super) fn check_finite<'a>(
    headers: &[Header],
    packets: impl IntoIterator<Item = (Rank, &'a Bytes)>,
) -> Result<(), (Rank, PacketError)> {
    if headers.iter().any(|header| header.nonfinite > 0) {
        return Ok(());
    }
    for (header, (rank, packet)) in headers.iter().zip(packets) {
        if let Some((index, found)) = nonfinite(header.form, packet) {
            return Err((rank, PacketError::Magnitude { index, found, limit: f32::MAX }));
        }
    }
    Ok(())
}

/// The first float that is not finite, and its word.
fn nonfinite(form: Form, packet: &[u8]) -> Option<(usize, f32)> {
    /// Looked at without a branch per element, which would keep them from being looked at together.
    const CHUNK: usize = 4096;
    fn first<const BYTES: usize>(
        floats: &[[u8; BYTES]],
        bad: impl Fn(&[u8; BYTES]) -> bool,
    ) -> Option<usize> {
        let chunks = floats.chunks(CHUNK);
        let at = chunks.map(|chunk| chunk.iter().fold(false, |any, float| any | bad(float)));
        let start = CHUNK * at.enumerate().find(|(_, any)| *any)?.0;
        Some(start + floats[start..].iter().position(bad)?)
    }
    let body = packet.get(HEADER_BYTES..).unwrap_or_default();
    // What fills the last word up is not looked at.
    let halves = |exponent: u16| {
        let halves = body.as_chunks::<2>().0;
        let elements =
            usize::try_from(form.elements).map_or(halves.len(), |elements| elements.min(halves.len()));
        let at = first(&halves[..elements], |half| u16::from_le_bytes(*half) & exponent == exponent)?;
        Some((at, u16::from_le_bytes(halves[at])))
    };
    match form.codec {
        SchemeId::Codec(CodecId::F32) => {
            let floats = body.as_chunks::<4>().0;
            let at = first(floats, |float| !f32::from_le_bytes(*float).is_finite())?;
            Some((at, f32::from_le_bytes(floats[at])))
        }
        SchemeId::Codec(CodecId::F16) => {
            halves(0x7C00).map(|(at, half)| (at / 2, f32::from_bits(widen_f16(half))))
        }
        SchemeId::Codec(CodecId::Bf16) => {
            halves(0x7F80).map(|(at, half)| (at / 2, f32::from_bits(u32::from(half) << 16)))
        }
        _ => None,
    }
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
    use crate::codec::{CodecId, loco};

    fn loco(scale_log2: i8) -> Codec {
        Codec::Loco(loco::Config { scale_log2, ..loco::Config::default() })
    }

    fn header(codec: Codec) -> Header {
        Form::of(&codec, 17).header(5, Stats { nonfinite: 2, saturated: u64::MAX })
    }

    #[test]
    fn a_packet_comes_back_as_it_was_sent() {
        for (codec, words) in [(loco(-3), vec![1, 2, u32::MAX]), (Codec::F32, (0..17).collect())] {
            let packet = header(codec).packet(&words);
            assert_eq!(packet.len(), Form::of(&codec, 17).bytes());
            assert_eq!(Header::decode(&packet, Form::of(&codec, 17)), Ok(header(codec)));
            let mut read = Vec::new();
            read_words(&packet, &mut read);
            assert_eq!(read, words);
        }
    }

    #[test]
    fn a_packet_that_does_not_fit_is_refused_with_both_numbers() {
        let packet = header(loco(19)).packet(&[0; 3]);
        let decode =
            |packet: &[u8], codec, elements| Header::decode(packet, Form::of(&codec, elements)).map(|_| ());
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
        let mut f32s = packet.to_vec();
        f32s[0] = CodecId::F32.into();
        let wrong = PacketError::Codec { theirs: CodecId::F32.into(), ours: CodecId::Loco.into() };
        assert_eq!(decode(&f32s, loco(19), 17), Err(wrong));
        let mut unknown = packet.to_vec();
        unknown[0] = 77;
        assert_eq!(decode(&unknown, loco(19), 17), Err(PacketError::Unknown(UnknownScheme(77))));
        let mut reserved = packet.to_vec();
        reserved[3] = 1;
        assert_eq!(decode(&reserved, loco(19), 17), Err(PacketError::Reserved { found: 256 }));
    }
}

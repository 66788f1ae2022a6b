//! What one rank sends to the owner of a shard: a head, the words of a codec or of a collective of its own, and a tail.
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
//! | 16..16 + 4w | words | w of them, `u32` each |
//! | then 8 | nonfinite | elements of the sender's WHOLE gradient that are not finite |
//! | then 8 | saturated | codes of the sender's WHOLE gradient that were clamped |
//!
//! The counts stand in every packet, so that all ranks learn in the same exchange whose gradient was not
//! finite, and decide alike. They stand at its end, because they are known when all of the gradient is encoded, and the
//! first words are on their way long before.

use bytes::Bytes;

use super::scheme::{SchemeId, UnknownScheme};
use crate::codec::convert::widen_f16;
use crate::codec::{Codec, CodecId, StateError, Stats};
use crate::optim;

/// Bytes before the words.
pub const HEAD_BYTES: usize = 16;

/// Bytes behind them.
pub const TAIL_BYTES: usize = 16;

/// What a packet must be: the same for sender and receiver, who compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    /// The codec.
    pub codec: SchemeId,
    /// Its scale, if it has one for the whole gradient; else 0.
    pub scale_log2: i8,
    /// Elements that the words stand for.
    pub elements: u64,
    /// `u32` words between head and tail.
    pub words: usize,
}

/// What a packet says about its words, in its head and its tail.
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
    /// Another number of bytes than head, words of the shard and tail take.
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
        /// Which word behind the head.
        index: usize,
        /// What was there.
        found: f32,
        /// The largest magnitude that is taken.
        limit: f32,
    },
    /// State for means, of a shard that changes hands, that no owner has.
    #[error(transparent)]
    State(#[from] StateError),
    /// State of the optimizer, of a shard that changes hands, that no step leaves.
    #[error(transparent)]
    Optimizer(#[from] optim::RestoreError),
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

    /// Bytes of the packet, head and tail included.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        HEAD_BYTES + 4 * self.words + TAIL_BYTES
    }

    /// With what one rank has to say.
    #[must_use]
    pub const fn header(self, samples: u32, stats: Stats) -> Header {
        Header { form: self, samples, nonfinite: stats.nonfinite, saturated: stats.saturated }
    }

    /// The head of a rank whose gradient has this weight.
    #[must_use]
    pub fn head(&self, samples: u32) -> [u8; HEAD_BYTES] {
        let mut head = [0; HEAD_BYTES];
        head[0] = self.codec.into();
        head[1] = self.scale_log2.cast_unsigned();
        head[4..8].copy_from_slice(&samples.to_le_bytes());
        head[8..].copy_from_slice(&self.elements.to_le_bytes());
        head
    }

    /// Reads the samples from the head of a packet that must be of this form.
    ///
    /// # Errors
    ///
    /// Whatever does not fit, with both numbers.
    pub fn decode_head(&self, head: &[u8; HEAD_BYTES]) -> Result<u32, PacketError> {
        let theirs = SchemeId::try_from(head[0])?;
        if theirs != self.codec {
            return Err(PacketError::Codec { theirs, ours: self.codec });
        }
        let theirs = i8::from_le_bytes([head[1]]);
        if theirs != self.scale_log2 {
            return Err(PacketError::Scale { theirs, ours: self.scale_log2 });
        }
        let found = u16::from_le_bytes([head[2], head[3]]);
        if found != 0 {
            return Err(PacketError::Reserved { found });
        }
        let theirs = number(head, 8);
        if theirs != self.elements {
            return Err(PacketError::Elements { theirs, ours: self.elements });
        }
        Ok(u32::from_le_bytes([head[4], head[5], head[6], head[7]]))
    }
}

/// The tail of a rank that counted this in its whole gradient.
#[must_use]
pub fn tail(stats: Stats) -> [u8; TAIL_BYTES] {
    let mut tail = [0; TAIL_BYTES];
    tail[..8].copy_from_slice(&stats.nonfinite.to_le_bytes());
    tail[8..].copy_from_slice(&stats.saturated.to_le_bytes());
    tail
}

/// The counts in a tail, which may be any.
#[must_use]
pub fn decode_tail(tail: &[u8; TAIL_BYTES]) -> Stats {
    Stats { nonfinite: number(tail, 0), saturated: number(tail, 8) }
}

/// The words of a packet, as they travel; none of one that is too short for head and tail.
#[must_use]
pub fn body(packet: &[u8]) -> &[u8] {
    let end = packet.len().saturating_sub(TAIL_BYTES);
    packet.get(HEAD_BYTES..end).unwrap_or_default()
}

impl Header {
    /// Head, `words`, as many as the form says, and tail, as they travel.
    #[must_use]
    pub fn packet(&self, words: &[u32]) -> Bytes {
        debug_assert_eq!(words.len(), self.form.words, "words of a packet");
        let mut out = vec![0; HEAD_BYTES + 4 * words.len() + TAIL_BYTES];
        let (head, rest) = out.split_at_mut(HEAD_BYTES);
        let (body, end) = rest.split_at_mut(4 * words.len());
        head.copy_from_slice(&self.form.head(self.samples));
        write_words(words.iter().copied(), body);
        end.copy_from_slice(&tail(self.stats()));
        out.into()
    }

    /// What the sender counted in its whole gradient.
    #[must_use]
    pub const fn stats(&self) -> Stats {
        Stats { nonfinite: self.nonfinite, saturated: self.saturated }
    }

    /// Reads head and tail of a packet that must be of the form `ours`.
    ///
    /// # Errors
    ///
    /// Whatever does not fit, with both numbers.
    pub fn decode(packet: &[u8], ours: Form) -> Result<Self, PacketError> {
        let need = ours.bytes();
        let (Some(head), Some(tail), true) =
            (packet.first_chunk(), packet.last_chunk(), packet.len() == need)
        else {
            return Err(PacketError::Length { have: packet.len(), need });
        };
        Ok(ours.header(ours.decode_head(head)?, decode_tail(tail)))
    }
}

/// The first float that is not finite, and its word, in the words of `elements` as they travel. None in those of a codec that
/// sends no floats.
pub(super) fn nonfinite(codec: SchemeId, elements: u64, body: &[u8]) -> Option<(usize, f32)> {
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
    // What fills the last word up is not looked at.
    let halves = |exponent: u16| {
        let halves = body.as_chunks::<2>().0;
        let elements = usize::try_from(elements).map_or(halves.len(), |elements| elements.min(halves.len()));
        let at = first(&halves[..elements], |half| u16::from_le_bytes(*half) & exponent == exponent)?;
        Some((at, u16::from_le_bytes(halves[at])))
    };
    match codec {
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

/// The words that travel as `body`, into `words`.
pub(super) fn read_words(body: &[u8], words: &mut Vec<u32>) {
    words.clear();
    words.extend(body.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)));
}

fn number(bytes: &[u8; 16], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
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
            read_words(body(&packet), &mut read);
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

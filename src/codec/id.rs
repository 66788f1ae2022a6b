//! The codecs' names and bytes on the wire.

use std::fmt;

/// Which codec made a packet; the value is the byte on the wire.
#[repr(u8)]
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CodecId {
    /// [`cast`](super::cast): f32 as it is, the baseline.
    F32 = 1,
    /// [`loco`](super::loco): 4-bit codes with 8-bit error feedback.
    Loco = 2,
    /// [`topk`](super::topk): the largest of each chunk, 2 bits each.
    TopK = 12,
}

impl CodecId {
    /// Every codec of this build, in the order of the wire byte.
    pub const ALL: [Self; 3] = [Self::F32, Self::Loco, Self::TopK];

    /// The name in commands and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Loco => "loco",
            Self::TopK => "topk",
        }
    }
}

impl fmt::Display for CodecId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl From<CodecId> for u8 {
    fn from(id: CodecId) -> Self {
        id as u8
    }
}

impl TryFrom<u8> for CodecId {
    type Error = UnknownCodec;

    fn try_from(byte: u8) -> Result<Self, UnknownCodec> {
        Self::ALL.into_iter().find(|id| u8::from(*id) == byte).ok_or(UnknownCodec(byte))
    }
}

/// A peer sent a codec byte that this build does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownCodec(pub u8);

impl fmt::Display for UnknownCodec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "peer names codec {}, this build knows", self.0)?;
        for (index, id) in CodecId::ALL.into_iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma} {} ({id})", u8::from(id))?;
        }
        Ok(())
    }
}

impl std::error::Error for UnknownCodec {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_codec_byte_comes_back_as_its_codec_and_all_others_are_refused_by_number() {
        let mut known = 0;
        for byte in 0..=u8::MAX {
            match CodecId::try_from(byte) {
                Ok(id) => {
                    assert_eq!(u8::from(id), byte);
                    known += 1;
                }
                Err(error) => assert_eq!(error, UnknownCodec(byte)),
            }
        }
        assert_eq!(known, CodecId::ALL.len());
        let message = UnknownCodec(200).to_string();
        assert!(message.starts_with("peer names codec 200, this build knows 1 (f32), 2 (loco)"), "{message}");
    }
}

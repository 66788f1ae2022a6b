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
    /// [`cast`](super::cast): IEEE 754 half precision.
    F16 = 3,
    /// [`cast`](super::cast): the upper half of an f32.
    Bf16 = 4,
    /// [`fp8`](super::fp8): 8-bit floats with one exponent per block.
    Fp8 = 5,
    /// [`ef`](super::ef): `loco` as classic error feedback.
    Ef = 6,
    /// [`intsgd`](super::intsgd): signed bytes with one scale.
    IntSgd = 13,
    /// [`loco_block`](super::loco_block): LoCo with one scale per block.
    LocoBlock = 7,
    /// [`block`](super::block): 8-bit codes with one scale per block.
    Block8 = 8,
    /// [`block`](super::block): 4-bit codes with one scale per block.
    Block4 = 9,
    /// [`ef21`](super::ef21): 4-bit codes of what changed, tracked on both ends.
    Ef21 = 10,
    /// [`sign`](super::sign): 1 bit and a scale per block, with 8-bit error feedback.
    Sign = 11,
}

impl CodecId {
    /// Every codec of this build, in the order of the wire byte.
    pub const ALL: [Self; 13] = [
        Self::F32,
        Self::Loco,
        Self::F16,
        Self::Bf16,
        Self::Fp8,
        Self::Ef,
        Self::LocoBlock,
        Self::Block8,
        Self::Block4,
        Self::Ef21,
        Self::Sign,
        Self::TopK,
        Self::IntSgd,
    ];

    /// The name in commands and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Loco => "loco",
            Self::TopK => "topk",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Fp8 => "fp8",
            Self::Ef => "ef",
            Self::IntSgd => "intsgd",
            Self::LocoBlock => "loco-block",
            Self::Block8 => "block8",
            Self::Block4 => "block4",
            Self::Ef21 => "ef21",
            Self::Sign => "sign",
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

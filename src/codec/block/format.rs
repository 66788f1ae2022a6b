//! How packets with one scale per block are laid out.

use crate::codec::scale::{self, Divisor};
use crate::codec::{CodecId, ConfigError, Unit};

/// Blocks of a unit: their scale bytes fill one word.
pub const BLOCKS: usize = 4;

/// Bits of a code.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bits {
    /// Codes -2..=1.
    Two = 2,
    /// Codes -8..=7.
    Four = 4,
    /// Codes -128..=127.
    Eight = 8,
}

impl Bits {
    /// The number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self as u32
    }

    /// Codes in a word.
    #[must_use]
    pub const fn per_word(self) -> usize {
        32 / self as usize
    }

    /// The magnitude of the least code; the largest code is one less.
    #[must_use]
    pub const fn largest_code(self) -> u32 {
        1 << (self.get() - 1)
    }

    /// What the largest magnitude of a block is divided by to get its scale.
    #[must_use]
    pub const fn divisor(self) -> Divisor {
        match self {
            Self::Two => Divisor::BITS_2,
            Self::Four => Divisor::BITS_4,
            Self::Eight => Divisor::BITS_8,
        }
    }
}

impl TryFrom<i64> for Bits {
    type Error = ();

    fn try_from(bits: i64) -> Result<Self, ()> {
        [Self::Two, Self::Four, Self::Eight].into_iter().find(|one| i64::from(one.get()) == bits).ok_or(())
    }
}

/// How a packet with one scale per block is laid out, and what its scales are relative to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// Bits of a code.
    pub bits: Bits,
    /// Elements that share a scale: 32..=1024, a multiple of 8. Default 64.
    pub block: u16,
    /// Scales are `(4 + m) * 2^(e + base_log2)` with `e` in 0..64 and `m` in 0..4. Range -80..=55, default -50, which
    /// takes all of f16.
    pub base_log2: i8,
}

impl Format {
    /// Checks the ranges in the name of `codec`.
    ///
    /// # Errors
    ///
    /// The first field that is out of its range.
    pub fn validate(&self, codec: CodecId) -> Result<(), ConfigError> {
        let (least, most) = (i64::from(*scale::BASE_LOG2.start()), i64::from(*scale::BASE_LOG2.end()));
        ConfigError::check_range(codec, "block", self.block, 32..=1024)?;
        if !self.block.is_multiple_of(8) {
            return Err(ConfigError::Multiple { codec, name: "block", value: self.block.into(), of: 8 });
        }
        ConfigError::check_range(codec, "base_log2", self.base_log2, least..=most)
    }

    /// Four blocks, with `state_words` words of state.
    #[must_use]
    pub const fn unit(&self, state_words: usize) -> Unit {
        let elements = BLOCKS * at_least_1(self.block);
        Unit { elements, words: 1 + elements / self.bits.per_word(), state_words }
    }

    /// Words of a packet of `elements` elements.
    #[must_use]
    pub const fn packet_words(&self, elements: usize) -> usize {
        let unit = self.unit(0);
        let rest = elements % unit.elements;
        let tail = if rest == 0 { 0 } else { 1 + rest.div_ceil(self.bits.per_word()) };
        elements / unit.elements * unit.words + tail
    }
}

/// The elements of a block, so that nothing divides by 0 before a configuration is checked.
pub(in crate::codec) const fn at_least_1(block: u16) -> usize {
    if block == 0 { 1 } else { block as usize }
}

//! Whether a codec's state is one that its encoder leaves: asked of words that come from outside, such as a checkpoint.
//!
//! The functions that encode take their state as it is: CPU and kernel agree on every state that passes here, and on no
//! other.

use std::ops::{Range, RangeInclusive};

use super::{ConfigError, Unit};

/// State words that no encoder leaves, and with which CPU and device could part, or a run go astray.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// Another number of words than the elements need.
    #[error("{what} of {words} words for {elements} elements, which need {expected}")]
    Length {
        /// `state`, or `mean state` of the owner of a shard.
        what: &'static str,
        /// How many were given.
        words: usize,
        /// How many there must be.
        expected: usize,
        /// Elements of the gradient, or of the shard.
        elements: usize,
    },
    /// Something behind the last element, where an encoder leaves zeros.
    #[error(
        "word {word} of the state has {found:#010x} behind the last of {elements} elements, must be 0 there"
    )]
    Behind {
        /// Which word.
        word: usize,
        /// Its bits behind the last element; those before are 0 here.
        found: u32,
        /// Elements of the gradient.
        elements: usize,
    },
    /// NaN or infinity in a state of floats.
    #[error("word {word} of the {what} is {found}, must be finite")]
    NotFinite {
        /// `state`, or `mean state` of the owner of a shard.
        what: &'static str,
        /// Which word.
        word: usize,
        /// What it is as an f32.
        found: f32,
    },
    /// A part of a word outside its range.
    #[error("word {word} of the state has a {what} of {found}, must be {least} to {most}")]
    Range {
        /// Which word.
        word: usize,
        /// What stands there.
        what: &'static str,
        /// Its value.
        found: i32,
        /// The least that an encoder leaves.
        least: i32,
        /// The most.
        most: i32,
    },
    /// The codec's parameters are out of range.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

impl StateError {
    /// Of the length of a state named `what`.
    pub(super) fn check_length(
        what: &'static str,
        words: usize,
        expected: usize,
        elements: usize,
    ) -> Result<(), Self> {
        if words == expected { Ok(()) } else { Err(Self::Length { what, words, expected, elements }) }
    }

    /// Whether each of `words`, part of a state named `what`, is a finite f32.
    pub(super) fn check_finite(what: &'static str, words: &[u32]) -> Result<(), Self> {
        let mut values = words.iter().map(|word| f32::from_bits(*word)).enumerate();
        match values.find(|(_, value)| !value.is_finite()) {
            Some((word, found)) => Err(Self::NotFinite { what, word, found }),
            None => Ok(()),
        }
    }
}

/// A state of whole units, the last of which may have fewer elements.
#[derive(Clone, Copy)]
pub(super) struct Units<'a> {
    words: &'a [u32],
    unit: Unit,
    elements: usize,
}

impl<'a> Units<'a> {
    /// `words` has as many as so many elements in units of this form need.
    pub(super) fn new(unit: Unit, elements: usize, words: &'a [u32]) -> Self {
        Self { words, unit, elements }
    }

    /// Whether the bytes `behind` of the unit that the last element is in are 0. They follow from how many elements are in
    /// it; a gradient that fills its last unit has nothing behind.
    pub(super) fn check_behind(&self, behind: impl FnOnce(usize) -> Range<usize>) -> Result<(), StateError> {
        let count = self.elements % self.unit.elements;
        if count == 0 {
            return Ok(());
        }
        let (first, bytes) = (self.words.len() - self.unit.state_words, behind(count));
        for word in bytes.start / 4..bytes.end.div_ceil(4) {
            let all = self.words[first + word].to_le_bytes();
            let found = std::array::from_fn(|k| if bytes.contains(&(4 * word + k)) { all[k] } else { 0 });
            if found != [0; 4] {
                let (word, found) = (first + word, u32::from_le_bytes(found));
                return Err(StateError::Behind { word, found, elements: self.elements });
            }
        }
        Ok(())
    }

    /// Whether the bytes `places` of every unit, each of them a `what`, are in `range` as `read` takes them.
    pub(super) fn check_bytes(
        &self,
        what: &'static str,
        places: Range<usize>,
        range: RangeInclusive<i32>,
        read: fn(u8) -> i32,
    ) -> Result<(), StateError> {
        let words = self.unit.state_words;
        for (number, unit) in self.words.chunks_exact(words).enumerate() {
            let bytes = unit.iter().flat_map(|word| word.to_le_bytes()).enumerate();
            for (place, byte) in bytes.skip(places.start).take(places.len()) {
                let found = read(byte);
                if !range.contains(&found) {
                    let (least, most) = (*range.start(), *range.end());
                    return Err(StateError::Range {
                        word: number * words + place / 4,
                        what,
                        found,
                        least,
                        most,
                    });
                }
            }
        }
        Ok(())
    }
}

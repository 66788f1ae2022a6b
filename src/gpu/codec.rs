//! Any codec on the device: the one host side of all kernels.
//!
//! [`Encode`] keeps one rank's state on the device and turns gradients into packets; [`Average`] turns the packets of
//! all ranks for one shard into its mean. Both equal [`crate::codec::Codec`] in every bit. What differs between codecs
//! stands in `method.rs`.

use std::ops::Range;

use super::GpuError;
use super::error::check_length;
use crate::codec::{Codec, Unit};

mod average;
mod encode;

pub use average::Average;
pub(crate) use average::{THEN, Then};
pub use encode::Encode;

/// Elements cut into parts of whole units, one dispatch each. Units do not touch each other, so this changes no bit.
#[derive(Clone, Copy, Debug)]
struct Cut {
    unit: Unit,
    elements: usize,
    /// Units of every part but the last.
    part: usize,
}

/// One part.
#[derive(Clone, Debug)]
struct Span {
    elements: Range<usize>,
    units: Range<usize>,
}

impl Cut {
    /// Units of the longest part, at least 1 so that a buffer is never empty.
    fn longest(&self) -> usize {
        self.elements.div_ceil(self.unit.elements).min(self.part).max(1)
    }

    fn spans(self) -> impl Iterator<Item = Span> {
        let step = self.part * self.unit.elements;
        (0..self.elements).step_by(step).map(move |start| {
            let elements = start..self.elements.min(start + step);
            let units = start / self.unit.elements..elements.end.div_ceil(self.unit.elements);
            Span { elements, units }
        })
    }
}

impl Span {
    fn units(&self) -> u32 {
        u32::try_from(self.units.len()).unwrap_or(u32::MAX)
    }

    /// Its words in a packet of `words` words, whose last unit may have less than the others.
    fn words(&self, unit: Unit, words: usize) -> Range<usize> {
        self.units.start * unit.words..words.min(self.units.end * unit.words)
    }
}

/// Refuses a codec with another kernel or layout than the state was made for; its scale may be another.
pub(super) fn check_codec(expected: &Codec, given: &Codec) -> Result<(), GpuError> {
    given.validate()?;
    if expected.id() != given.id() {
        return Err(GpuError::Codec { expected: expected.id(), given: given.id() });
    }
    let (expected, given) = (expected.unit(), given.unit());
    check_length("a unit", "elements", expected.elements, given.elements)?;
    check_length("a unit", "words", expected.words, given.words)?;
    check_length("a unit", "words of state", expected.state_words, given.state_words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_tile_elements_units_and_words_and_only_the_last_is_shorter() {
        let unit = Unit { elements: 8, words: 3, state_words: 0 };
        for elements in [0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 100] {
            for part in [1, 2, 3, 100] {
                let cut = Cut { unit, elements, part };
                // The tail is a prefix of a unit.
                let all = elements / 8 * 3 + (elements % 8).min(2);
                let (mut next, mut next_unit, mut next_word) = (0, 0, 0);
                for span in cut.spans() {
                    assert_eq!((span.elements.start, span.units.start), (next, next_unit), "{cut:?}");
                    assert_eq!(span.words(unit, all).start, next_word, "{cut:?}");
                    assert!(span.units.len() <= cut.longest(), "{cut:?}");
                    (next, next_unit) = (span.elements.end, span.units.end);
                    next_word = span.words(unit, all).end;
                    assert!(next == elements || span.units.len() == part, "{cut:?}");
                }
                assert_eq!((next, next_unit, next_word), (elements, elements.div_ceil(8), all), "{cut:?}");
            }
        }
    }
}

//! Elias-Fano coding: a set of indices in about two bits more per index than their density needs, at a fixed size.
//!
//! # What
//!
//! `count` indices below `universe`, ascending. Each is cut in two: its low `low_bits = floor(log2(universe / count))`
//! bits are written as they are; what is above them grows slowly, and is written in unary.
//!
//! # Layout
//!
//! Two fields of `u32` words, filled from bit 0 of word 0 up, unused bits zero:
//!
//! ```text
//! low    count * low_bits bits                              index j in bits low_bits * j ..
//! high   count + ceil(universe / 2^low_bits) bits           a one at place (index_j >> low_bits) + j
//! ```
//!
//! # Exactness
//!
//! A set has one coding and a coding is one set; [`EliasFano::check`] tells words that are none.
//!
//! # Cost
//!
//! 64 of 4096: 384 and 128 bits, 8 bits per index, where a plain index has 12. Source: Elias, JACM 21 (1974); Fano, MIT
//! memorandum 61 (1971).

/// The sizes of one coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EliasFano {
    count: usize,
    universe: usize,
    low_bits: u32,
}

/// Words that no encoder writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} is {found}, must be {expected}")]
pub struct NotASet {
    /// What is wrong.
    pub what: &'static str,
    /// What stands there.
    pub found: u64,
    /// What may stand there: the next legal number.
    pub expected: u64,
}

impl EliasFano {
    /// For `count` indices below `universe`; `None` unless `1 <= count <= universe < 2^32`.
    #[must_use]
    pub const fn new(count: usize, universe: usize) -> Option<Self> {
        if count == 0 || count > universe || universe as u64 >= 1 << 32 {
            return None;
        }
        Some(Self { count, universe, low_bits: (universe / count).ilog2() })
    }

    /// How many indices.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.count
    }

    /// Bits of an index that are written as they are.
    #[must_use]
    pub const fn low_bits(&self) -> u32 {
        self.low_bits
    }

    /// Words of the low field, which comes first.
    #[must_use]
    pub const fn low_words(&self) -> usize {
        (self.count * self.low_bits as usize).div_ceil(32)
    }

    /// Words of the high field.
    #[must_use]
    pub const fn high_words(&self) -> usize {
        self.high_length().div_ceil(32)
    }

    /// Words of both.
    #[must_use]
    pub const fn words(&self) -> usize {
        self.low_words() + self.high_words()
    }

    /// Bits of the high field.
    const fn high_length(&self) -> usize {
        self.count + self.universe.div_ceil(1 << self.low_bits)
    }

    /// Writes `indices`, which are [`Self::count`] many, ascending and below the universe, into [`Self::words`] words.
    ///
    /// # Panics
    ///
    /// If `words` has another length, or an index is not below the universe.
    pub fn encode(&self, indices: impl IntoIterator<Item = u32>, words: &mut [u32]) {
        assert_eq!(words.len(), self.words(), "{} words for {self:?}", words.len());
        words.fill(0);
        let (low, high) = words.split_at_mut(self.low_words());
        let width = self.low_bits as usize;
        for (j, index) in indices.into_iter().enumerate() {
            if width > 0 {
                let (at, bits) = (j * width, u64::from(index & mask(self.low_bits)));
                #[allow(clippy::cast_possible_truncation, reason = "the half of the field in each word")]
                let halves = ((bits << (at % 32)) as u32, (bits << (at % 32) >> 32) as u32);
                low[at / 32] |= halves.0;
                if halves.1 != 0 {
                    low[at / 32 + 1] |= halves.1;
                }
            }
            let place = (index >> self.low_bits) as usize + j;
            high[place / 32] |= 1 << (place % 32);
        }
    }

    /// The indices of `words`, at most [`Self::count`]; ascending and below the universe if the words pass
    /// [`Self::check`].
    ///
    /// # Panics
    ///
    /// If `words` has another length than [`Self::words`].
    pub fn indices<'a>(&self, words: &'a [u32]) -> impl Iterator<Item = u32> + use<'a> {
        assert_eq!(words.len(), self.words(), "{} words for {self:?}", words.len());
        let (low, high) = words.split_at(self.low_words());
        let low_bits = self.low_bits;
        let ones = (0_u32..).zip(high).flat_map(|(word, bits)| {
            let mut rest = *bits;
            std::iter::from_fn(move || {
                let place = (rest != 0).then(|| rest.trailing_zeros())?;
                rest &= rest - 1;
                Some(32 * word + place)
            })
        });
        (0_u32..).zip(ones).take(self.count).map(move |(j, place)| {
            // A one has at least `j` places below it, where the ones before it stand.
            let above = (place - j).checked_shl(low_bits).unwrap_or(0);
            above | low_field(low, j as usize, low_bits)
        })
    }

    /// Whether `words` are a set.
    ///
    /// # Errors
    ///
    /// The first thing that no encoder writes.
    ///
    /// # Panics
    ///
    /// If `words` has another length than [`Self::words`].
    pub fn check(&self, words: &[u32]) -> Result<(), NotASet> {
        assert_eq!(words.len(), self.words(), "{} words for {self:?}", words.len());
        let (low, high) = words.split_at(self.low_words());
        check_unused("bits behind the low field", low, self.count * self.low_bits as usize)?;
        check_unused("bits behind the high field", high, self.high_length())?;
        let ones: u64 = high.iter().map(|word| u64::from(word.count_ones())).sum();
        if ones != self.count as u64 {
            return Err(NotASet { what: "number of indices", found: ones, expected: self.count as u64 });
        }
        let mut least = 0;
        for index in self.indices(words) {
            let found = u64::from(index);
            if found < least {
                return Err(NotASet { what: "an index after a larger one", found, expected: least });
            }
            least = found + 1;
        }
        let expected = self.universe as u64 - 1;
        if least > self.universe as u64 {
            return Err(NotASet { what: "the last index", found: least - 1, expected });
        }
        Ok(())
    }
}

/// Whether all bits of `words` from `used` on are zero.
pub(super) fn check_unused(what: &'static str, words: &[u32], used: usize) -> Result<(), NotASet> {
    let Some(last) = words.last() else { return Ok(()) };
    let unused = if used.is_multiple_of(32) { 0 } else { last >> (used % 32) };
    if unused == 0 { Ok(()) } else { Err(NotASet { what, found: unused.into(), expected: 0 }) }
}

const fn mask(bits: u32) -> u32 {
    if bits >= 32 { u32::MAX } else { (1 << bits) - 1 }
}

/// Field `j` of `width` bits.
fn low_field(words: &[u32], j: usize, width: u32) -> u32 {
    let at = j * width as usize;
    let word = |index: usize| u64::from(words.get(index).copied().unwrap_or(0));
    let both = word(at / 32) | word(at / 32 + 1) << 32;
    #[allow(clippy::cast_possible_truncation, reason = "masked to at most 32 bits")]
    let field = (both >> (at % 32)) as u32;
    field & mask(width)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn sixty_four_of_4096_take_512_bits() {
        let sizes = EliasFano::new(64, 4096).unwrap();
        assert_eq!((sizes.low_bits(), sizes.low_words(), sizes.high_words()), (6, 12, 4));
    }

    #[test]
    fn sizes_without_a_coding_are_refused() {
        for (count, universe) in [(0, 0), (0, 5), (6, 5), (1, 1 << 32)] {
            assert_eq!(EliasFano::new(count, universe), None, "{count} of {universe}");
        }
    }

    #[test]
    fn a_small_set_is_written_as_the_documentation_says() {
        // 3 of 16: low_bits = floor(log2(5)) = 2. Indices 1, 6, 15 = 0|01, 1|10, 3|11.
        let sizes = EliasFano::new(3, 16).unwrap();
        let mut words = [u32::MAX; 2];
        sizes.encode([1, 6, 15], &mut words);
        assert_eq!(words, [0b11_10_01, 0b10_0101]);
        assert_eq!(sizes.indices(&words).collect::<Vec<_>>(), [1, 6, 15]);
        assert_eq!(sizes.check(&words), Ok(()));
    }

    #[test]
    fn every_subset_of_small_universes_comes_back_and_every_other_word_is_told() {
        for universe in 1..=8_u32 {
            for count in 1..=universe {
                let sizes = EliasFano::new(count as usize, universe as usize).unwrap();
                assert!(sizes.low_words() <= 1 && sizes.high_words() == 1, "{sizes:?}");
                let mut seen = std::collections::BTreeSet::new();
                for set in (0..1_u32 << universe).filter(|set| set.count_ones() == count) {
                    let indices: Vec<u32> = (0..universe).filter(|index| set >> index & 1 == 1).collect();
                    let mut words = vec![0; sizes.words()];
                    sizes.encode(indices.iter().copied(), &mut words);
                    assert_eq!(sizes.indices(&words).collect::<Vec<_>>(), indices, "{sizes:?}");
                    assert_eq!(sizes.check(&words), Ok(()), "{sizes:?} {indices:?}");
                    seen.insert(words);
                }
                // All words with one bit more than the fields have, in either of them.
                let low_length = if sizes.low_bits == 0 { 0 } else { count * sizes.low_bits + 1 };
                for low in 0..1_u32 << low_length {
                    for high in 0..1_u32 << (sizes.high_length() + 1) {
                        let words = if low_length == 0 { vec![high] } else { vec![low, high] };
                        let known = seen.contains(&words);
                        assert_eq!(sizes.check(&words).is_ok(), known, "{sizes:?} {words:?}");
                    }
                }
            }
        }
    }
}

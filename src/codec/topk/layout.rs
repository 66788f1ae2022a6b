//! Where the fields of one chunk's words are, and whether they hold what an encoder writes.

use std::ops::Range;

use super::Config;
use super::level::LARGEST;
use crate::codec::AverageError;
use crate::codec::elias_fano::{EliasFano, NotASet, check_unused};

/// The sizes of one chunk, which may be the shorter last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// How many elements are sent: k in proportion to the elements, rounded down, at least 1.
    pub(super) count: usize,
    fano: EliasFano,
}

impl Layout {
    /// For a chunk of `elements`, 1..=`config.chunk`; of a configuration that is not valid, some layout.
    pub(super) const fn new(config: &Config, elements: usize) -> Self {
        let elements = if elements == 0 { 1 } else { elements };
        let count = config.k as usize * elements / config.chunk();
        let count = if count == 0 { 1 } else { count };
        let count = if count > elements { elements } else { count };
        match EliasFano::new(count, elements) {
            Some(fano) => Self { count, fano },
            None => panic!("at least 1 and at most all elements are sent"),
        }
    }

    /// Of the [`Self::count`] sent, how many are of the larger half: the odd one is.
    pub(super) const fn high_count(&self) -> usize {
        self.count.div_ceil(2)
    }

    /// Words of the chunk.
    pub(super) const fn words(&self) -> usize {
        1 + self.value_words() + self.fano.words()
    }

    const fn value_words(&self) -> usize {
        self.count.div_ceil(16)
    }

    /// Words of the values, and words of the indices.
    fn split<'a>(&self, words: &'a [u32]) -> (&'a [u32], &'a [u32]) {
        words[1..].split_at(self.value_words())
    }

    /// Writes the chunk: `levels` is low then high; `codes` are (index, code) by ascending index, a code's bit 0 the
    /// sign, bit 1 the level.
    pub(super) fn write(
        &self,
        levels: [u16; 2],
        codes: impl Iterator<Item = (u32, u32)> + Clone,
        words: &mut [u32],
    ) {
        let (head, indices) = words.split_at_mut(1 + self.value_words());
        head.fill(0);
        head[0] = u32::from(levels[0]) | u32::from(levels[1]) << 16;
        for (j, (_, code)) in codes.clone().enumerate() {
            head[1 + j / 16] |= code << (2 * (j % 16));
        }
        self.fano.encode(codes.map(|(index, _)| index), indices);
    }

    /// The codes of a chunk as (index, code); any words give at most [`Self::count`], and those that pass
    /// [`Self::check`] give indices that ascend below the number of elements.
    pub(super) fn codes<'a>(&self, words: &'a [u32]) -> impl Iterator<Item = (usize, u32)> + use<'a> {
        let (values, indices) = self.split(words);
        let codes = (0..).map(|j: usize| values[j / 16] >> (2 * (j % 16)) & 3);
        self.fano.indices(indices).zip(codes).map(|(index, code)| (index as usize, code))
    }

    /// Whether an encoder writes such words.
    fn check(&self, words: &[u32]) -> Result<(), NotASet> {
        for (what, level) in [("low level", words[0] & 0xFFFF), ("high level", words[0] >> 16)] {
            if level > LARGEST.into() {
                return Err(NotASet { what, found: level.into(), expected: LARGEST.into() });
            }
        }
        let (values, indices) = self.split(words);
        check_unused("bits behind the values", values, 2 * self.count)?;
        self.fano.check(indices)
    }
}

/// The two f16 levels of a chunk, low and high.
pub(super) fn levels(words: &[u32]) -> [u16; 2] {
    let [a, b, c, d] = words[0].to_le_bytes();
    [u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d])]
}

/// The chunks of a packet of `elements`: which elements, which words, and their layout.
pub(super) fn chunks(
    config: &Config,
    elements: usize,
) -> impl Iterator<Item = (Range<usize>, Range<usize>, Layout)> + use<> {
    let chunk = config.chunk();
    let (whole, config) = (Layout::new(config, chunk), *config);
    (0..elements.div_ceil(chunk)).map(move |number| {
        let range = number * chunk..elements.min((number + 1) * chunk);
        let layout = if range.len() == chunk { whole } else { Layout::new(&config, range.len()) };
        let start = number * whole.words();
        (range, start..start + layout.words(), layout)
    })
}

/// Whether packet `index`, which has the length for `elements`, holds what an encoder writes.
pub(super) fn check(
    config: &Config,
    index: usize,
    packet: &[u32],
    elements: usize,
) -> Result<(), AverageError> {
    for (unit, (_, words, layout)) in chunks(config, elements).enumerate() {
        layout.check(&packet[words]).map_err(|NotASet { what, found, expected }| {
            AverageError::Malformed { index, unit, what, found, expected }
        })?;
    }
    Ok(())
}

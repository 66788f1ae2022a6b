//! Where the tensors lie in the flat vector of all parameters.

use std::ops::Range;

/// The tensors of a flat vector, one behind the other. A shard may begin and end inside a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensors {
    /// The element behind the last one of each.
    ends: Vec<usize>,
}

impl Tensors {
    /// Tensors of `sizes` elements each, in order. A tensor without elements is left out.
    #[must_use]
    pub fn new(sizes: &[usize]) -> Self {
        let ends = sizes.iter().filter(|size| **size > 0).scan(0_usize, |end, size| {
            *end = end.saturating_add(*size);
            Some(*end)
        });
        Self { ends: ends.collect() }
    }

    /// One tensor of all `elements`.
    #[must_use]
    pub fn whole(elements: usize) -> Self {
        Self::new(&[elements])
    }

    /// How many tensors.
    #[must_use]
    pub fn count(&self) -> usize {
        self.ends.len()
    }

    /// Elements of all of them.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    /// A number that differs, but for one chance in 2^32, between different tensors: FNV-1a over their ends.
    #[must_use]
    pub fn fingerprint(&self) -> u32 {
        let bytes = self.ends.iter().flat_map(|end| (*end as u64).to_le_bytes());
        bytes.fold(0x811C_9DC5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
    }

    /// The tensors with an element in `shard`.
    #[must_use]
    pub fn within(&self, shard: &Range<usize>) -> Range<usize> {
        if shard.is_empty() {
            return 0..0;
        }
        let first = self.ends.partition_point(|end| *end <= shard.start);
        let last = self.ends.partition_point(|end| *end < shard.end);
        first..(last + 1).min(self.ends.len())
    }

    /// The elements of tensor `index` in `shard`, counted from the start of the shard.
    #[must_use]
    pub fn part(&self, index: usize, shard: &Range<usize>) -> Range<usize> {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        let start = start.max(shard.start);
        let end = self.ends[index].min(shard.end).max(start);
        start - shard.start..end - shard.start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_of_a_shard_is_in_the_part_of_one_tensor() {
        let tensors = Tensors::new(&[3, 0, 1, 8, 5]);
        assert_eq!((tensors.count(), tensors.elements()), (4, 17));
        let owner = |element: usize| [3, 4, 12, 17].iter().position(|end| element < *end);
        for start in 0..=17 {
            for end in start..=17 {
                let shard = start..end;
                let mut next = 0;
                for index in tensors.within(&shard) {
                    let part = tensors.part(index, &shard);
                    assert_eq!(part.start, next, "tensor {index} in {shard:?}");
                    assert!(!part.is_empty(), "tensor {index} in {shard:?}");
                    assert!(part.clone().all(|element| owner(start + element) == Some(index)), "{shard:?}");
                    next = part.end;
                }
                assert_eq!(next, shard.len(), "{shard:?}");
            }
        }
    }

    #[test]
    fn the_fingerprint_tells_borders_apart() {
        let prints: Vec<u32> =
            [&[3, 4][..], &[4, 3], &[7], &[3, 5]].map(|sizes| Tensors::new(sizes).fingerprint()).into();
        for (index, print) in prints.iter().enumerate() {
            assert!(!prints[..index].contains(print), "{prints:?}");
        }
    }
}

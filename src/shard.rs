//! Which elements of a flat gradient each rank owns.
//!
//! A shard is a run of whole groups, the codec's [`Unit`](crate::codec::Unit), so that its packet is a run of the words of
//! the whole gradient. Ranks differ by at most one group; no length has to be divisible by anything, and the last
//! elements are padded inside a packet, never in front of the user.

use std::ops::Range;

/// The split of `elements` over `world_size` owners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardLayout {
    elements: usize,
    world_size: usize,
    group: usize,
}

impl ShardLayout {
    /// Splits `elements` (any number, 0 included) over `world_size` ranks in groups of `group` elements.
    ///
    /// # Panics
    ///
    /// If `world_size` is 0 (a world has at least the caller in it), or `group` is.
    #[must_use]
    pub fn new(elements: usize, world_size: usize, group: usize) -> Self {
        assert!(world_size > 0, "a world has at least one rank");
        assert!(group > 0, "a group has at least one element");
        Self { elements, world_size, group }
    }

    /// Elements of the whole gradient, without padding.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.elements
    }

    /// Number of owners.
    #[must_use]
    pub fn world_size(&self) -> usize {
        self.world_size
    }

    /// The elements that `rank` owns: contiguous, in rank order, empty when there are fewer groups than ranks.
    ///
    /// # Panics
    ///
    /// If `rank` is not below the world size.
    #[must_use]
    pub fn range(&self, rank: usize) -> Range<usize> {
        assert!(rank < self.world_size, "rank {rank} in a world of {}", self.world_size);
        let groups = self.elements.div_ceil(self.group);
        let (each, longer) = (groups / self.world_size, groups % self.world_size);
        let first = rank * each + rank.min(longer);
        let last = first + each + usize::from(rank < longer);
        (first * self.group).min(self.elements)..(last * self.group).min(self.elements)
    }

    /// The ranges of all ranks in order.
    pub fn ranges(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        (0..self.world_size).map(|rank| self.range(rank))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_tile_the_gradient_on_group_boundaries_and_differ_by_one_group() {
        for world_size in [1, 2, 3, 5, 7, 16] {
            for elements in [0, 1, 7, 8, 9, 15, 16, 17, 63, 64, 65, 257, 1000, 50_826] {
                for group in [8, 256, 4096] {
                    let layout = ShardLayout::new(elements, world_size, group);
                    let case = format!("{elements} over {world_size} in groups of {group}");
                    let mut next = 0;
                    let mut groups = Vec::new();
                    for range in layout.ranges() {
                        assert_eq!(range.start, next, "{case}");
                        assert!(range.is_empty() || range.start % group == 0, "{case}");
                        next = range.end;
                        groups.push(range.len().div_ceil(group));
                    }
                    assert_eq!(next, elements, "{case}");
                    let (least, most) = (groups.iter().min(), groups.iter().max());
                    assert!(most.zip(least).is_some_and(|(m, l)| m - l <= 1), "{case}: {groups:?}");
                }
            }
        }
    }
}

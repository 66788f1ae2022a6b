//! Which elements of a flat gradient each rank owns.
//!
//! A shard is a run of whole 8-element groups, so that its 4-bit codes start and end on a packet word.
//! Ranks differ by at most one group; no length has to be divisible by anything, and the last elements
//! are padded inside a packet, never in front of the user.

use std::ops::Range;

/// Elements in one group: eight 4-bit codes fill one packet word.
pub const GROUP: usize = 8;

/// The split of `elements` over `world_size` owners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardLayout {
    elements: usize,
    world_size: usize,
}

impl ShardLayout {
    /// Splits `elements` (any number, 0 included) over `world_size` ranks.
    ///
    /// # Panics
    ///
    /// If `world_size` is 0: a world has at least the caller in it.
    #[must_use]
    pub fn new(elements: usize, world_size: usize) -> Self {
        assert!(world_size > 0, "a world has at least one rank");
        Self { elements, world_size }
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
        let groups = self.elements.div_ceil(GROUP);
        let (each, longer) = (groups / self.world_size, groups % self.world_size);
        let first = rank * each + rank.min(longer);
        let last = first + each + usize::from(rank < longer);
        (first * GROUP).min(self.elements)..(last * GROUP).min(self.elements)
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
                let layout = ShardLayout::new(elements, world_size);
                let mut next = 0;
                let mut groups = Vec::new();
                for range in layout.ranges() {
                    assert_eq!(range.start, next, "{elements} over {world_size}");
                    assert!(range.is_empty() || range.start % GROUP == 0, "{elements} over {world_size}");
                    next = range.end;
                    groups.push(range.len().div_ceil(GROUP));
                }
                assert_eq!(next, elements, "{elements} over {world_size}");
                let (least, most) = (groups.iter().min(), groups.iter().max());
                assert!(
                    most.zip(least).is_some_and(|(m, l)| m - l <= 1),
                    "{elements} over {world_size}: {groups:?}"
                );
            }
        }
    }
}

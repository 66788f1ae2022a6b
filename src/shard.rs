//! Which elements of a flat gradient each rank owns.
//!
//! A shard is a run of whole groups, the codec's [`Unit`](crate::codec::Unit), so that its packet is a run of the words of
//! the whole gradient. Ranks own equal parts to within one group, or parts by weight; no length has to be divisible by
//! anything, and the last elements are padded inside a packet, never in front of the user.

use std::ops::Range;
use std::sync::Arc;

/// The split of `elements` over `world_size` owners; cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardLayout {
    elements: usize,
    /// In groups: where each rank's shard ends.
    ends: Arc<[usize]>,
    group: usize,
}

impl ShardLayout {
    /// Splits `elements` (any number, 0 included) over `world_size` ranks in groups of `group` elements, as evenly as whole
    /// groups allow; lower ranks have the longer shards.
    ///
    /// # Panics
    ///
    /// If `world_size` is 0 (a world has at least the caller in it), or `group` is.
    #[must_use]
    pub fn new(elements: usize, world_size: usize, group: usize) -> Self {
        Self::weighted(elements, &vec![1; world_size], group)
    }

    /// Splits `elements` over one rank per entry of `weights`, each of which owns groups in proportion to its weight: the
    /// whole ones of its quota, and of those that are left one each for the largest remainders, ties to lower ranks. A
    /// rank of weight 0 owns nothing. Integers only, so that every rank has the same layout.
    ///
    /// # Panics
    ///
    /// If no weight is above 0 (which includes that there are none), or `group` is 0.
    #[must_use]
    pub fn weighted(elements: usize, weights: &[u32], group: usize) -> Self {
        assert!(group > 0, "a group has at least one element");
        let total: u128 = weights.iter().map(|weight| u128::from(*weight)).sum();
        assert!(total > 0, "a world has at least one rank that owns something");
        let groups = elements.div_ceil(group);
        let quota = |weight: &u32| {
            let share = groups as u128 * u128::from(*weight);
            // At most `groups`, which is a usize.
            (usize::try_from(share / total).unwrap_or(groups), share % total)
        };
        let (mut owned, remainders): (Vec<usize>, Vec<u128>) = weights.iter().map(quota).unzip();
        let left = groups - owned.iter().sum::<usize>();
        let mut order: Vec<usize> = (0..owned.len()).collect();
        // Stable: ties stay in the order of ranks. A weight of 0 has no remainder, and fewer groups are left than there are
        // remainders above 0.
        order.sort_by_key(|rank| std::cmp::Reverse(remainders[*rank]));
        for rank in order.into_iter().take(left) {
            owned[rank] += 1;
        }
        let ends = owned.iter().scan(0, |end, groups| {
            *end += groups;
            Some(*end)
        });
        Self { elements, ends: ends.collect(), group }
    }

    /// Elements of the whole gradient, without padding.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.elements
    }

    /// Number of owners.
    #[must_use]
    pub fn world_size(&self) -> usize {
        self.ends.len()
    }

    /// The elements that `rank` owns: contiguous, in rank order, empty where it owns no group.
    ///
    /// # Panics
    ///
    /// If `rank` is not below the world size.
    #[must_use]
    pub fn range(&self, rank: usize) -> Range<usize> {
        assert!(rank < self.ends.len(), "rank {rank} in a world of {}", self.ends.len());
        let first = if rank == 0 { 0 } else { self.ends[rank - 1] };
        let at = |group: usize| group.saturating_mul(self.group).min(self.elements);
        at(first)..at(self.ends[rank])
    }

    /// The ranges of all ranks in order.
    pub fn ranges(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        (0..self.ends.len()).map(|rank| self.range(rank))
    }
}

/// The elements of both; if there are none, an empty range at the start of the first.
pub(crate) fn common(one: &Range<usize>, other: &Range<usize>) -> Range<usize> {
    let (start, end) = (one.start.max(other.start), one.end.min(other.end));
    if start < end { start..end } else { one.start..one.start }
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
                    assert!(groups.is_sorted_by(|a, b| a >= b), "{case}: lower ranks have the longer ones");
                    let (least, most) = (groups.iter().min(), groups.iter().max());
                    assert!(most.zip(least).is_some_and(|(m, l)| m - l <= 1), "{case}: {groups:?}");
                }
            }
        }
    }

    #[test]
    fn shards_are_in_proportion_to_weights_to_within_a_group() {
        let cases: [&[u32]; 6] =
            [&[1], &[3, 1], &[0, 5], &[1, 0, 2, 0], &[7, 7, 1, 1], &[u32::MAX, 1, u32::MAX, 0, 12345]];
        for weights in cases {
            let total: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
            for elements in [0, 1, 8, 63, 64, 1000, 50_826] {
                let layout = ShardLayout::weighted(elements, weights, 8);
                let groups = elements.div_ceil(8);
                let mut next = 0;
                for (range, weight) in layout.ranges().zip(weights) {
                    let case = format!("{range:?} of {elements} for {weight} of {weights:?}");
                    assert_eq!(range.start, next, "{case}");
                    next = range.end;
                    let quota = groups as f64 * f64::from(*weight) / total as f64;
                    assert!((range.len().div_ceil(8) as f64 - quota).abs() < 1.0, "{case}: {quota}");
                    assert!(*weight > 0 || range.is_empty(), "{case}");
                }
                assert_eq!(next, elements, "{weights:?}");
            }
        }
    }

    #[test]
    fn layouts_are_what_they_were_before_there_were_weights() {
        let ends = |elements, world_size| -> Vec<usize> {
            ShardLayout::new(elements, world_size, 8).ranges().map(|range| range.end).collect()
        };
        assert_eq!(ends(64, 5), [16, 32, 48, 56, 64]);
        assert_eq!(ends(50, 3), [24, 40, 50]);
        assert_eq!(ends(9, 4), [8, 9, 9, 9]);
    }
}

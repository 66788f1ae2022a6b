//! Who takes part: ranks, the world size, and the epoch of one membership.

use std::fmt;

/// The largest world: 4,096 ranks. A full mesh keeps one connection per pair (about 50 KiB per end), so a
/// larger number in a peers file or a hello is a mistake or an attack, not a fleet.
pub const MAX_WORLD_SIZE: u32 = 4096;

/// The index of one participant, 0 to world size - 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank(pub u32);

impl Rank {
    /// The rank as an index into per-rank slices.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.0)
    }
}

/// One membership, seen from one of its ranks: `rank` of `size`, in `epoch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct World {
    rank: Rank,
    size: u32,
    epoch: u32,
}

/// A world that cannot exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WorldError {
    /// The world size is 0 or above [`MAX_WORLD_SIZE`].
    #[error("world size {size} is not in 1..={MAX_WORLD_SIZE}")]
    Size {
        /// What was asked for.
        size: u32,
    },
    /// The rank does not exist in a world of this size.
    #[error("rank {rank} is not below the world size {size}")]
    Rank {
        /// What was asked for.
        rank: u32,
        /// Ranks in the world.
        size: u32,
    },
}

impl World {
    /// `rank` of `size` in `epoch`. The first membership of a run is epoch 0.
    ///
    /// # Errors
    ///
    /// If `size` is not in 1..=[`MAX_WORLD_SIZE`], or `rank` is not below `size`.
    pub fn new(rank: u32, size: u32, epoch: u32) -> Result<Self, WorldError> {
        if size == 0 || size > MAX_WORLD_SIZE {
            return Err(WorldError::Size { size });
        }
        if rank >= size {
            return Err(WorldError::Rank { rank, size });
        }
        Ok(Self { rank: Rank(rank), size, epoch })
    }

    /// The rank that this world is seen from.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Number of ranks, at least 1.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Which membership of the run this is.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// All ranks in order, the own one included.
    pub fn ranks(&self) -> impl Iterator<Item = Rank> + use<> {
        (0..self.size).map(Rank)
    }

    /// All ranks but the own one, in order.
    pub fn peers(&self) -> impl Iterator<Item = Rank> + use<> {
        let own = self.rank;
        self.ranks().filter(move |rank| *rank != own)
    }

    /// Whether `rank` exists in this world.
    #[must_use]
    pub fn contains(&self, rank: Rank) -> bool {
        rank.0 < self.size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_world_without_ranks_or_with_a_rank_outside_is_refused() {
        assert_eq!(World::new(0, 0, 0), Err(WorldError::Size { size: 0 }));
        assert_eq!(World::new(0, MAX_WORLD_SIZE + 1, 0), Err(WorldError::Size { size: MAX_WORLD_SIZE + 1 }));
        assert_eq!(World::new(3, 3, 0), Err(WorldError::Rank { rank: 3, size: 3 }));
        assert!(World::new(2, 3, 0).is_ok());
    }

    #[test]
    fn peers_are_all_ranks_but_the_own_one() -> Result<(), WorldError> {
        let world = World::new(1, 3, 0)?;
        assert_eq!(world.peers().collect::<Vec<_>>(), [Rank(0), Rank(2)]);
        Ok(())
    }
}

//! Which certificate each rank of a world has.

use crate::world::{MAX_WORLD_SIZE, Rank, World};

/// The members of a world, by the ranks in their certificates.
///
/// A run's first world has every certificate at its own rank. When ranks are lost, those that are left form the next
/// world under the certificates that they have: its ranks count up from 0 again, in the order of the certificates. So with
/// rank 1 of 4 lost, the certificates of ranks 0, 2 and 3 are ranks 0, 1 and 2 of the next world:
///
/// ```
/// use gradwire_transport::{Rank, quic::Members};
///
/// let members = Members::all(4).without(&[Rank(1)]);
/// let world = members.world(Rank(3), 1).expect("certificate 3 is a member");
/// assert_eq!((world.rank(), world.size(), world.epoch()), (Rank(2), 3, 1));
/// assert_eq!(members.certificate(Rank(2)), Some(Rank(3)));
/// ```
///
/// **All ranks must have the same members**: those who don't refuse each other. Whose certificate is not among them is
/// kept out, so leaving a rank out revokes its certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Members(Vec<Rank>);

impl Members {
    /// The certificates of ranks 0 to `size` - 1, each at its own rank; of the first 4,096 if there are more.
    #[must_use]
    pub fn all(size: u32) -> Self {
        Self((0..size.min(MAX_WORLD_SIZE)).map(Rank).collect())
    }

    /// The certificates of these ranks, in any order.
    #[must_use]
    pub fn of(certificates: impl IntoIterator<Item = Rank>) -> Self {
        let mut members: Vec<_> = certificates.into_iter().collect();
        members.sort_unstable();
        members.dedup();
        Self(members)
    }

    /// These members but those that had the ranks `lost` in their world, as errors name them.
    #[must_use]
    pub fn without(&self, lost: &[Rank]) -> Self {
        let left = (0..).map(Rank).zip(&self.0).filter(|(rank, _)| !lost.contains(rank));
        Self(left.map(|(_, certificate)| *certificate).collect())
    }

    /// The world of these members in `epoch`, seen from the one that has `certificate`'s; `None` if there is none, or more than
    /// 4,096 of them.
    #[must_use]
    pub fn world(&self, certificate: Rank, epoch: u32) -> Option<World> {
        let size = u32::try_from(self.0.len()).ok()?;
        World::new(self.rank(certificate)?.0, size, epoch).ok()
    }

    /// The rank in the certificate of `rank` of the world.
    #[must_use]
    pub fn certificate(&self, rank: Rank) -> Option<Rank> {
        self.0.get(rank.index()).copied()
    }

    /// The rank in the world of who has `certificate`'s.
    #[must_use]
    pub fn rank(&self, certificate: Rank) -> Option<Rank> {
        let index = self.0.binary_search(&certificate).ok()?;
        u32::try_from(index).ok().map(Rank)
    }

    /// The ranks in their certificates, ascending: in the order of the ranks of the world.
    pub fn certificates(&self) -> impl Iterator<Item = Rank> {
        self.0.iter().copied()
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_a_world_count_up_in_the_order_of_the_certificates() {
        let members = Members::of([Rank(9), Rank(2), Rank(5), Rank(2)]);
        assert_eq!(members.count(), 3);
        for (rank, certificate) in [(0, 2), (1, 5), (2, 9)].map(|(rank, it)| (Rank(rank), Rank(it))) {
            assert_eq!(members.certificate(rank), Some(certificate));
            assert_eq!(members.rank(certificate), Some(rank));
        }
        assert_eq!((members.certificate(Rank(3)), members.rank(Rank(3))), (None, None));
        assert_eq!(members.world(Rank(3), 1), None, "not a member");
    }

    #[test]
    fn who_is_lost_is_named_by_the_rank_of_the_world_it_was_lost_in() {
        let members = Members::all(5).without(&[Rank(1)]).without(&[Rank(1), Rank(7)]);
        assert_eq!(members, Members::of([Rank(0), Rank(3), Rank(4)]));
        assert_eq!(members.without(&[Rank(0), Rank(1), Rank(2)]).world(Rank(0), 9), None, "nobody is left");
    }
}

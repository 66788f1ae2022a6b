//! Who is in a site with whom.

use std::collections::HashSet;

use crate::digest::fnv1a;

/// At least two sites, one of them of at least two ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::sync) struct Sites {
    /// The ranks of each site, ascending; sites in the order of their first ranks.
    members: Vec<Vec<usize>>,
    /// The site of each rank.
    site_of: Vec<usize>,
}

/// Whether the named sites are several, of one rank each.
pub(in crate::sync) fn all_apart(named: &[u32]) -> bool {
    let distinct: HashSet<u32> = named.iter().copied().collect();
    named.len() > 1 && distinct.len() == named.len()
}

impl Sites {
    /// Of ranks of which equal numbers stand for one site. `None` where there is no hierarchy: no rank is named, all are in
    /// one site, or each in one of its own.
    pub(in crate::sync) fn new(named: &[u32]) -> Option<Self> {
        let mut names: Vec<u32> = Vec::new();
        let mut members: Vec<Vec<usize>> = Vec::new();
        let mut site_of = Vec::with_capacity(named.len());
        for (rank, name) in named.iter().enumerate() {
            let site = names.iter().position(|known| known == name).unwrap_or_else(|| {
                names.push(*name);
                members.push(Vec::new());
                names.len() - 1
            });
            members[site].push(rank);
            site_of.push(site);
        }
        (1 < members.len() && members.len() < named.len()).then_some(Self { members, site_of })
    }

    /// Number of sites.
    pub(in crate::sync) fn count(&self) -> usize {
        self.members.len()
    }

    /// Number of ranks.
    pub(super) fn ranks(&self) -> usize {
        self.site_of.len()
    }

    /// The site of `rank`.
    pub(super) fn of(&self, rank: usize) -> usize {
        self.site_of[rank]
    }

    /// The ranks of every site.
    pub(super) fn all(&self) -> &[Vec<usize>] {
        &self.members
    }

    /// The ranks of the site of `rank`, itself included.
    pub(super) fn members(&self, rank: usize) -> &[usize] {
        &self.members[self.of(rank)]
    }

    /// Which of [`Self::members`] `rank` is.
    pub(super) fn member(&self, rank: usize) -> usize {
        self.members(rank).partition_point(|member| *member < rank)
    }

    /// Whether `rank` gets the parameters of `owner` from itself: in its site, and of another site the one who hands them on.
    pub(super) fn hears(&self, rank: usize, owner: usize) -> bool {
        if self.of(rank) == self.of(owner) {
            return true;
        }
        let members = self.members(rank);
        // Counted among the owners of other sites, so that the members take turns whatever ranks they have.
        let turn = owner - members.partition_point(|member| *member < owner);
        members[turn % members.len()] == rank
    }

    /// The owners of other sites whose parameters `rank` hands on, ascending.
    pub(super) fn relayed(&self, rank: usize) -> impl Iterator<Item = usize> + '_ {
        (0..self.ranks()).filter(move |owner| self.of(*owner) != self.of(rank) && self.hears(rank, *owner))
    }

    /// The sum over each site of what each rank has.
    pub(super) fn sums(&self, samples: &[u32]) -> Vec<u32> {
        let sum =
            |ranks: &Vec<usize>| ranks.iter().fold(0, |sum: u32, rank| sum.saturating_add(samples[*rank]));
        self.members.iter().map(sum).collect()
    }

    /// The site of each rank, counted from 0 in the order of their first ranks: the same however they were named.
    pub(in crate::sync) fn numbers(&self) -> Vec<u32> {
        // A world has at most 4,096 ranks.
        self.site_of.iter().map(|site| u32::try_from(*site).unwrap_or(u32::MAX)).collect()
    }
}

/// What tells sites apart; 0 for none.
pub(in crate::sync) fn fingerprint(numbers: &[u32]) -> u64 {
    if numbers.is_empty() { 0 } else { fnv1a(numbers.iter().flat_map(|site| site.to_le_bytes())) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn what_is_flat_has_no_sites() {
        for flat in [&[][..], &[3], &[0, 0, 0], &[2, 1, 0]] {
            assert_eq!(Sites::new(flat), None, "{flat:?}");
        }
    }

    #[test]
    fn sites_are_the_same_whatever_their_names() {
        let sites = Sites::new(&[7, 2, 7, 2, 9]).unwrap();
        assert_eq!(sites, Sites::new(&[0, 1, 0, 1, 2]).unwrap());
        assert_eq!(sites.numbers(), [0, 1, 0, 1, 2]);
        assert_eq!(sites.all(), [vec![0, 2], vec![1, 3], vec![4]]);
        assert_eq!((0..5).map(|rank| sites.member(rank)).collect::<Vec<_>>(), [0, 0, 1, 1, 0]);
        assert_eq!(sites.sums(&[1, 10, 2, u32::MAX, 0]), [3, u32::MAX, 0]);
        let others = [&[0, 0, 1, 1, 2][..], &[0, 1, 0, 1, 1], &[0, 1, 0, 1]];
        for other in others.map(|named| Sites::new(named).unwrap()) {
            assert_ne!(fingerprint(&sites.numbers()), fingerprint(&other.numbers()), "{other:?}");
        }
    }

    #[test]
    fn every_site_hears_every_owner_once_and_its_members_relay_alike() {
        for named in [&[0, 0, 1, 1][..], &[0, 1, 0, 1, 0, 1], &[0, 1, 1, 1], &[5, 0, 0, 5, 1, 5, 5, 0]] {
            let sites = Sites::new(named).unwrap();
            for members in sites.all() {
                for owner in (0..named.len()).filter(|owner| !members.contains(owner)) {
                    let ears = members.iter().filter(|rank| sites.hears(**rank, owner)).count();
                    assert_eq!(ears, 1, "{named:?}, owner {owner}, {members:?}");
                }
                let counts: Vec<usize> = members.iter().map(|rank| sites.relayed(*rank).count()).collect();
                let spread = counts.iter().max().unwrap() - counts.iter().min().unwrap();
                assert!(spread <= 1, "{named:?}, {members:?} relay {counts:?}");
            }
        }
    }
}

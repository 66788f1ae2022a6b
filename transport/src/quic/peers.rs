//! The peers file: where each rank listens.
//!
//! ```toml
//! [[peer]]
//! rank = 0
//! address = "node-a.example:7000"
//! site = "paris"
//! ```
//!
//! `site`, the name of what a rank shares a fast network with, may be left out, but only by all ranks.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::members::Members;
use crate::world::{MAX_WORLD_SIZE, Rank, World};
use crate::{address, file};

/// The largest peers file that is read, 1 MiB: 4,096 peers have about 200 KiB.
pub const MAX_PEERS_BYTES: u64 = 1 << 20;

/// The address of every rank of a world, `host:port` or `[IPv6]:port`, and its site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peers {
    addresses: Vec<String>,
    sites: Vec<u32>,
}

/// A peers file that does not describe a world.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PeersError {
    /// The file could not be read.
    #[error("{}: {source}", path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The text is not TOML of this shape.
    #[error("peers file, line {line}: {reason}")]
    Syntax {
        /// Counted from 1.
        line: usize,
        /// What the parser says.
        reason: String,
    },
    /// A rank stands twice.
    #[error("peers file, line {line}: rank {rank} stands twice, first in line {first}")]
    DuplicateRank {
        /// Of the second entry.
        line: usize,
        /// Which one.
        rank: Rank,
        /// Of the first entry.
        first: usize,
    },
    /// Two ranks have one address.
    #[error("peers file, line {line}: rank {rank} has the address of rank {other}, {address}")]
    DuplicateAddress {
        /// Of the second entry.
        line: usize,
        /// The second one.
        rank: Rank,
        /// The first one.
        other: Rank,
        /// What both have.
        address: String,
    },
    /// A rank does not exist in the world.
    #[error("peers file, line {line}: rank {rank} is not below the world size {size}")]
    Outside {
        /// Of the entry.
        line: usize,
        /// Which one.
        rank: Rank,
        /// Ranks in the world.
        size: u32,
    },
    /// An address is not `host:port`.
    #[error(
        "peers file, line {line}: rank {rank} has address {address:?}, host:port with a port above 0 is expected"
    )]
    Address {
        /// Of the entry.
        line: usize,
        /// Which one.
        rank: Rank,
        /// What stands there.
        address: String,
    },
    /// Some ranks have a site, and this one has none.
    #[error("peers file, line {line}: rank {rank} has no site, rank {other} is in {site:?}")]
    NoSite {
        /// Of the entry.
        line: usize,
        /// Which one.
        rank: Rank,
        /// The first rank that has one.
        other: Rank,
        /// Its site.
        site: String,
    },
    /// A rank of the world has no entry.
    #[error("peers file: rank {rank} of {size} is missing")]
    Missing {
        /// The first one that is missing.
        rank: Rank,
        /// Ranks in the world.
        size: u32,
    },
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    peer: Vec<toml::Spanned<Entry>>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    rank: u32,
    address: String,
    /// An empty one is none: a template that was not filled in must not put its ranks into one site.
    #[serde(default)]
    site: String,
}

/// What the file says about one rank.
#[derive(Clone)]
struct Peer {
    line: usize,
    address: String,
    site: String,
}

impl Peers {
    /// Reads the peers file of a world of `size` ranks.
    ///
    /// # Errors
    ///
    /// If it is no regular file, too long, cannot be read, or as [`Peers::parse`].
    pub fn load(path: &Path, size: u32) -> Result<Self, PeersError> {
        let text = file::open(path).and_then(|opened| file::read_text(&opened, MAX_PEERS_BYTES));
        Self::parse(&text.map_err(|source| PeersError::File { path: path.to_owned(), source })?, size)
    }

    /// Reads the text of a peers file of a world of `size` ranks, in any order.
    ///
    /// # Errors
    ///
    /// If it is not TOML of this shape, a rank stands twice, is missing or outside the world, two ranks have
    /// one address, or only some have a site.
    pub fn parse(text: &str, size: u32) -> Result<Self, PeersError> {
        let line_at = |offset: usize| 1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count();
        let file: File = toml::from_str(text).map_err(|error| PeersError::Syntax {
            line: line_at(error.span().map_or(0, |span| span.start)),
            reason: error.message().to_owned(),
        })?;
        let mut found: Vec<Option<Peer>> = vec![None; size.min(MAX_WORLD_SIZE) as usize];
        for entry in file.peer {
            let line = line_at(entry.span().start);
            let Entry { rank, address, site } = entry.into_inner();
            let rank = Rank(rank);
            if address::check(&address).is_err() {
                return Err(PeersError::Address { line, rank, address });
            }
            let same = |(other, slot): (u32, &Option<Peer>)| {
                slot.as_ref().filter(|peer| peer.address == address).map(|_| Rank(other))
            };
            if let Some(other) = (0..).zip(&found).find_map(same).filter(|other| *other != rank) {
                return Err(PeersError::DuplicateAddress { line, rank, other, address });
            }
            match found.get_mut(rank.index()) {
                None => return Err(PeersError::Outside { line, rank, size }),
                Some(Some(Peer { line: first, .. })) => {
                    return Err(PeersError::DuplicateRank { line, rank, first: *first });
                }
                Some(slot) => *slot = Some(Peer { line, address, site }),
            }
        }
        let missing = |rank: u32| PeersError::Missing { rank: Rank(rank), size };
        let peers = (0..size).zip(found).map(|(rank, slot)| slot.ok_or_else(|| missing(rank)));
        let peers = peers.collect::<Result<Vec<Peer>, _>>()?;
        let sites = sites(&peers)?;
        Ok(Self { addresses: peers.into_iter().map(|peer| peer.address).collect(), sites })
    }

    /// The addresses in order of rank.
    #[must_use]
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// The site of each rank, in order of rank: equal numbers for equal names, counted from 0 as they come up. Empty where
    /// the file has no sites.
    #[must_use]
    pub fn sites(&self) -> &[u32] {
        &self.sites
    }

    /// The addresses and sites of `members` alone, from the entries of their certificates' ranks.
    ///
    /// # Errors
    ///
    /// If one of them has no entry here.
    pub fn of(&self, members: &Members) -> Result<Self, PeersError> {
        let size = u32::try_from(self.addresses.len()).unwrap_or(u32::MAX);
        let addresses = members
            .certificates()
            .map(|rank| self.addresses.get(rank.index()).cloned().ok_or(PeersError::Missing { rank, size }));
        let addresses = addresses.collect::<Result<_, _>>()?;
        let mut seen = Vec::new();
        let renumbered = members.certificates().filter_map(|rank| self.sites.get(rank.index())).map(|site| {
            let known = seen.iter().position(|other| other == site).unwrap_or_else(|| {
                seen.push(*site);
                seen.len() - 1
            });
            // At most as many as ranks.
            u32::try_from(known).unwrap_or(u32::MAX)
        });
        let sites = renumbered.collect();
        Ok(Self { addresses, sites })
    }

    pub(super) fn check(&self, world: &World) -> Result<(), PeersError> {
        let size = world.size();
        let have = u32::try_from(self.addresses.len()).unwrap_or(u32::MAX);
        if have < size {
            return Err(PeersError::Missing { rank: Rank(have), size });
        }
        if have > size {
            return Err(PeersError::Outside { line: 1, rank: Rank(size), size });
        }
        Ok(())
    }
}

/// A number for each peer's site, in their order; none if no peer has one.
fn sites(peers: &[Peer]) -> Result<Vec<u32>, PeersError> {
    let ranks = || (0..).map(Rank).zip(peers);
    let Some((other, Peer { site, .. })) = ranks().find(|(_, peer)| !peer.site.is_empty()) else {
        return Ok(Vec::new());
    };
    if let Some((rank, peer)) = ranks().find(|(_, peer)| peer.site.is_empty()) {
        return Err(PeersError::NoSite { line: peer.line, rank, other, site: site.clone() });
    }
    let mut names: HashMap<&str, u32> = HashMap::new();
    let sites = peers.iter().map(|peer| {
        // At most as many as ranks.
        let next = u32::try_from(names.len()).unwrap_or(u32::MAX);
        *names.entry(peer.site.as_str()).or_insert(next)
    });
    Ok(sites.collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn entry(rank: u32, address: &str) -> String {
        format!("[[peer]]\nrank = {rank}\naddress = \"{address}\"\n")
    }

    #[test]
    fn peers_may_stand_in_any_order() {
        let text = entry(1, "b.example:7001") + &entry(0, "[::1]:7000");
        assert_eq!(Peers::parse(&text, 2).unwrap().addresses(), ["[::1]:7000", "b.example:7001"]);
    }

    #[test]
    fn ranks_of_one_site_have_one_number() {
        let at = |rank, site: &str| entry(rank, &format!("h{rank}:1")) + &format!("site = {site:?}\n");
        let text = at(3, "rome") + &at(0, "rome") + &at(1, "oslo") + &at(2, "Rome");
        assert_eq!(Peers::parse(&text, 4).unwrap().sites(), [0, 1, 2, 0]);
        let none = entry(0, "a:1") + &entry(1, "b:1");
        assert_eq!(Peers::parse(&none, 2).unwrap().sites(), []);
        for second in [entry(1, "b:1"), at(1, "")] {
            assert_eq!(
                Peers::parse(&(at(0, "oslo") + &second), 2).unwrap_err().to_string(),
                "peers file, line 5: rank 1 has no site, rank 0 is in \"oslo\""
            );
        }
    }

    #[test]
    fn some_of_the_peers_are_found_by_the_ranks_of_their_certificates() {
        let at = |rank, site: &str| entry(rank, &format!("h{rank}:1")) + &format!("site = {site:?}\n");
        let text = at(0, "rome") + &at(1, "oslo") + &at(2, "oslo") + &at(3, "rome");
        let peers = Peers::parse(&text, 4).unwrap();
        assert_eq!(peers.of(&Members::all(4)).unwrap(), peers);
        let left = peers.of(&Members::all(4).without(&[Rank(0)])).unwrap();
        assert_eq!(
            (left.addresses(), left.sites()),
            (&["h1:1", "h2:1", "h3:1"].map(String::from)[..], &[0, 0, 1][..])
        );
        let error = peers.of(&Members::all(5)).unwrap_err();
        assert_eq!(error.to_string(), "peers file: rank 4 of 4 is missing");
    }

    #[test]
    fn what_is_wrong_is_named_with_rank_and_line() {
        let say = |text: String, size| Peers::parse(&text, size).unwrap_err().to_string();
        let a = || entry(0, "a:1");
        assert_eq!(
            say(a() + &entry(0, "b:1"), 2),
            "peers file, line 4: rank 0 stands twice, first in line 1"
        );
        assert_eq!(
            say(a() + &entry(1, "a:1"), 2),
            "peers file, line 4: rank 1 has the address of rank 0, a:1"
        );
        assert_eq!(
            say(a() + &entry(2, "b:1"), 2),
            "peers file, line 4: rank 2 is not below the world size 2"
        );
        assert_eq!(say(a(), 2), "peers file: rank 1 of 2 is missing");
        assert_eq!(say(String::new(), 1), "peers file: rank 0 of 1 is missing");
        assert!(say(a() + "[[peer]]\nrank = -1\naddress = \"b:1\"\n", 2).starts_with("peers file, line 5: "));
        assert!(say(a() + "[[peer]]\nrank = 1\nadress = \"b:1\"\n", 2).starts_with("peers file, line "));
        assert!(say("what".into(), 2).starts_with("peers file, line 1: "));
        for address in ["a", "a:", "a:0", ":1", "a:65536", "::1:7"] {
            let said = say(entry(0, address), 1);
            assert!(said.starts_with("peers file, line 1: rank 0 has address"), "{said}");
        }
    }
}

//! The peers file: where each rank listens.
//!
//! ```toml
//! [[peer]]
//! rank = 0
//! address = "node-a.example:7000"
//! ```

use std::path::{Path, PathBuf};

use crate::world::{MAX_WORLD_SIZE, Rank, World};
use crate::{address, file};

/// The largest peers file that is read, 1 MiB: 4,096 peers have about 200 KiB.
pub const MAX_PEERS_BYTES: u64 = 1 << 20;

/// The address of every rank of a world, `host:port` or `[IPv6]:port`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peers {
    addresses: Vec<String>,
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
    /// If it is not TOML of this shape, a rank stands twice, is missing or outside the world, or two ranks have
    /// one address.
    pub fn parse(text: &str, size: u32) -> Result<Self, PeersError> {
        let line_at = |offset: usize| 1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count();
        let file: File = toml::from_str(text).map_err(|error| PeersError::Syntax {
            line: line_at(error.span().map_or(0, |span| span.start)),
            reason: error.message().to_owned(),
        })?;
        let mut found: Vec<Option<(String, usize)>> = vec![None; size.min(MAX_WORLD_SIZE) as usize];
        for entry in file.peer {
            let line = line_at(entry.span().start);
            let Entry { rank, address } = entry.into_inner();
            let rank = Rank(rank);
            if address::check(&address).is_err() {
                return Err(PeersError::Address { line, rank, address });
            }
            let same = |(other, slot): (usize, &Option<(String, usize)>)| {
                slot.as_ref().filter(|(text, _)| *text == address).map(|_| other)
            };
            if let Some(other) = found.iter().enumerate().find_map(same).filter(|it| *it != rank.index()) {
                let other = Rank(u32::try_from(other).unwrap_or(u32::MAX));
                return Err(PeersError::DuplicateAddress { line, rank, other, address });
            }
            match found.get_mut(rank.index()) {
                None => return Err(PeersError::Outside { line, rank, size }),
                Some(Some((_, first))) => {
                    return Err(PeersError::DuplicateRank { line, rank, first: *first });
                }
                Some(slot) => *slot = Some((address, line)),
            }
        }
        let missing = |rank: u32| PeersError::Missing { rank: Rank(rank), size };
        let addresses = (0..size)
            .zip(found)
            .map(|(rank, slot)| slot.map(|(address, _)| address).ok_or_else(|| missing(rank)))
            .collect::<Result<_, _>>()?;
        Ok(Self { addresses })
    }

    /// The addresses in order of rank.
    #[must_use]
    pub fn addresses(&self) -> &[String] {
        &self.addresses
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

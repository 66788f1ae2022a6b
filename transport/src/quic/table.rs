//! What rank 0 tells the others while they join: who is missing, and in the end where everyone is.
//!
//! It travels on the stream of the hellos: one byte of kind, u32 length, then for [`News::Waiting`] u32 ranks,
//! for [`News::Table`] one entry per rank: 4 or 6, the IP address, u16 port. All numbers little-endian.

use std::net::{IpAddr, SocketAddr};

use quinn::{ReadExactError, RecvStream};

use crate::world::{MAX_WORLD_SIZE, Rank, World};

const WAITING: u8 = 1;
const TABLE: u8 = 2;
const ENTRY_MAX: usize = 1 + 16 + 2;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// The ranks that rank 0 still waits for, the first 64.
    Waiting(Vec<Rank>),
    /// The address of every rank, as rank 0 sees it; rank 0's own is not used.
    Table(Vec<SocketAddr>),
}

#[derive(Debug, thiserror::Error)]
pub(super) enum TableError {
    #[error(transparent)]
    Read(#[from] ReadExactError),
    #[error("table is malformed: {0}")]
    Malformed(&'static str),
}

impl News {
    pub(super) fn encode(&self) -> Vec<u8> {
        let (kind, body): (_, Vec<u8>) = match self {
            Self::Waiting(ranks) => (WAITING, ranks.iter().flat_map(|rank| rank.0.to_le_bytes()).collect()),
            Self::Table(addresses) => (TABLE, addresses.iter().flat_map(entry).collect()),
        };
        let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
        let mut out = vec![kind];
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(&body);
        out
    }

    pub(super) async fn read(stream: &mut RecvStream, world: &World) -> Result<Self, TableError> {
        let mut head = [0; 5];
        stream.read_exact(&mut head).await?;
        let [kind, l0, l1, l2, l3] = head;
        let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        if length > MAX_WORLD_SIZE as usize * ENTRY_MAX {
            return Err(TableError::Malformed("length"));
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        Self::decode(kind, &body, world).map_err(TableError::Malformed)
    }

    pub(super) fn decode(kind: u8, mut body: &[u8], world: &World) -> Result<Self, &'static str> {
        match kind {
            WAITING => {
                let (ranks, rest) = body.as_chunks::<4>();
                let ranks: Vec<_> = ranks.iter().map(|bytes| Rank(u32::from_le_bytes(*bytes))).collect();
                if !rest.is_empty() || ranks.iter().any(|rank| !world.contains(*rank)) {
                    return Err("ranks");
                }
                Ok(Self::Waiting(ranks))
            }
            TABLE => {
                let addresses = world.ranks().map(|_| take(&mut body)).collect::<Option<_>>();
                let addresses = addresses.ok_or("entries")?;
                if !body.is_empty() {
                    return Err("bytes after its end");
                }
                Ok(Self::Table(addresses))
            }
            _ => Err("kind"),
        }
    }
}

fn entry(address: &SocketAddr) -> Vec<u8> {
    let mut out = match address.ip().to_canonical() {
        IpAddr::V4(ip) => [&[4], &ip.octets()[..]].concat(),
        IpAddr::V6(ip) => [&[6], &ip.octets()[..]].concat(),
    };
    out.extend_from_slice(&address.port().to_le_bytes());
    out
}

fn take(at: &mut &[u8]) -> Option<SocketAddr> {
    let (family, rest) = at.split_first()?;
    let (ip, rest): (IpAddr, _) = match family {
        4 => rest.split_first_chunk::<4>().map(|(ip, rest)| ((*ip).into(), rest))?,
        6 => rest.split_first_chunk::<16>().map(|(ip, rest)| ((*ip).into(), rest))?,
        _ => return None,
    };
    let (port, rest) = rest.split_first_chunk()?;
    *at = rest;
    Some((ip, u16::from_le_bytes(*port)).into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn decode(bytes: &[u8], world: &World) -> Result<News, &'static str> {
        News::decode(bytes[0], &bytes[5..], world)
    }

    #[test]
    fn a_table_comes_back_as_it_was_sent_and_broken_ones_are_refused() {
        let world = World::new(1, 3, 0).unwrap();
        let addresses: Vec<SocketAddr> =
            ["0.0.0.0:0", "192.0.2.7:7001", "[2001:db8::1]:65535"].map(|text| text.parse().unwrap()).into();
        for news in [News::Table(addresses), News::Waiting(vec![Rank(2)]), News::Waiting(vec![])] {
            let bytes = news.encode();
            assert_eq!(decode(&bytes, &world).as_ref(), Ok(&news));
            if let News::Table(_) = news {
                for end in 5..bytes.len() {
                    assert!(decode(&bytes[..end], &world).is_err(), "{end} of {} bytes", bytes.len());
                }
            }
        }
        assert!(decode(&News::Waiting(vec![Rank(3)]).encode(), &world).is_err());
    }

    #[test]
    fn a_mapped_address_travels_as_the_ipv4_address_it_is() {
        let mapped = "[::ffff:192.0.2.7]:9".parse().unwrap();
        assert_eq!(take(&mut &entry(&mapped)[..]), Some("192.0.2.7:9".parse().unwrap()));
    }
}

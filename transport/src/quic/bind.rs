//! Where a node listens that was not told where to.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _};

use super::config::{Config, Rendezvous};
use super::error::JoinError;
use crate::address;
use crate::world::Rank;

/// Binds with `open` where the configuration says, else at the wildcard address of the family in which this node is,
/// or finds rank 0, and at the port that the others are told.
pub(super) fn bind<T>(config: &Config, open: impl Fn(SocketAddr) -> io::Result<T>) -> Result<T, JoinError> {
    let open = |address| open(address).map_err(|source| JoinError::Bind { address, source });
    if let Some(address) = config.bind {
        return open(address);
    }
    let (port, families) = wanted(config);
    let v4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    if families == Families::Four {
        return open(v4);
    }
    // This takes IPv4 as well.
    match open((Ipv6Addr::UNSPECIFIED, port).into()) {
        // A system without IPv6; a port in use would be in use again.
        Err(JoinError::Bind { source, .. })
            if families == Families::Both && source.kind() != io::ErrorKind::AddrInUse =>
        {
            open(v4)
        }
        result => result,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Families {
    Four,
    Six,
    Both,
}

/// The port that the others are told, if they are told any, and the families of what this node's own address or, where
/// it has none, rank 0's is.
fn wanted(config: &Config) -> (u16, Families) {
    let rank = config.world.rank();
    let (text, own) = match &config.rendezvous {
        Rendezvous::Address(address) => (Some(address), rank == Rank(0)),
        Rendezvous::Peers(peers) => (peers.addresses().get(rank.index()), true),
    };
    // A world of one needs no address.
    let found = text.and_then(|text| address::split(text).ok().zip(Some(text)));
    let Some(((_, port), text)) = found else { return (0, Families::Four) };
    (if own { port } else { 0 }, families(text))
}

fn families(address: &str) -> Families {
    // A name may appear later, in any family.
    let Ok(found) = address.to_socket_addrs() else { return Families::Both };
    let (six, four): (Vec<_>, Vec<_>) = found.partition(SocketAddr::is_ipv6);
    match (four.is_empty(), six.is_empty()) {
        (false, true) => Families::Four,
        (true, false) => Families::Six,
        _ => Families::Both,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::quic::{Authority, Peers};
    use crate::world::World;

    fn config(rank: u32, rendezvous: Rendezvous) -> Config {
        let identity = Authority::new("test").unwrap().issue(rank, 2).unwrap();
        Config::new(identity, World::new(rank, 2, 0).unwrap(), rendezvous)
    }

    /// What is tried, on a system where opening IPv6 sockets fails with `six`, if it fails.
    fn tried(config: &Config, six: Option<io::ErrorKind>) -> Vec<String> {
        let tried = std::cell::RefCell::new(Vec::new());
        let _ = bind(config, |address| {
            tried.borrow_mut().push(address.to_string());
            six.filter(|_| address.is_ipv6()).map_or(Ok(()), |kind| Err(kind.into()))
        });
        tried.into_inner()
    }

    #[test]
    fn a_node_listens_in_the_family_of_its_address_or_of_rank_0() {
        let at = |rank, address: &str| tried(&config(rank, Rendezvous::Address(address.into())), None);
        assert_eq!(at(0, "[::1]:7000"), ["[::]:7000"]);
        assert_eq!(at(1, "[::1]:7000"), ["[::]:0"]);
        assert_eq!(at(0, "127.0.0.1:7000"), ["0.0.0.0:7000"]);
        assert_eq!(at(1, "127.0.0.1:7000"), ["0.0.0.0:0"]);
        let text = "[[peer]]\nrank = 0\naddress = '127.0.0.1:7'\n[[peer]]\nrank = 1\naddress = '[::1]:8'\n";
        let peers = |rank| tried(&config(rank, Rendezvous::Peers(Peers::parse(text, 2).unwrap())), None);
        assert_eq!((peers(0), peers(1)), (vec!["0.0.0.0:7".into()], vec!["[::]:8".into()]));
        let mut told = config(0, Rendezvous::Address("[::1]:7000".into()));
        told.bind = Some("192.0.2.1:9".parse().unwrap());
        assert_eq!(tried(&told, None), ["192.0.2.1:9"]);
    }

    #[test]
    fn a_system_without_ipv6_is_no_obstacle_where_ipv4_may_do() {
        let unknown = config(0, Rendezvous::Address("no-such-host.invalid:7".into()));
        assert_eq!(tried(&unknown, Some(io::ErrorKind::Unsupported)), ["[::]:7", "0.0.0.0:7"]);
        assert_eq!(tried(&unknown, Some(io::ErrorKind::AddrInUse)), ["[::]:7"]);
        let six = config(0, Rendezvous::Address("[::1]:7".into()));
        assert_eq!(tried(&six, Some(io::ErrorKind::Unsupported)), ["[::]:7"]);
    }
}

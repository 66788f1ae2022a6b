//! Which rank of which world a node is, where the others are, and who said so.

use std::path::Path;

use gradwire::transport::address;
use gradwire::transport::launch::{Known, Launch};
use gradwire::transport::quic::{Identity, Peers, PeersError, Rendezvous};
use gradwire::transport::world::MAX_WORLD_SIZE;
use gradwire::transport::{Rank, World};

use super::Args;
use crate::failure::Failure;

/// A node's place in its fleet: the arguments, the environment and the identity are in agreement.
pub(super) struct Place {
    pub(super) world: World,
    pub(super) identity: Identity,
    pub(super) rendezvous: Rendezvous,
    /// Who said which rank this is and how many there are, for humans.
    pub(super) source: String,
}

impl Place {
    /// From the options, then from the launcher's environment, then from the peers file and the identity.
    pub(super) fn find(args: &Args) -> Result<Self, Failure> {
        let launch = launch(args)?;
        let address = address(args, launch.as_ref())?;
        let launcher = launch.as_ref().map(|launch| launch.source.to_string()).unwrap_or_default();
        let said = |option: Option<u32>, name: &str, of: fn(&Launch) -> u32| match (option, &launch) {
            (Some(value), _) => Some((value, name.to_owned())),
            (None, Some(launch)) => Some((of(launch), launcher.clone())),
            (None, None) => None,
        };
        let rank = said(args.rank, "--rank", |launch| launch.rank);
        let size = said(args.world_size, "--world-size", |launch| launch.world_size);
        let (size, size_from) = match (size, &args.peers) {
            (Some(size), _) => size,
            (None, Some(path)) => (entries(path)?, "the peers file".to_owned()),
            (None, None) => {
                return Err(Failure::Usage(
                    "--world-size is not given, and neither --peers nor a launcher says it (torchrun, SLURM, \
                     Open MPI, Kubernetes)"
                        .into(),
                ));
            }
        };
        let world = |rank: u32, from: &str| {
            World::new(rank, size, 0)
                .map_err(|error| Failure::Usage(format!("{error} ({})", sources(from, &size_from))))
        };
        // What can be told from the arguments is told even if the identity cannot be read.
        if let Some((rank, from)) = &rank {
            world(*rank, from)?;
        }
        let identity = load_identity(&args.identity)?;
        let (rank, rank_from) = rank.unwrap_or_else(|| (identity.rank().0, "the identity".to_owned()));
        let world = world(rank, &rank_from)?;
        if identity.rank() != world.rank() {
            return Err(Failure::Usage(format!(
                "--identity {} is of rank {}, but {rank_from} says rank {rank}",
                args.identity.display(),
                identity.rank()
            )));
        }
        let rendezvous = match (address, &args.peers) {
            (_, Some(path)) => {
                Rendezvous::Peers(Peers::load(path, size).map_err(|error| in_peers(path, &error))?)
            }
            (Some(address), None) => Rendezvous::Address(address),
            (None, None) if size == 1 => Rendezvous::Address(String::new()),
            (None, None) => {
                return Err(Failure::Usage(format!(
                    "no way to find the other {} ranks: --rendezvous HOST:PORT or --peers FILE is needed",
                    size - 1
                )));
            }
        };
        Ok(Self { world, identity, rendezvous, source: sources(&rank_from, &size_from) })
    }

    /// The site of each rank, if there is a peers file that says it.
    pub(super) fn sites(&self) -> &[u32] {
        match &self.rendezvous {
            Rendezvous::Peers(peers) => peers.sites(),
            Rendezvous::Address(_) => &[],
        }
    }

    /// Where rank 0 is, for humans.
    pub(super) fn rendezvous_name(&self) -> &str {
        match &self.rendezvous {
            Rendezvous::Address(address) if !address.is_empty() => address,
            Rendezvous::Address(_) => "this node",
            Rendezvous::Peers(peers) => peers.addresses().first().map_or("", String::as_str),
        }
    }
}

/// Who said what, in a few words.
fn sources(rank: &str, size: &str) -> String {
    match (rank, size) {
        ("--rank", "--world-size") => "from the options".into(),
        _ if rank == size => format!("from {rank}"),
        _ => format!("rank from {rank}, world size from {size}"),
    }
}

/// What the launcher says, if the options leave anything open.
fn launch(args: &Args) -> Result<Option<Launch>, Failure> {
    let placed = args.rendezvous.is_some() || args.peers.is_some();
    if args.rank.is_some() && args.world_size.is_some() && (placed || args.world_size == Some(1)) {
        return Ok(None);
    }
    let known = Known { rank: args.rank, world_size: args.world_size, rendezvous: placed };
    Launch::from_environment(known, |name| std::env::var(name).ok())
        .map_err(|error| Failure::Usage(error.to_string()))
}

/// The checked address of rank 0, unless there is a peers file.
fn address(args: &Args, launch: Option<&Launch>) -> Result<Option<String>, Failure> {
    if args.peers.is_some() {
        return Ok(None);
    }
    if let Some(address) = &args.rendezvous {
        // Port 0 is how `train` starts its rank 0, which then tells where it is.
        if !args.report_to_parent && address::check(address).is_err() {
            return Err(Failure::Usage(format!("--rendezvous needs HOST:PORT, got {address:?}")));
        }
        return Ok(Some(address.clone()));
    }
    let Some((launch, address)) = launch.and_then(|launch| Some((launch, launch.rendezvous.as_ref()?)))
    else {
        return Ok(None);
    };
    if address::check(address).is_err() {
        // GRADWIRE_RENDEZVOUS is checked where it is read.
        return Err(Failure::Usage(match std::env::var("MASTER_ADDR") {
            Ok(host) if !host.is_empty() => {
                format!("MASTER_ADDR is {host:?}, a host name or IP address without a port is expected")
            }
            _ => format!("{} makes {address:?} rank 0's address, HOST:PORT is needed", launch.source),
        }));
    }
    Ok(Some(address.clone()))
}

/// Number of ranks in a peers file.
fn entries(path: &Path) -> Result<u32, Failure> {
    // The library checks a file against a size: in one that is not the largest, the first missing rank is the size.
    match Peers::load(path, MAX_WORLD_SIZE) {
        Ok(_) => Ok(MAX_WORLD_SIZE),
        Err(PeersError::Missing { rank: Rank(rank), .. }) => {
            match Peers::load(path, rank) {
                Ok(_) if rank > 0 => Ok(rank),
                // There are entries of later ranks, or none at all.
                Ok(_) | Err(PeersError::Outside { .. }) => {
                    Err(Failure::Usage(format!("{}: rank {rank} is missing", path.display())))
                }
                Err(error) => Err(in_peers(path, &error)),
            }
        }
        Err(error) => Err(in_peers(path, &error)),
    }
}

/// The library speaks of "peers file"; a user knows it by its path.
fn in_peers(path: &Path, error: &PeersError) -> Failure {
    let text = error.to_string();
    Failure::Usage(match text.strip_prefix("peers file") {
        Some(rest) => format!("{}{rest}", path.display()),
        None => text,
    })
}

/// Reads the identity; an error names the file, and what was mistaken for an identity.
fn load_identity(path: &Path) -> Result<Identity, Failure> {
    if path == Path::new("-") {
        return super::parent::identity();
    }
    Identity::load(path).map_err(|error| {
        let text = format!("--identity {error}");
        if error.is_certificate_only() { Failure::Usage(text) } else { Failure::Work(text) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_said_what_is_said_once_where_it_is_one() {
        assert_eq!(sources("--rank", "--world-size"), "from the options");
        assert_eq!(sources("torchrun", "torchrun"), "from torchrun");
        assert_eq!(
            sources("the identity", "the peers file"),
            "rank from the identity, world size from the peers file"
        );
    }
}

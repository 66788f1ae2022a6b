//! Why a rank could not join its mesh.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use super::identity::IdentityError;
use super::peers::PeersError;
use crate::address::AddressError;
use crate::error::Abort;
use crate::world::Rank;

/// A mesh that did not come up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The UDP socket could not be bound; the port is in use if the source says so.
    #[error("cannot bind UDP {address}: {source}")]
    Bind {
        /// What was asked for.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The endpoint on the socket, or its thread, could not be started.
    #[error("cannot start the endpoint: {0}")]
    Thread(io::Error),
    /// The own identity.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The peers file.
    #[error(transparent)]
    Peers(#[from] PeersError),
    /// The rendezvous is no address.
    #[error("rendezvous {0}")]
    Address(#[from] AddressError),
    /// An option is outside its range.
    #[error("{option} is {value}, must be {range}")]
    Option {
        /// Its name in [`super::Config`].
        option: &'static str,
        /// What was asked for.
        value: String,
        /// What is possible.
        range: &'static str,
    },
    /// A host name without an address that this node's socket can reach.
    #[error("rank {rank}: {address:?} has no usable address: {reason}")]
    Resolve {
        /// Whose address.
        rank: Rank,
        /// As configured.
        address: String,
        /// What the resolver said.
        reason: String,
    },
    /// The peer speaks another wire version.
    #[error("rank {rank} speaks wire version {theirs}, ours is {ours}")]
    Version {
        /// The peer.
        rank: Rank,
        /// Its version.
        theirs: u16,
        /// [`crate::WIRE_VERSION`].
        ours: u16,
    },
    /// The peer was started for another number of ranks.
    #[error("rank {rank} has world size {theirs}, ours is {ours}")]
    WorldSize {
        /// The peer.
        rank: Rank,
        /// Its world size.
        theirs: u32,
        /// Ours.
        ours: u32,
    },
    /// The peer is in a newer membership of the run, so this one is over. (One in an older membership is waited for.)
    #[error("rank {rank} is in epoch {theirs}, ours is {ours}")]
    Epoch {
        /// The peer.
        rank: Rank,
        /// Its epoch.
        theirs: u32,
        /// Ours.
        ours: u32,
    },
    /// Something that all ranks must agree on differs, such as the codec or the model.
    #[error("rank {rank} has {name} {}, ours is {}", quoted(theirs), quoted(ours))]
    Agreement {
        /// The peer.
        rank: Rank,
        /// What differs.
        name: String,
        /// The peer's value, if it has one.
        theirs: Option<String>,
        /// Our value, if we have one.
        ours: Option<String>,
    },
    /// A peer claims a rank that its certificate is not for.
    #[error("a peer at {address} claims rank {claimed}, its certificate is for {}", certified(*certificate))]
    Claim {
        /// Where the peer is.
        address: SocketAddr,
        /// The rank in its hello.
        claimed: Rank,
        /// The rank in its certificate, if there is one.
        certificate: Option<Rank>,
    },
    /// All ranks have joined, this one too. Or, while they join, a process of this rank is there that has bound its socket
    /// later by its clock: said once it has been heard again, which takes about a fifth of [`super::Config::silence`] (one
    /// that has just died still counts until its silence is noticed).
    #[error("rank {rank} has joined already, rank {by} says: is it running twice, or was it started again?")]
    DuplicateRank {
        /// The own rank.
        rank: Rank,
        /// Who said so.
        by: Rank,
    },
    /// While this process waited for others, a newer one of the same rank called, and has its place.
    #[error("rank {rank} was superseded: a newer process of it has called rank {by}")]
    Superseded {
        /// The own rank.
        rank: Rank,
        /// Who said so.
        by: Rank,
    },
    /// Who answers at a peer's address is not that peer: of another run, another rank, or no gradwire at all.
    #[error("rank {rank} at {address} could not be authenticated: {reason}")]
    Foreign {
        /// The rank that was dialed.
        rank: Rank,
        /// Its address.
        address: SocketAddr,
        /// What TLS said.
        reason: String,
    },
    /// The peer refused this node, most often because our certificate is not of its run.
    #[error("rank {rank} refused this node: {reason}")]
    Refused {
        /// The peer.
        rank: Rank,
        /// What it said.
        reason: String,
    },
    /// A peer gave up joining and said why.
    #[error("{abort} ({}while joining)", match abort.culprit == Some(*by) {
        true => String::new(),
        false => format!("rank {by} says so, "),
    })]
    Aborted {
        /// Who told us.
        by: Rank,
        /// What it told.
        abort: Abort,
    },
    /// Ranks that did not join by the deadline.
    #[error("{} did not join within {waited:.1?}{}", ranks(missing), more(hint))]
    Missing {
        /// Which ones, in order; at least the first 64.
        missing: Vec<Rank>,
        /// The deadline.
        waited: Duration,
        /// Who called and was turned away, if anyone: often one of them.
        hint: Option<String>,
    },
    /// Rank 0 did not answer at the rendezvous address, or no longer.
    #[error("no answer from rank 0 at the rendezvous {address} within {waited:.1?}{}", more(hint))]
    Rendezvous {
        /// As configured.
        address: String,
        /// The deadline.
        waited: Duration,
        /// What was last heard from it, if anything.
        hint: Option<String>,
    },
}

impl JoinError {
    /// The rank at fault, where one is known.
    #[must_use]
    pub fn culprit(&self) -> Option<Rank> {
        match self {
            Self::Resolve { rank, .. }
            | Self::Version { rank, .. }
            | Self::WorldSize { rank, .. }
            | Self::Epoch { rank, .. }
            | Self::Agreement { rank, .. }
            | Self::Foreign { rank, .. }
            | Self::DuplicateRank { rank, .. }
            | Self::Superseded { rank, .. }
            | Self::Refused { rank, .. } => Some(*rank),
            Self::Claim { certificate, .. } => *certificate,
            Self::Aborted { abort, .. } => abort.culprit,
            Self::Missing { missing, .. } => missing.first().copied(),
            Self::Rendezvous { .. } => Some(Rank(0)),
            Self::Bind { .. }
            | Self::Thread(_)
            | Self::Identity(_)
            | Self::Peers(_)
            | Self::Address(_)
            | Self::Option { .. } => None,
        }
    }
}

fn more(hint: &Option<String>) -> String {
    hint.as_ref().map(|hint| format!("; {hint}")).unwrap_or_default()
}

fn quoted(value: &Option<String>) -> String {
    value.as_ref().map_or_else(|| "unset".into(), |value| format!("{value:?}"))
}

fn certified(rank: Option<Rank>) -> String {
    rank.map_or_else(|| "no rank".into(), |rank| format!("rank {rank}"))
}

/// "rank 2" or "ranks 2, 5 and 38 more": a list that stays readable for 4,096 ranks.
pub(super) fn ranks(ranks: &[Rank]) -> String {
    const SHOWN: usize = 8;
    match ranks {
        [] => "no rank".into(),
        [rank] => format!("rank {rank}"),
        _ => {
            let shown: Vec<_> = ranks.iter().take(SHOWN).map(Rank::to_string).collect();
            let rest = ranks.len().saturating_sub(SHOWN);
            let more = if rest > 0 { format!(" and {rest} more") } else { String::new() };
            format!("ranks {}{more}", shown.join(", "))
        }
    }
}

//! Dialing one lower rank until it answers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use quinn::Endpoint;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{Instant, sleep, timeout};

use super::{Common, Note};
use crate::quic::error::JoinError;
use crate::quic::greet::{self, Greeted, Unheard};
use crate::quic::identity::rank_name;
use crate::world::Rank;

/// How long one attempt to connect may take; a peer that starts meanwhile is found by the next.
const ATTEMPT: Duration = Duration::from_secs(3);

/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(100);

/// Between two attempts of a process whose rank is taken: there is nothing to see more often.
const TAKEN_PAUSE: Duration = Duration::from_millis(500);

pub(super) enum Address {
    Name(String),
    Known(SocketAddr),
}

/// Dials until it is connected, fails for good, or is ended.
pub(super) async fn dial(common: Arc<Common>, rank: Rank, address: Address, notes: UnboundedSender<Note>) {
    // Since when rank's answer is that this node is there already.
    let mut taken: Option<Instant> = None;
    for attempt in 0usize.. {
        let target = match &address {
            Address::Known(address) => Ok(*address),
            Address::Name(name) => resolve(&common.endpoint, name, attempt)
                .await
                .map_err(|reason| JoinError::Resolve { rank, address: name.clone(), reason }),
        };
        let result = match target {
            Ok(target) => attempt_at(&common, rank, target).await,
            Err(error) => {
                let reason = error.to_string();
                let _ = notes.send(Note::Trouble(error));
                Err(Unheard::Silent(reason))
            }
        };
        let note = match result {
            Ok(greeted) => Note::Up(greeted),
            Err(Unheard::Fatal(error)) => Note::Fatal(error),
            // Most often a process of this rank that has just died: it counts until its silence is noticed.
            Err(unheard) => {
                let mut pause = PAUSE;
                match unheard {
                    Unheard::Silent(reason) => tracing::debug!(%rank, reason, attempt, "no answer yet"),
                    Unheard::Dropped(reason) => {
                        tracing::debug!(%rank, reason, attempt, "not connected yet");
                        let _ = notes.send(Note::Heard(rank, reason));
                    }
                    Unheard::Duplicate | Unheard::Fatal(_) => {
                        taken.get_or_insert_with(Instant::now);
                        pause = TAKEN_PAUSE;
                        let reason = format!("rank {} has joined already", common.world.rank());
                        let _ = notes.send(Note::Heard(rank, reason));
                    }
                }
                if taken.is_none_or(|since| since.elapsed() < common.silence * 13 / 10) {
                    sleep(pause).await;
                    continue;
                }
                Note::Fatal(JoinError::DuplicateRank { rank: common.world.rank(), by: rank })
            }
        };
        let _ = notes.send(note);
        return;
    }
}

async fn attempt_at(common: &Common, rank: Rank, target: SocketAddr) -> Result<Greeted, Unheard> {
    let certificate = common.members.certificate(rank).unwrap_or(rank);
    let connecting = common.endpoint.connect(target, &rank_name(certificate)).map_err(|error| {
        let (address, reason) = (target.to_string(), error.to_string());
        Unheard::Fatal(JoinError::Resolve { rank, address, reason })
    })?;
    let connection = match timeout(ATTEMPT, connecting).await {
        Err(_) => return Err(Unheard::Silent(format!("no answer from {target} within {ATTEMPT:.0?}"))),
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => {
            return Err(match greet::unauthenticated(&error) {
                Some(reason) => Unheard::Fatal(JoinError::Foreign { rank, address: target, reason }),
                None => greet::ended(&error, rank, &common.hello),
            });
        }
    };
    greet::dial(connection, rank, &common.hello, &common.members).await
}

/// The addresses of a name that this socket can reach, one after the other, attempt by attempt. Resolved anew
/// each time: a name may appear only when its host starts.
async fn resolve(endpoint: &Endpoint, name: &str, attempt: usize) -> Result<SocketAddr, String> {
    use std::net::ToSocketAddrs as _;

    let owned = name.to_owned();
    let found = tokio::task::spawn_blocking(move || owned.to_socket_addrs().map(Vec::from_iter));
    let found = found.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
    let ipv6 = endpoint.local_addr().is_ok_and(|local| local.is_ipv6());
    let mut usable: Vec<_> = found.into_iter().filter(|address| ipv6 || address.is_ipv4()).collect();
    // A name such as localhost has both, and a rank 0 that was told where to listen often only IPv4.
    usable.sort_by_key(SocketAddr::is_ipv6);
    match usable.len() {
        0 => Err("only IPv6 addresses, and this node listens on IPv4".into()),
        count => Ok(usable[attempt % count]),
    }
}

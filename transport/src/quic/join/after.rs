//! What callers are told that come when joining is over.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use quinn::{Endpoint, Incoming};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::{Join, Note};
use crate::error::Abort;
use crate::quic::close;
use crate::quic::config::Rendezvous;
use crate::quic::error::JoinError;
use crate::quic::greet::{Greeted, certificate};
use crate::quic::identity::certified_rank;
use crate::world::Rank;

/// How long a rank that could not join stays to tell late callers why. A dialer's packets are at most 1.2 s apart.
const FAREWELL: Duration = Duration::from_secs(2);

/// Callers at a time once all ranks are there: each costs a handshake that the run does not need.
const SURPLUS: usize = 4;

/// How long such a caller is given for its handshake.
const HANDSHAKE: Duration = Duration::from_secs(2);

/// The least time for which it holds its place: 4 handshakes of 1.3 ms in 0.1 s are 5 % of a core, whoever calls.
const HOLD: Duration = Duration::from_millis(100);

impl Join {
    /// Tells everyone who is there why joining failed, and for a while everyone who calls.
    pub(super) async fn farewell(&mut self, error: &JoinError, abort: &Abort) {
        // Another process of this rank goes on, and whoever joins, with it.
        if matches!(error, JoinError::DuplicateRank { .. } | JoinError::Superseded { .. }) {
            return;
        }
        // From here on whoever calls is told so.
        let _ = self.common.over.set(abort.clone());
        let mut told: BTreeSet<Rank> = knows(error).into_iter().collect();
        let world = self.config.world;
        let epoch = world.epoch();
        for connections in [&self.connections, &self.common.seats.all()] {
            for (rank, connection) in world.ranks().zip(connections) {
                // One that has ended may belong to a process that died: another one may call.
                if let Some(connection) = connection.as_ref().filter(|it| it.close_reason().is_none()) {
                    close::abort(connection, abort, epoch);
                    told.insert(rank);
                }
            }
        }
        let (own, deadline) = (world.rank(), Instant::now() + FAREWELL);
        let waits = |told: &BTreeSet<Rank>| world.ranks().any(|rank| rank > own && !told.contains(&rank));
        // Without a table the higher ranks do not know where this one is.
        let found = self.placed || own == Rank(0) || matches!(self.config.rendezvous, Rendezvous::Peers(_));
        while found && waits(&told) {
            let Ok(Some(note)) = timeout_at(deadline, self.inbox.recv()).await else { return };
            match note {
                Note::Up(Greeted { rank, connection, .. }) => {
                    close::abort(&connection, abort, epoch);
                    told.insert(rank);
                }
                Note::Told(rank) => {
                    told.insert(rank);
                }
                Note::Fatal(error) => told.extend(knows(&error)),
                _ => {}
            }
        }
    }
}

/// Who has found out by itself what `error` says.
fn knows(error: &JoinError) -> Option<Rank> {
    match error {
        JoinError::Aborted { by, .. } => Some(*by),
        JoinError::Missing { .. } | JoinError::Rendezvous { .. } | JoinError::Resolve { .. } => None,
        error => error.culprit(),
    }
}

/// Tells members that call once all ranks have joined that their rank is there already, and in which epoch.
pub(super) async fn turn_away(endpoint: Endpoint, epoch: u32) {
    let slots = Arc::new(Semaphore::new(SURPLUS));
    while let Some(incoming) = endpoint.accept().await {
        if !incoming.remote_address_validated() {
            // Fails only for those that did so already.
            let _ = incoming.retry();
            continue;
        }
        let Ok(slot) = slots.clone().try_acquire_owned() else {
            incoming.ignore();
            continue;
        };
        tokio::spawn(async move {
            tokio::join!(surplus(incoming, epoch), sleep(HOLD));
            drop(slot);
        });
    }
}

async fn surplus(incoming: Incoming, epoch: u32) {
    let address = incoming.remote_address();
    let Ok(connecting) = incoming.accept() else { return };
    let Ok(Ok(connection)) = timeout(HANDSHAKE, connecting).await else { return };
    let rank = certificate(&connection).as_ref().and_then(certified_rank);
    tracing::debug!(%address, ?rank, "a process called after all ranks had joined");
    connection.close(close::TAKEN, &epoch.to_le_bytes());
}

//! Answering whoever calls while this node joins.

use std::sync::Arc;

use quinn::{ConnectionError, Incoming};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{Common, Note};
use crate::quic::close;
use crate::quic::error::JoinError;
use crate::quic::greet::{self, Greeted, PATIENCE, Unheard};
use crate::quic::identity::certified_rank;

/// Handshakes at a time; more callers are not answered, and try again by themselves.
const MAX_HANDSHAKES: usize = 256;

/// From this many handshakes on, callers must first show that they receive at the address they send from.
const PRESSURE: usize = 64;

/// Answers whoever calls, many at a time, each within bounds.
pub(super) async fn listen(common: Arc<Common>, notes: UnboundedSender<Note>) {
    let slots = Arc::new(Semaphore::new(MAX_HANDSHAKES));
    let mut calls = JoinSet::new();
    while let Some(incoming) = common.endpoint.accept().await {
        while calls.try_join_next().is_some() {}
        let Ok(slot) = slots.clone().try_acquire_owned() else {
            incoming.ignore();
            continue;
        };
        if MAX_HANDSHAKES - slots.available_permits() > PRESSURE && !incoming.remote_address_validated() {
            // Fails only for those that did so already.
            let _ = incoming.retry();
            continue;
        }
        let (common, notes) = (common.clone(), notes.clone());
        calls.spawn(async move {
            let address = incoming.remote_address();
            match answer(incoming, &common, &notes).await {
                Ok(greeted) => {
                    let _ = notes.send(Note::Up(greeted));
                }
                Err(Unheard::Fatal(error)) => {
                    let _ = notes.send(Note::Fatal(error));
                }
                Err(Unheard::Duplicate) => {}
                Err(Unheard::Dropped(reason) | Unheard::Silent(reason)) => {
                    if common.turned().count(address, &reason) {
                        tracing::warn!(%address, reason, "turned a caller away");
                    } else {
                        tracing::debug!(%address, reason, "turned a caller away again");
                    }
                }
            }
            drop(slot);
        });
    }
}

async fn answer(
    incoming: Incoming,
    common: &Common,
    notes: &UnboundedSender<Note>,
) -> Result<Greeted, Unheard> {
    let dropped = |error: ConnectionError| Unheard::Dropped(greet::failed(&error));
    let connecting = incoming.accept().map_err(dropped)?;
    let connection = timeout(PATIENCE, connecting)
        .await
        .map_err(|_| Unheard::Dropped("handshake not done in time".into()))?
        .map_err(dropped)?;
    if let Some(abort) = common.over.get() {
        // Members only get here.
        close::abort(&connection, abort, common.world.epoch());
        let certified = greet::certificate(&connection).as_ref().and_then(certified_rank);
        if let Some(rank) = certified.and_then(|certified| common.members.rank(certified)) {
            let _ = notes.send(Note::Told(rank));
        }
        return Err(Unheard::Duplicate);
    }
    match greet::answer(connection, &common.hello, &common.members, &common.seats).await {
        // A caller that refuses us or breaks off ends only its own attempt: it is its part to report.
        Err(Unheard::Fatal(JoinError::Aborted { by, abort })) => {
            Err(Unheard::Dropped(format!("rank {by}: {abort}")))
        }
        other => other,
    }
}

//! What a connection may send although its window is full.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use quinn::Connection;
use quinn::congestion::{Controller, ControllerFactory};
use quinn_proto::RttEstimator;

/// Makes the controllers of another factory, with a grace.
pub(super) struct WithGrace(pub(super) Arc<dyn ControllerFactory + Send + Sync>);

impl ControllerFactory for WithGrace {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        Box::new(Graced { inner: self.0.clone().build(now, mtu), grace: Arc::default() })
    }
}

/// A controller whose window is larger by as much as it was granted.
struct Graced {
    inner: Box<dyn Controller>,
    /// In bytes. Clones are of the same connection.
    grace: Arc<AtomicU64>,
}

/// Above every window: nothing is held back, nor paced.
const LET_GO: u64 = u64::MAX;

/// Lets a connection send `bytes` more than its window has: for probes while its peer is silent, when the window is full of
/// what was lost. 0 ends it; nothing does once the connection was [let go](let_go).
pub(in crate::quic) fn set_grace(connection: &Connection, bytes: u64) {
    if let Some(grace) = grace(connection) {
        let set = |now| (now != LET_GO).then_some(bytes);
        // An error is a connection that was let go.
        let _ = grace.fetch_update(Ordering::Relaxed, Ordering::Relaxed, set);
    }
}

/// To be called before `connection` is closed with data under way. A few packets of data may slip out with its last one.
///
/// quinn (0.11) holds back the packet that closes a connection, if there is data to send too, until there is room in the
/// window; and once a connection is closed, nothing that arrives makes room. So a rank that gave up in the middle of an
/// exchange was never heard, and its peers took it for silent.
pub(in crate::quic) fn let_go(connection: &Connection) {
    if let Some(grace) = grace(connection) {
        grace.store(LET_GO, Ordering::Relaxed);
    }
}

fn grace(connection: &Connection) -> Option<Arc<AtomicU64>> {
    // A copy, which shares what is set here.
    let graced = connection.congestion_state().into_any().downcast::<Graced>().ok()?;
    Some(graced.grace)
}

impl Controller for Graced {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.inner.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &RttEstimator) {
        self.inner.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest: Option<u64>) {
        self.inner.on_end_acks(now, in_flight, app_limited, largest);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, is_persistent: bool, lost: u64) {
        self.inner.on_congestion_event(now, sent, is_persistent, lost);
    }

    fn on_mtu_update(&mut self, mtu: u16) {
        self.inner.on_mtu_update(mtu);
    }

    fn window(&self) -> u64 {
        self.inner.window().saturating_add(self.grace.load(Ordering::Relaxed))
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self { inner: self.inner.clone_box(), grace: self.grace.clone() })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

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
        Box::new(Graced { inner: self.0.clone().build(now, mtu), in_flight: 0, least: Arc::default() })
    }
}

/// A controller whose window is at least what was granted.
struct Graced {
    inner: Box<dyn Controller>,
    /// Bytes that were sent and are neither acknowledged nor lost: as of the last acknowledgement, and what came since.
    in_flight: u64,
    /// The least window, in bytes. Clones are of the same connection.
    least: Arc<AtomicU64>,
}

/// Above every window: nothing is held back, nor paced.
const LET_GO: u64 = u64::MAX;

/// Lets a connection send `bytes` more than are under way, whatever its window is: for probes while its peer is silent, when
/// the window is full of what was lost, or has become smaller than that. `None` ends it; nothing does once the connection was
/// [let go](let_go).
pub(in crate::quic) fn set_grace(connection: &Connection, bytes: Option<u64>) {
    if let Some(graced) = graced(connection) {
        let least =
            bytes.map_or(0, |bytes| graced.inner.window().max(graced.in_flight).saturating_add(bytes));
        let set = |now| (now != LET_GO).then_some(least);
        // An error is a connection that was let go.
        let _ = graced.least.fetch_update(Ordering::Relaxed, Ordering::Relaxed, set);
    }
}

/// To be called before `connection` is closed with data under way. A few packets of data may slip out with its last one.
///
/// quinn (0.11) holds back the packet that closes a connection, if there is data to send too, until there is room in the
/// window; and once a connection is closed, nothing that arrives makes room. So a rank that gave up in the middle of an
/// exchange was never heard, and its peers took it for silent.
pub(in crate::quic) fn let_go(connection: &Connection) {
    if let Some(graced) = graced(connection) {
        graced.least.store(LET_GO, Ordering::Relaxed);
    }
}

/// A copy, which shares what is granted.
fn graced(connection: &Connection) -> Option<Box<Graced>> {
    connection.congestion_state().into_any().downcast().ok()
}

impl Controller for Graced {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.in_flight = self.in_flight.saturating_add(bytes);
        self.inner.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &RttEstimator) {
        self.inner.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest: Option<u64>) {
        self.in_flight = in_flight;
        self.inner.on_end_acks(now, in_flight, app_limited, largest);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, is_persistent: bool, lost: u64) {
        self.inner.on_congestion_event(now, sent, is_persistent, lost);
    }

    fn on_mtu_update(&mut self, mtu: u16) {
        self.inner.on_mtu_update(mtu);
    }

    fn window(&self) -> u64 {
        self.inner.window().max(self.least.load(Ordering::Relaxed))
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self { inner: self.inner.clone_box(), in_flight: self.in_flight, least: self.least.clone() })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

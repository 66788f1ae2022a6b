//! What a connection says last goes out, however full its window is.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use quinn::Connection;
use quinn::congestion::{Controller, ControllerFactory};
use quinn_proto::RttEstimator;

/// Makes controllers that can let go.
pub(super) struct LetsGo(pub(super) Arc<dyn ControllerFactory + Send + Sync>);

impl ControllerFactory for LetsGo {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        Box::new(Parting { inner: self.0.clone().build(now, mtu), parted: Arc::default() })
    }
}

/// A controller whose window has no limit any more once its connection is about to be closed.
///
/// quinn (0.11) holds back the packet that closes a connection, if there is data to send too, until there is room in the
/// window; and once a connection is closed, nothing that arrives makes room. So a rank that gave up in the middle of an
/// exchange was never heard, and its peers took it for silent.
struct Parting {
    inner: Box<dyn Controller>,
    parted: Arc<AtomicBool>,
}

/// To be called before `connection` is closed with data under way. A few packets of data may slip out with its last one.
pub(in crate::quic) fn let_go(connection: &Connection) {
    // A copy, which shares what is set here.
    if let Ok(parting) = connection.congestion_state().into_any().downcast::<Parting>() {
        parting.parted.store(true, Ordering::Relaxed);
    }
}

impl Controller for Parting {
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
        // Above 4 GiB nothing is paced either.
        if self.parted.load(Ordering::Relaxed) { u64::MAX } else { self.inner.window() }
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self { inner: self.inner.clone_box(), parted: self.parted.clone() })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

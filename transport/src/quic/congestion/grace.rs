//! What a connection may send although its window is full.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quinn::Connection;
use quinn::congestion::{Controller, ControllerFactory};
use quinn_proto::RttEstimator;

/// Makes the controllers of another factory, each [`Graced`].
pub(super) struct WithGrace(pub(super) Arc<dyn ControllerFactory + Send + Sync>);

impl ControllerFactory for WithGrace {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        Box::new(Graced {
            inner: self.0.clone().build(now, mtu),
            in_flight: 0,
            let_go: Arc::default(),
            mtu: mtu.into(),
            sent: now,
            round_trip: Duration::ZERO,
            beyond: 0,
        })
    }
}

/// A controller whose window can be opened, and never keeps acknowledgements back for long.
///
/// quinn (0.11) looks at the window before every packet, if there is data to send too, also where an acknowledgement is owed.
/// RFC 9002, 7 exempts those: two ends whose windows are full would wait for each other's until a probe timer ends it, which
/// takes seconds after a way was cut. What is owed is not known here, so a full window lets a packet pass now and then.
struct Graced {
    inner: Box<dyn Controller>,
    /// Bytes that were sent and are neither acknowledged nor lost: as of the last acknowledgement, and what came since. With
    /// packets that count as nothing in quinn's own sum, so never less than that.
    in_flight: u64,
    /// The window is unbounded. Clones are of the same connection.
    let_go: Arc<AtomicBool>,
    mtu: u64,
    /// When something was sent last.
    sent: Instant,
    round_trip: Duration,
    /// Packets beyond the window since the last acknowledgement.
    beyond: u32,
}

/// An acknowledgement is owed within 25 ms (RFC 9000, 18.2: the default of `max_ack_delay`).
const OWED: Duration = Duration::from_millis(25);

/// No timer is finer.
const OFTEN: Duration = Duration::from_millis(1);

/// Packets beyond a full window in a round trip: so many at most, and so large a share of the window.
const BEYOND: u32 = 8;
const BEYOND_SHARE: u64 = 16;

/// Where nothing is acknowledged, each of them comes twice as late as the one before, up to this.
const SELDOM: Duration = Duration::from_millis(500);

impl Graced {
    /// The window at `now`: one packet more than is under way, if nothing was sent for so long that acknowledgements may be late.
    fn window_at(&self, now: impl FnOnce() -> Instant) -> u64 {
        if self.let_go.load(Ordering::Relaxed) {
            // Nor is anything paced.
            return u64::MAX;
        }
        let window = self.inner.window();
        if self.is_full() && now().saturating_duration_since(self.sent) >= self.patience(window) {
            return self.in_flight.saturating_add(self.mtu + 1);
        }
        window
    }

    fn is_full(&self) -> bool {
        self.in_flight.saturating_add(self.mtu) >= self.inner.window()
    }

    /// How long a full window keeps everything back.
    fn patience(&self, window: u64) -> Duration {
        let packets = u32::try_from(window / (BEYOND_SHARE * self.mtu).max(1)).unwrap_or(u32::MAX);
        let first = (self.round_trip / packets.clamp(1, BEYOND)).clamp(OFTEN, OWED);
        first.saturating_mul(2u32.saturating_pow(self.beyond)).min(SELDOM)
    }
}

/// To be called before `connection` is closed with data under way. A few packets of data may slip out with its last one.
///
/// quinn (0.11) holds back the packet that closes a connection, if there is data to send too, until there is room in the
/// window; and once a connection is closed, nothing that arrives makes room. So a rank that gave up in the middle of an
/// exchange was never heard, and its peers took it for silent.
pub(in crate::quic) fn let_go(connection: &Connection) {
    if let Some(graced) = graced(connection) {
        graced.let_go.store(true, Ordering::Relaxed);
    }
}

/// A copy, which is let go together with it.
fn graced(connection: &Connection) -> Option<Box<Graced>> {
    connection.congestion_state().into_any().downcast().ok()
}

impl Controller for Graced {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.beyond = if self.is_full() { self.beyond.saturating_add(1) } else { 0 };
        self.in_flight = self.in_flight.saturating_add(bytes);
        self.sent = now;
        self.inner.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &RttEstimator) {
        self.round_trip = rtt.get();
        self.inner.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest: Option<u64>) {
        (self.in_flight, self.beyond) = (in_flight, 0);
        self.inner.on_end_acks(now, in_flight, app_limited, largest);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, is_persistent: bool, lost: u64) {
        self.in_flight = self.in_flight.saturating_sub(lost);
        self.inner.on_congestion_event(now, sent, is_persistent, lost);
    }

    fn on_mtu_update(&mut self, mtu: u16) {
        self.mtu = mtu.into();
        self.inner.on_mtu_update(mtu);
    }

    fn window(&self) -> u64 {
        self.window_at(Instant::now)
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self { inner: self.inner.clone_box(), let_go: self.let_go.clone(), ..*self })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::quic::congestion::{Link, Paced};

    const MTU: u64 = 1200;

    fn graced(start: Instant) -> Graced {
        let factory = Arc::new(WithGrace(Arc::new(Paced::new(Link::Estimated))));
        *factory.build(start, 1200).into_any().downcast().unwrap()
    }

    #[test]
    fn a_full_window_lets_one_packet_pass_when_nothing_was_sent_for_long() {
        let start = Instant::now();
        let mut graced = graced(start);
        graced.round_trip = Duration::from_millis(80);
        let full = graced.inner.window();
        graced.on_sent(start, full, 1);
        // A window of 128 KiB: six packets in a round trip.
        let [early, late] = [12, 14].map(|milliseconds| start + Duration::from_millis(milliseconds));
        assert_eq!(graced.window_at(|| early), full, "not yet");
        assert_eq!(graced.window_at(|| late), full + MTU + 1, "one packet");
        graced.on_sent(late, MTU, 2);
        assert_eq!(graced.window_at(|| late), full, "and no other one");
        let [early, last] = [26, 28].map(|milliseconds| late + Duration::from_millis(milliseconds));
        assert_eq!(graced.window_at(|| early), full, "twice as late, as nothing was acknowledged");
        assert_eq!(graced.window_at(|| last), full + 2 * MTU + 1, "until then");
        graced.on_end_acks(last, full, false, None);
        assert_eq!(
            graced.window_at(|| late + Duration::from_millis(14)),
            full + MTU + 1,
            "as soon as at first"
        );
        graced.on_congestion_event(last, start, false, full);
        assert_eq!(graced.window_at(|| last), full, "there is room");
    }

    #[test]
    fn acknowledgements_are_late_by_no_more_than_is_allowed_and_slow_lines_carry_few_packets_more() {
        let mut graced = graced(Instant::now());
        for (round_trip, window, patience) in
            [(80, 10 << 20, 10.0), (80, 16 << 10, 25.0), (1, 16 << 10, 1.0), (600, 10 << 20, 25.0)]
        {
            graced.round_trip = Duration::from_millis(round_trip);
            let seconds = graced.patience(window).as_secs_f64();
            assert_eq!(1000.0 * seconds, patience, "{round_trip} ms, {window} bytes");
        }
    }
}

//! What Prometheus can ask a node for.
//!
//! Names end in their unit; `_total` only grows. Every series has the label `rank`, those of a peer also `peer`.

mod http;

use std::fmt::Display;
use std::net::{SocketAddr, TcpListener};

use gradwire::transport::{PeerStats, Rank, Stats};
use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

use crate::event::Step;
use crate::failure::Failure;

/// Steps after which what was recorded is summed up, and its memory freed: nobody may ever ask.
const UPKEEP: u64 = 64;

/// The numbers of one rank, served until the process ends.
pub(super) struct Metrics {
    rank: Rank,
    recorder: PrometheusHandle,
    /// What every peer had received and sent when the last step ended.
    before: Vec<PeerStats>,
}

impl Metrics {
    /// Serves at `address`, over HTTP, at `/metrics`.
    pub(super) fn serve(address: SocketAddr, rank: Rank) -> Result<Self, Failure> {
        let failed = |error: &dyn Display| Failure::Work(format!("--metrics {address}: {error}"));
        let listener = TcpListener::bind(address).map_err(|error| failed(&error))?;
        let recorder = PrometheusBuilder::new()
            .add_global_label("rank", rank.to_string())
            .install_recorder()
            .map_err(|error| failed(&error))?;
        let served = recorder.clone();
        http::serve(listener, move || served.render()).map_err(|error| failed(&error))?;
        describe();
        Ok(Self { rank, recorder, before: Vec::new() })
    }

    /// After every step.
    pub(super) fn update(&mut self, step: &Step, stats: &Stats) {
        gauge!("gradwire_step").set(step.step as f64);
        gauge!("gradwire_loss_nats").set(f64::from(step.loss));
        gauge!("gradwire_learning_rate").set(f64::from(step.learning_rate));
        let seconds = &step.seconds;
        for (stage, value) in [
            ("compute", seconds.compute),
            ("encode", seconds.encode),
            ("exchange", seconds.exchange),
            ("average", seconds.average),
            ("optimizer", seconds.optimizer),
            ("gather", seconds.gather),
        ] {
            histogram!("gradwire_stage_seconds", "stage" => stage).record(value);
        }
        counter!("gradwire_samples_total").increment(step.samples.into());
        counter!("gradwire_packet_sent_bytes_total", "kind" => "gradient")
            .increment(step.bytes.gradient_packets);
        counter!("gradwire_packet_sent_bytes_total", "kind" => "parameters")
            .increment(step.bytes.parameter_packets);
        counter!("gradwire_saturated_codes_total").increment(step.saturated);
        counter!("gradwire_nonfinite_elements_total").increment(step.nonfinite);
        counter!("gradwire_residual_resets_total").increment(step.reset.into());
        if step.step.is_multiple_of(UPKEEP) {
            self.recorder.run_upkeep();
        }
        self.before.resize(stats.peers.len(), PeerStats::default());
        let elapsed = seconds.sum();
        for (peer, (now, before)) in stats.peers.iter().zip(&mut self.before).enumerate() {
            if peer != self.rank.index() {
                update_peer(peer, now, before, elapsed);
            }
            *before = *now;
        }
    }
}

fn update_peer(peer: usize, now: &PeerStats, before: &PeerStats, elapsed: f64) {
    let peer = peer.to_string();
    let count = |name: &'static str, value: u64| counter!(name, "peer" => peer.clone()).absolute(value);
    count("gradwire_peer_sent_bytes_total", now.frame_bytes_sent);
    count("gradwire_peer_received_bytes_total", now.frame_bytes_received);
    count("gradwire_peer_udp_sent_bytes_total", now.udp_bytes_sent);
    count("gradwire_peer_udp_received_bytes_total", now.udp_bytes_received);
    count("gradwire_peer_udp_lost_bytes_total", now.udp_bytes_lost);
    for (name, value) in [
        ("gradwire_peer_queue_frames", now.queue_frames as f64),
        ("gradwire_peer_queue_bytes", now.queue_bytes as f64),
        ("gradwire_peer_round_trip_seconds", now.round_trip.as_secs_f64()),
        ("gradwire_peer_deadline_seconds", now.deadline.as_secs_f64()),
    ] {
        gauge!(name, "peer" => peer.clone()).set(value);
    }
    if elapsed > 0.0 {
        let received = now.frame_bytes_received.saturating_sub(before.frame_bytes_received);
        gauge!("gradwire_peer_goodput_bytes_per_second", "peer" => peer).set(received as f64 / elapsed);
    }
}

fn describe() {
    describe_gauge!("gradwire_step", "Steps taken.");
    describe_gauge!("gradwire_loss_nats", "Mean loss of this rank's batch in the last step.");
    describe_gauge!("gradwire_learning_rate", "Learning rate of the last step.");
    describe_histogram!("gradwire_stage_seconds", Unit::Seconds, "Wall-clock seconds of each step by stage.");
    describe_counter!("gradwire_samples_total", "Samples that this rank computed gradients of.");
    describe_counter!(
        "gradwire_packet_sent_bytes_total",
        Unit::Bytes,
        "Bytes of packets sent, frames not counted."
    );
    describe_counter!("gradwire_saturated_codes_total", "Codes of this rank that were clamped.");
    describe_counter!(
        "gradwire_nonfinite_elements_total",
        "Gradient elements of this rank that were NaN or infinite."
    );
    describe_counter!("gradwire_residual_resets_total", "Times that the codec zeroed its residual.");
    describe_counter!(
        "gradwire_peer_sent_bytes_total",
        Unit::Bytes,
        "Bytes of frames for the peer, headers included."
    );
    describe_counter!("gradwire_peer_received_bytes_total", Unit::Bytes, "Bytes of frames from the peer.");
    describe_counter!("gradwire_peer_udp_sent_bytes_total", Unit::Bytes, "UDP payload sent to the peer.");
    describe_counter!(
        "gradwire_peer_udp_received_bytes_total",
        Unit::Bytes,
        "UDP payload received from the peer."
    );
    describe_counter!(
        "gradwire_peer_udp_lost_bytes_total",
        Unit::Bytes,
        "Bytes taken for lost, and sent again."
    );
    describe_gauge!("gradwire_peer_queue_frames", "Frames that wait for room in the peer's connection.");
    describe_gauge!("gradwire_peer_queue_bytes", Unit::Bytes, "Bytes of the frames that wait.");
    describe_gauge!("gradwire_peer_round_trip_seconds", Unit::Seconds, "Smoothed round-trip time.");
    describe_gauge!(
        "gradwire_peer_deadline_seconds",
        Unit::Seconds,
        "How long the peer may answer and yet make no progress in a collective before the run ends; silence has --deadline."
    );
    describe_gauge!(
        "gradwire_peer_goodput_bytes_per_second",
        "Bytes of frames from the peer in the last step by the time of the whole step."
    );
}

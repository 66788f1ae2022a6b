//! What one step did.

use std::time::Instant;

use crate::optim::Exchanged;

/// Wall-clock seconds of one step on this rank, by stage.
///
/// Stages overlap: pieces are encoded and averaged while others travel. What this rank computes meanwhile counts where it
/// belongs, and `exchange` is the rest of that time, so that the sum is still the time of the step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Seconds {
    /// Compensate, quantize, pack.
    pub encode: f64,
    /// All-to-all of the packets, less the time in which this rank encoded and averaged meanwhile, and the agreement on a scale
    /// in the first step. Includes waiting for slower ranks.
    pub exchange: f64,
    /// Weighted mean of the own shard.
    pub average: f64,
    /// Optimizer on the own shard.
    pub optimizer: f64,
    /// All-gather of the parameters.
    pub gather: f64,
}

impl Seconds {
    /// The sum of all stages.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.encode + self.exchange + self.average + self.optimizer + self.gather
    }
}

/// What one step did, seen from one rank. Bytes are those this rank sent.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct StepReport {
    /// The step, counted from 1.
    pub step: u64,
    /// Bytes of gradient packets, packet headers included, frame headers not.
    pub gradient_packet_bytes: u64,
    /// Bytes of parameters.
    pub parameter_packet_bytes: u64,
    /// Of those two, what left this rank's site; 0 where no sites are named, or only one.
    pub wan_packet_bytes: u64,
    /// Bytes of all frames, headers included.
    pub frame_bytes: u64,
    /// UDP payload bytes at the socket during the step; 0 on a mesh without sockets. What is still in
    /// flight when the step ends counts in the next one.
    pub udp_bytes: u64,
    /// Time by stage.
    pub seconds: Seconds,
    /// Codes that were clamped, by rank.
    pub saturated: Vec<u64>,
    /// Gradient elements that were not finite, by rank.
    pub nonfinite: Vec<u64>,
    /// Parameters that this rank owned in the step: its shard.
    pub owned: usize,
    /// True if the step was not taken because of non-finite elements ([`super::NonFinite::Skip`]): parameters and
    /// optimizer are as before.
    pub skipped: bool,
    /// True if the codec reset its residual.
    pub reset: bool,
    /// What traveled: the gradient, or for some optimizers the gradient as f32 or the momentum.
    pub exchanged: Exchanged,
    /// Power of two of the codec's scale; `None` for f32, and while every gradient has been zero.
    pub scale_log2: Option<i8>,
}

impl StepReport {
    pub(super) fn new(step: u64, world_size: u32) -> Self {
        let zeros = vec![0; world_size as usize];
        Self {
            step,
            gradient_packet_bytes: 0,
            parameter_packet_bytes: 0,
            wan_packet_bytes: 0,
            frame_bytes: 0,
            udp_bytes: 0,
            seconds: Seconds::default(),
            saturated: zeros.clone(),
            nonfinite: zeros,
            owned: 0,
            skipped: false,
            reset: false,
            exchanged: Exchanged::Gradient,
            scale_log2: None,
        }
    }
}

/// Times stages. Only a report reads it: nothing that is computed depends on the clock.
pub(super) struct Stopwatch(Instant);

impl Stopwatch {
    pub(super) fn start() -> Self {
        Self(Instant::now())
    }

    /// Adds the time since the last lap to `stage`.
    pub(super) fn lap(&mut self, stage: &mut f64) {
        let now = Instant::now();
        *stage += now.duration_since(self.0).as_secs_f64();
        self.0 = now;
    }

    /// Adds the time since the last lap to the exchange, but for these seconds of other stages within it.
    pub(super) fn lap_with(&mut self, seconds: &mut Seconds, encode: f64, average: f64) {
        let mut all = 0.0;
        self.lap(&mut all);
        seconds.encode += encode;
        seconds.average += average;
        // Never below 0, for all that is rounded.
        seconds.exchange += (all - encode - average).max(0.0);
    }
}

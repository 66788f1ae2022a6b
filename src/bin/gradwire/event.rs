//! What a rank tells about itself: one JSON object per line from a node to its parent, and in steps.jsonl.

use serde::{Deserialize, Serialize};

use crate::task::Evaluation;

/// Something happened on a rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event {
    /// Rank 0 can be reached.
    Listening { address: String },
    /// The rank is connected to all others.
    Joined { node: Node },
    /// A step was taken.
    Step { step: Step },
    /// The last step was taken, and every other rank came to the same point.
    Done { done: Done },
    /// The rank gave up.
    Failed { fault: Fault },
}

/// Who a rank is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Node {
    pub(crate) rank: u32,
    /// `cpu` or `gpu`.
    pub(crate) backend: String,
    /// Name of the GPU.
    pub(crate) adapter: Option<String>,
    /// Parameters that the rank owned in its last step.
    #[serde(default)]
    pub(crate) owned: u64,
}

/// One step of one rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Step {
    /// Counted from 1.
    pub(crate) step: u64,
    pub(crate) rank: u32,
    /// Mean loss of the rank's batch before the step, in nats.
    #[serde(deserialize_with = "null_is_nan")]
    pub(crate) loss: f32,
    pub(crate) samples: u32,
    pub(crate) learning_rate: f32,
    /// Sent by this rank during the step.
    pub(crate) bytes: Bytes,
    pub(crate) seconds: Seconds,
    /// Codes of this rank that were clamped.
    pub(crate) saturated: u64,
    /// Gradient elements of this rank that were NaN or infinite.
    pub(crate) nonfinite: u64,
    /// Whether the codec zeroed its residual.
    pub(crate) reset: bool,
    /// Power of two of LoCo's scale.
    pub(crate) scale_log2: Option<i8>,
    /// Parameters that the rank owned: averaged, and sent to the others.
    pub(crate) owned: u64,
}

/// Bytes by kind, in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Bytes {
    pub(crate) gradient_packets: u64,
    pub(crate) parameter_packets: u64,
    /// Of these two, what went to other sites; 0 where there are none.
    pub(crate) wan_packets: u64,
    /// All packets and everything else in frames, headers included.
    pub(crate) frames: u64,
    /// UDP payload at the socket, acknowledgements and handshakes included; 0 without sockets. Of a step: what left during it,
    /// which may be some of the step before, and not all of its own.
    pub(crate) udp: u64,
}

impl std::ops::AddAssign for Bytes {
    fn add_assign(&mut self, other: Self) {
        self.gradient_packets += other.gradient_packets;
        self.parameter_packets += other.parameter_packets;
        self.wan_packets += other.wan_packets;
        self.frames += other.frames;
        self.udp += other.udp;
    }
}

/// Wall-clock seconds by stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Seconds {
    /// Forward and backward pass.
    pub(crate) compute: f64,
    pub(crate) encode: f64,
    /// All-to-all of the packets, waiting for slower ranks included, less what the rank encodes and averages meanwhile.
    pub(crate) exchange: f64,
    pub(crate) average: f64,
    pub(crate) optimizer: f64,
    /// All-gather of the parameters.
    pub(crate) gather: f64,
}

impl Seconds {
    pub(crate) fn sum(&self) -> f64 {
        self.compute + self.encode + self.exchange + self.average + self.optimizer + self.gather
    }
}

impl std::ops::Div<f64> for Seconds {
    type Output = Self;

    fn div(self, by: f64) -> Self {
        Self {
            compute: self.compute / by,
            encode: self.encode / by,
            exchange: self.exchange / by,
            average: self.average / by,
            optimizer: self.optimizer / by,
            gather: self.gather / by,
        }
    }
}

impl std::ops::AddAssign for Seconds {
    fn add_assign(&mut self, other: Self) {
        self.compute += other.compute;
        self.encode += other.encode;
        self.exchange += other.exchange;
        self.average += other.average;
        self.optimizer += other.optimizer;
        self.gather += other.gather;
    }
}

/// How a rank ended well.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Done {
    pub(crate) rank: u32,
    /// In a run of `train` by rank 0 alone: the parameters are the same everywhere.
    pub(crate) evaluation: Option<Evaluation>,
    /// BLAKE3 of all parameters as little-endian f32, in hex.
    pub(crate) parameters_blake3: String,
    /// Sent from joining to leaving.
    pub(crate) bytes: Bytes,
    /// Wall-clock seconds from the first step's beginning to the last one's end.
    pub(crate) total_seconds: f64,
}

/// Why a rank gave up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fault {
    /// Who says so.
    pub(crate) rank: u32,
    /// One line.
    pub(crate) message: String,
    /// The rank at fault, as far as known.
    pub(crate) culprit: Option<u32>,
}

/// JSON has no NaN and no infinity: they are written as null, and must come back as something.
pub(crate) fn null_is_nan<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Deserialize<'de> + From<f32>,
    D: serde::Deserializer<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_else(|| T::from(f32::NAN)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;
    use crate::task::Score;

    #[test]
    fn a_step_whose_loss_is_not_finite_survives_too_and_its_loss_is_null() {
        for loss in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let (bytes, seconds) = (Bytes::default(), Seconds::default());
            let (samples, learning_rate, scale_log2) = (8, 0.1, None);
            let (saturated, nonfinite, reset) = (0, 0, false);
            let step = Step {
                step: 3,
                rank: 1,
                loss,
                samples,
                learning_rate,
                bytes,
                seconds,
                saturated,
                nonfinite,
                reset,
                scale_log2,
                owned: 7,
            };
            let line = serde_json::to_string(&Event::Step { step }).unwrap();
            assert!(line.contains("\"loss\":null"), "{line}");
            let Event::Step { step } = serde_json::from_str(&line).unwrap() else { panic!("{line}") };
            assert!(step.loss.is_nan() && step.step == 3 && step.rank == 1, "{line}");
        }
    }

    #[test]
    fn a_loss_that_is_not_finite_survives_the_way_to_the_parent() {
        for loss in [f64::NAN, f64::INFINITY, 1.5] {
            let evaluation = Some(Evaluation { loss, score: Score::BitsPerByte(loss) });
            let (parameters_blake3, bytes) = (String::new(), Bytes::default());
            let done = Done { rank: 0, evaluation, parameters_blake3, bytes, total_seconds: 0.1 };
            let line = serde_json::to_string(&Event::Done { done }).unwrap();
            let Event::Done { done } = serde_json::from_str(&line).unwrap() else { panic!("{line}") };
            let read = done.evaluation.unwrap().loss;
            assert!(read == loss || (read.is_nan() && !loss.is_finite()), "{line}");
        }
    }
}

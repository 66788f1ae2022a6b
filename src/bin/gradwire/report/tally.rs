//! Adds up the events of all ranks into a [`Run`].

use gradwire::sync::Scheme;

use super::{CodecInfo, Loss, Residual, Run, RunSeconds};
use crate::event::{Bytes, Done, Event, Node, Seconds, Step};
use crate::failure::Failure;

/// A run in progress.
pub(crate) struct Tally {
    codec: Scheme,
    label: String,
    /// Whether the ranks agree on its scale.
    auto: bool,
    world_size: u32,
    nodes: Vec<Node>,
    /// Sum and number of losses by step.
    losses: Vec<(f64, u32)>,
    stages: Seconds,
    step_seconds: Vec<f64>,
    packets: Bytes,
    residual: Residual,
    scale_log2: Option<i8>,
    done: Vec<Done>,
}

impl Tally {
    pub(crate) fn new(codec: Scheme, label: &str, auto: bool, world_size: u32) -> Self {
        Self {
            codec,
            label: label.to_owned(),
            auto,
            world_size,
            nodes: Vec::new(),
            losses: Vec::new(),
            stages: Seconds::default(),
            step_seconds: Vec::new(),
            packets: Bytes::default(),
            residual: Residual::default(),
            scale_log2: None,
            done: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, event: &Event) {
        match event {
            Event::Joined { node } => self.nodes.push(node.clone()),
            Event::Step { step } => self.add_step(step),
            Event::Done { done } => self.done.push(done.clone()),
            Event::Listening { .. } | Event::Failed { .. } => {}
        }
    }

    fn add_step(&mut self, step: &Step) {
        let index = usize::try_from(step.step.saturating_sub(1)).unwrap_or(usize::MAX);
        // Ranks are within one step of each other: anything further is not ours.
        if index <= self.losses.len() {
            if index == self.losses.len() {
                self.losses.push((0.0, 0));
            }
            let (sum, count) = &mut self.losses[index];
            *sum += f64::from(step.loss);
            *count += 1;
        }
        if let Some(node) = self.nodes.iter_mut().find(|node| node.rank == step.rank) {
            node.owned = step.owned;
        }
        self.stages += step.seconds;
        self.step_seconds.push(step.seconds.sum());
        self.packets += step.bytes;
        self.residual.saturated += step.saturated;
        self.residual.nonfinite += step.nonfinite;
        self.residual.resets += u64::from(step.reset && step.rank == 0);
        self.scale_log2 = step.scale_log2.or(self.scale_log2);
    }

    /// Power of two of the scale that the ranks agreed on, once they have.
    pub(crate) fn scale_log2(&self) -> Option<i8> {
        self.scale_log2
    }

    /// Whether every rank said that it is done.
    pub(crate) fn is_complete(&self) -> bool {
        self.done.len() == self.world_size as usize
    }

    /// The run, if every rank came to the end with the same parameters.
    pub(crate) fn finish(mut self) -> Result<Run, Failure> {
        self.done.sort_by_key(|done| done.rank);
        self.nodes.sort_by_key(|node| node.rank);
        if !self.is_complete() {
            return Err(Failure::Work(format!(
                "{} of {} ranks came to the end of the run",
                self.done.len(),
                self.world_size
            )));
        }
        let first = &self.done[0];
        if let Some(other) = self.done.iter().find(|other| other.parameters_blake3 != first.parameters_blake3)
        {
            return Err(Failure::Work(format!(
                "rank {} ended with parameters {}, rank {} with {}: a bug here or in a driver, please report it",
                other.rank,
                &other.parameters_blake3[..16.min(other.parameters_blake3.len())],
                first.rank,
                &first.parameters_blake3[..16.min(first.parameters_blake3.len())]
            )));
        }
        let evaluation = self
            .done
            .iter()
            .find_map(|done| done.evaluation)
            .ok_or_else(|| Failure::Work("rank 0 ended without an evaluation".into()))?;
        let mut bytes = Bytes::default();
        self.done.iter().for_each(|done| bytes += done.bytes);
        let losses: Vec<f64> = self.losses.iter().map(|(sum, count)| sum / f64::from(*count)).collect();
        let loss = Loss {
            first: losses.first().copied().unwrap_or(f64::NAN),
            last: losses.last().copied().unwrap_or(f64::NAN),
            eval: evaluation.loss,
        };
        let seconds = RunSeconds {
            stages: self.stages / f64::from(self.world_size),
            step_median: median(&mut self.step_seconds),
            total: self.done.iter().map(|done| done.total_seconds).fold(0.0, f64::max),
        };
        Ok(Run {
            codec: CodecInfo::new(&self.codec, &self.label, self.auto, self.scale_log2),
            nodes: self.nodes,
            loss,
            score: evaluation.score.into(),
            bytes,
            seconds,
            residual: self.residual,
            parameters_blake3: first.parameters_blake3.clone(),
            losses,
        })
    }
}

/// The middle value, or the mean of the two in the middle; 0 for none.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => 0.0,
        length if length % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use gradwire::codec::Codec;

    use super::*;
    use crate::task::{Evaluation, Score};

    fn step(rank: u32, step: u64, loss: f32, seconds: f64) -> Event {
        let seconds = Seconds { compute: seconds, ..Seconds::default() };
        let bytes =
            Bytes { gradient_packets: 10, parameter_packets: 20, wan_packets: 6, frames: 40, udp: 50 };
        let (saturated, nonfinite, reset, scale_log2) = (3, 0, step == 2, Some(-4));
        let (samples, learning_rate) = (1, 0.1);
        Event::Step {
            step: Step {
                step,
                rank,
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
            },
        }
    }

    fn done(rank: u32, hash: &str) -> Event {
        let evaluation = (rank == 0).then_some(Evaluation { loss: 0.5, score: Score::Accuracy(0.75) });
        let bytes =
            Bytes { gradient_packets: 20, parameter_packets: 40, wan_packets: 12, frames: 90, udp: 120 };
        let total_seconds = 2.0 + f64::from(rank);
        Event::Done { done: Done { rank, evaluation, parameters_blake3: hash.into(), bytes, total_seconds } }
    }

    #[test]
    fn events_in_any_order_add_up() {
        let mut tally = Tally::new(Codec::F32.into(), "f32", true, 2);
        for event in [
            step(0, 1, 4.0, 0.1),
            step(0, 2, 2.0, 0.3),
            done(0, "aa"),
            step(1, 1, 2.0, 0.1),
            step(1, 2, 1.0, 0.5),
            done(1, "aa"),
        ] {
            tally.add(&event);
        }
        assert!(tally.is_complete());
        let run = tally.finish().unwrap();
        assert_eq!(run.losses, [3.0, 1.5]);
        assert_eq!(
            run.bytes,
            Bytes { gradient_packets: 40, parameter_packets: 80, wan_packets: 24, frames: 180, udp: 240 }
        );
        assert_eq!((run.residual.saturated, run.residual.resets), (12, 1));
        assert!((run.seconds.step_median - 0.2).abs() < 1e-12);
        assert!((run.seconds.stages.compute - 0.5).abs() < 1e-12);
        assert!((run.seconds.total - 3.0).abs() < 1e-12);
    }

    #[test]
    fn ranks_with_different_parameters_fail_the_run_by_name() {
        let mut tally = Tally::new(Codec::F32.into(), "f32", true, 2);
        tally.add(&done(1, "bb"));
        tally.add(&done(0, "aa"));
        let said = tally.finish().err().unwrap().to_string();
        assert!(said.contains("rank 1") && said.contains("bb") && said.contains("aa"), "{said}");
    }

    #[test]
    fn a_rank_that_is_missing_fails_the_run() {
        let mut tally = Tally::new(Codec::F32.into(), "f32", true, 2);
        tally.add(&done(0, "aa"));
        assert!(tally.finish().err().unwrap().to_string().contains("1 of 2 ranks"));
    }
}

//! One rank's training loop: the same for a node, a child of `train`, and a thread.

use std::time::Instant;

use gradwire::sync::Scheme;
use gradwire::sync::{SyncError, Synchronizer};
use gradwire::transport::{Communicator, Rank, Stats};

use crate::args::Job;
use crate::backend::Opened;
use crate::event::{Bytes, Done, Event, Fault, Node, Seconds, Step};
use crate::failure::Failure;
use crate::interrupt;
use crate::report::write::write_whole;
use crate::task::{Draw, Task};

/// What a rank did whose user wants it to end.
pub(crate) const INTERRUPTED: &str = "was interrupted";

/// Who is told how a rank fares.
pub(crate) trait Listener {
    /// Something happened.
    fn tell(&mut self, event: Event);

    /// What the mesh had carried when `step` was taken, just before it is told.
    fn carried(&mut self, step: &Step, stats: &Stats) {
        let _ = (step, stats);
    }
}

/// Trains `job.steps` steps over `communicator` and returns the final parameters.
///
/// Tells `listener` about every step, and ends with [`Event::Done`] unless it fails; that has an evaluation if this rank
/// `evaluates`.
pub(crate) fn train(
    communicator: Communicator,
    task: &mut dyn Task,
    job: &Job,
    codec: Scheme,
    opened: Opened,
    evaluates: bool,
    listener: &mut dyn Listener,
) -> Result<Vec<f32>, Fault> {
    let world = communicator.world();
    let (rank, world_size) = (world.rank().0, world.size());
    let at_fault = |error: SyncError| Fault {
        rank,
        culprit: error.culprit(Rank(rank)).map(|rank| rank.0),
        message: error.to_string(),
    };
    let own_fault = |what: &str| Fault { rank, culprit: Some(rank), message: format!("rank {rank} {what}") };
    // Not by dropping it: the others are to hear why this rank leaves.
    let give_up = |synchronizer: Synchronizer, what: &str| {
        synchronizer.abort(what);
        own_fault(what)
    };
    let failed = |failure: Failure| format!("failed: {failure}");

    let Opened { backend, kind, adapter } = opened;
    listener.tell(Event::Joined { node: Node { rank, backend: kind.to_owned(), adapter, owned: 0 } });
    let mut parameters = task.parameters();
    let mut gradient = vec![0.0; parameters.len()];
    let config = job.sync(codec, backend, task.layout());
    let mut synchronizer = Synchronizer::new(communicator, config, &parameters).map_err(at_fault)?;

    let mut bytes = Bytes::default();
    let start = Instant::now();
    for step in 0..job.steps {
        if interrupt::asked() {
            return Err(give_up(synchronizer, INTERRUPTED));
        }
        let before = Instant::now();
        let draw = Draw { step, rank, world_size, batch: job.batch };
        let loss = match task.gradient(&parameters, draw, &mut gradient) {
            Ok(loss) => loss,
            Err(failure) => return Err(give_up(synchronizer, &failed(failure))),
        };
        let compute = before.elapsed().as_secs_f64();
        let learning_rate = job.learning_rate_at(step);
        let report = match synchronizer.step(&gradient, job.batch, learning_rate, &mut parameters) {
            Ok(report) => report,
            Err(error @ SyncError::NonFinite { .. }) => {
                // Every rank finds this by itself. Leaving in order lets the slowest one do so too, before it
                // hears that the others are gone.
                let _ = synchronizer.finish();
                return Err(at_fault(error));
            }
            // It has told the others; what this rank's collective ended with came from itself.
            Err(_) if interrupt::asked() => return Err(own_fault(INTERRUPTED)),
            Err(error) => return Err(at_fault(error)),
        };
        let sent = Bytes {
            gradient_packets: report.gradient_packet_bytes,
            parameter_packets: report.parameter_packet_bytes,
            wan_packets: report.wan_packet_bytes,
            frames: report.frame_bytes,
            udp: report.udp_bytes,
        };
        bytes += sent;
        let stage = report.seconds;
        let seconds = Seconds {
            compute,
            encode: stage.encode,
            exchange: stage.exchange,
            average: stage.average,
            optimizer: stage.optimizer,
            gather: stage.gather,
        };
        let step = Step {
            step: report.step,
            rank,
            loss,
            samples: job.batch,
            learning_rate,
            bytes: sent,
            seconds,
            saturated: report.saturated[rank as usize],
            nonfinite: report.nonfinite[rank as usize],
            reset: report.reset,
            scale_log2: report.scale_log2,
            owned: report.owned as u64,
        };
        listener.carried(&step, &synchronizer.stats());
        listener.tell(Event::Step { step });
    }
    let total_seconds = start.elapsed().as_secs_f64();

    let carried = synchronizer.finish().map_err(at_fault)?.total();
    bytes.frames = carried.frame_bytes_sent;
    bytes.udp = carried.udp_bytes_sent;
    // After leaving in order: the parameters are the same everywhere, so every rank finds this by itself.
    let diverged = |what: String| Fault { rank, culprit: None, message: what };
    let bad = parameters.iter().filter(|value| !value.is_finite()).count();
    if bad > 0 {
        let (n, steps) = (parameters.len(), job.steps);
        return Err(diverged(format!("{bad} of {n} parameters are not finite after step {steps}")));
    }
    let mut evaluation = None;
    if evaluates {
        let found = task.evaluate(&parameters).map_err(|failure| own_fault(&failed(failure)))?;
        if !found.loss.is_finite() {
            return Err(diverged(format!("evaluation loss is {} after step {}", found.loss, job.steps)));
        }
        evaluation = Some(found);
    }
    let parameters_blake3 = hash(&parameters);
    listener.tell(Event::Done { done: Done { rank, evaluation, parameters_blake3, bytes, total_seconds } });
    Ok(parameters)
}

/// BLAKE3 of the parameters as little-endian f32, in hex.
pub(crate) fn hash(parameters: &[f32]) -> String {
    let mut hasher = blake3::Hasher::new();
    for value in parameters {
        hasher.update(&value.to_le_bytes());
    }
    hasher.finalize().to_hex().to_string()
}

/// Writes the parameters as a safetensors file.
pub(crate) fn save(task: &dyn Task, parameters: &[f32], path: &std::path::Path) -> Result<(), Failure> {
    let file = task.layout().to_safetensors(parameters)?;
    write_whole(path, &file)
}

//! What is trained: a model, its data, and how well it does on data it has not seen.

pub(crate) mod digits;
pub(crate) mod layout;
pub(crate) mod random;
pub(crate) mod sampler;
pub(crate) mod text;

use serde::{Deserialize, Serialize};

pub(crate) use layout::Layout;

use crate::event::null_is_nan;
use crate::failure::Failure;

/// Which part of the data a rank works on in one step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draw {
    /// Counted from 0.
    pub(crate) step: u64,
    pub(crate) rank: u32,
    pub(crate) world_size: u32,
    /// Samples per rank and step, at least 1.
    pub(crate) batch: u32,
}

/// How well a model does on the part of the data that is kept from training.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Evaluation {
    /// Mean cross entropy in nats per sample (digits) or byte (text).
    #[serde(deserialize_with = "null_is_nan")]
    pub(crate) loss: f64,
    /// What the task is judged by.
    pub(crate) score: Score,
}

/// The figure a task is judged by.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Score {
    /// Share of samples classified right, 0 to 1.
    Accuracy(f64),
    /// Mean cross entropy in bits per byte, 8 for a model that knows nothing.
    BitsPerByte(#[serde(deserialize_with = "null_is_nan")] f64),
}

/// A model with its data.
///
/// Everything is a function of the seed and the arguments: two processes on one machine get the same bits.
pub(crate) trait Task: Send {
    /// Names and shapes of the model's variables, in the order of the flat parameter vector.
    fn layout(&self) -> &Layout;

    /// What identifies the data, at most 256 bytes: the same on every rank, or they do not train one model.
    fn data(&self) -> String;

    /// The initial parameters: a function of the seed alone, the same bits on every machine.
    fn parameters(&self) -> Vec<f32>;

    /// The mean loss of one batch in nats, and its gradient in the order of [`Task::layout`].
    ///
    /// `parameters` and `gradient` hold [`Layout::elements`] values each.
    fn gradient(&mut self, parameters: &[f32], draw: Draw, gradient: &mut [f32]) -> Result<f32, Failure>;

    /// The loss and score on the evaluation part.
    fn evaluate(&self, parameters: &[f32]) -> Result<Evaluation, Failure>;
}

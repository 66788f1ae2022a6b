//! Optimizers on the averaged shard.
//!
//! Only the owner of a shard runs its optimizer, on f32 master parameters, and everyone receives the result;
//! so one rank's rounding can't split the fleet, and float arithmetic is allowed. The device has [`Sgd`] and [`AdamW`]
//! too (`gpu::Optimizer`), not to the bit but within a few units in the last place.
//! No fused multiply-add and no library function but `sqrt` (correctly rounded by IEEE 754) occurs, so
//! that a run repeats to the bit on every platform.
//!
//! | optimizer | what travels | state of the owner, bytes per element | state of every rank | source |
//! |---|---|---|---|---|
//! | [`Sgd`] | the gradient | 4 | none | |
//! | [`AdamW`] | the gradient | 8 | none | arXiv 1711.05101 |
//! | [`OneBitAdam`] | gradients in f32, then momenta in the codec | 8 | 4 | arXiv 2102.02888 |
//! | [`OneBitLamb`] | gradients in f32, then momenta in the codec | 16 | 4 | arXiv 2104.06069 |
//! | [`ZeroOneAdam`] | momenta in the codec, gradients in f32 on a schedule | 8 | 4 | arXiv 2202.06009 |
//!
//! [`State::exchanged`] says what the mean of the next step is the mean of.

pub mod adam;
mod config;
mod lamb;
mod one_bit;
mod saved;
pub mod sgd;
mod tensors;
mod zero_one;

use std::ops::Range;

pub use adam::AdamW;
pub use config::{Config, ConfigError, Parameter, Value};
pub use lamb::{OneBitLamb, Partials};
pub use one_bit::OneBitAdam;
pub use saved::{RestoreError, Saved};
pub use sgd::Sgd;
pub use tensors::Tensors;
pub use zero_one::ZeroOneAdam;

/// What the ranks send in a step, and so what the mean is the mean of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchanged {
    /// Gradients in the codec of the run.
    Gradient,
    /// Gradients in f32, whatever the codec: a step that measures the variance.
    ExactGradient,
    /// Every rank's own momentum, in the codec of the run.
    Momentum,
}

/// What an optimizer remembers of one shard.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum State {
    /// First and second moments.
    AdamW(adam::State),
    /// Momentum.
    Sgd(sgd::State),
    /// The moments of [`OneBitAdam`] and [`ZeroOneAdam`], which differ in their schedule.
    OneBit(one_bit::State),
    /// The moments of [`OneBitLamb`], and its ratio for every tensor.
    OneBitLamb(Box<lamb::State>),
}

impl State {
    /// Elements that it is for.
    #[must_use]
    pub fn elements(&self) -> usize {
        match self {
            Self::AdamW(state) => state.mean.len(),
            Self::Sgd(state) => state.velocity.len(),
            Self::OneBit(state) => state.elements(),
            Self::OneBitLamb(state) => state.elements(),
        }
    }

    /// The configuration that it was made with.
    #[must_use]
    pub fn config(&self) -> Config {
        match self {
            Self::AdamW(state) => Config::AdamW(state.config),
            Self::Sgd(state) => Config::Sgd(state.config),
            Self::OneBit(state) => state.config(),
            Self::OneBitLamb(state) => Config::OneBitLamb(*state.config()),
        }
    }

    /// What the mean of the next [`step`](Self::step) must be the mean of.
    #[must_use]
    pub fn exchanged(&self) -> Exchanged {
        match self {
            Self::AdamW(_) | Self::Sgd(_) => Exchanged::Gradient,
            Self::OneBit(state) => state.exchanged(),
            Self::OneBitLamb(state) => state.exchanged(),
        }
    }

    /// One step: moves `parameters` against `mean`, in place. `learning_rate` is finite and not negative; `mean` is
    /// the mean of what [`exchanged`](Self::exchanged) says.
    ///
    /// For an optimizer that looks at whole tensors ([`looks_at_tensors`](Self::looks_at_tensors)), this is the step of a
    /// shard that holds all of them; otherwise [`partials`](Self::partials), then [`apply`](Self::apply).
    ///
    /// # Panics
    ///
    /// If `mean` or `parameters` do not have the length that the state was made for.
    pub fn step(&mut self, learning_rate: f32, mean: &[f32], parameters: &mut [f32]) {
        assert_eq!(mean.len(), parameters.len(), "gradient and parameters of one shard");
        match self {
            Self::AdamW(state) => state.step(learning_rate, mean, parameters),
            Self::Sgd(state) => state.step(learning_rate, mean, parameters),
            Self::OneBit(state) => state.step(learning_rate, mean, parameters),
            Self::OneBitLamb(state) => {
                let partials = state.partials(mean, parameters);
                state.apply(learning_rate, &[partials], parameters);
            }
        }
    }

    /// Whether a step needs numbers of other shards: the norms of tensors that lie in several.
    #[must_use]
    pub fn looks_at_tensors(&self) -> bool {
        matches!(self, Self::OneBitLamb(_))
    }

    /// How many numbers the owner of `shard` contributes to the next step ([`Partials::values`]); 0 where shards need
    /// nothing of each other.
    #[must_use]
    pub fn partials_of(&self, shard: &Range<usize>) -> usize {
        match self {
            Self::OneBitLamb(state) => state.partials_of(shard),
            _ => 0,
        }
    }

    /// The first half of a step: takes `mean` in, and says of the own shard what the other owners need.
    ///
    /// # Panics
    ///
    /// If `mean` or `parameters` do not have the length that the state was made for.
    pub fn partials(&mut self, mean: &[f32], parameters: &[f32]) -> Partials {
        assert_eq!(mean.len(), parameters.len(), "gradient and parameters of one shard");
        match self {
            Self::OneBitLamb(state) => state.partials(mean, parameters),
            _ => Partials { tensors: 0..0, values: Vec::new() },
        }
    }

    /// The second half: moves `parameters`, given what all owners said, in rank order.
    ///
    /// # Panics
    ///
    /// If the optimizer has no such half, or a count does not fit.
    pub fn apply(&mut self, learning_rate: f32, partials: &[Partials], parameters: &mut [f32]) {
        match self {
            Self::OneBitLamb(state) => state.apply(learning_rate, partials, parameters),
            _ => panic!("an optimizer whose shards need nothing of each other has one step, not two halves"),
        }
    }
}

/// Refuses a learning rate that no step may have.
///
/// # Errors
///
/// If it is negative or not finite.
pub fn check_learning_rate(value: f32) -> Result<(), ConfigError> {
    config::in_range("learning_rate", value, value >= 0.0 && value.is_finite(), "0 or above")
}

//! Optimizers on the averaged shard.
//!
//! Only the owner of a shard runs its optimizer, on f32 master parameters, and everyone receives the result;
//! so one rank's rounding can't split the fleet, and float arithmetic is allowed. The device has it too
//! (`gpu::Optimizer`), not to the bit but within a few units in the last place.
//! No fused multiply-add and no library function but `sqrt` (correctly rounded by IEEE 754) occurs, so
//! that a run repeats to the bit on every platform.

pub mod adam;
pub mod sgd;

pub use adam::AdamW;
pub use sgd::Sgd;

/// Which optimizer, with its parameters. The learning rate is an argument of every step.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Config {
    /// Adam with decoupled weight decay.
    AdamW(AdamW),
    /// Stochastic gradient descent with momentum.
    Sgd(Sgd),
}

/// A parameter outside its range.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("optimizer parameter {name} is {value}, must be in {range}")]
pub struct ConfigError {
    /// The parameter.
    pub name: &'static str,
    /// What was asked for.
    pub value: f32,
    /// What is allowed.
    pub range: &'static str,
}

impl Config {
    /// Checks every parameter against its range.
    ///
    /// # Errors
    ///
    /// The first parameter that is out of range, or not a number.
    pub fn validate(&self) -> Result<(), ConfigError> {
        match self {
            Self::AdamW(adam) => adam.validate(),
            Self::Sgd(sgd) => sgd.validate(),
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::AdamW(_) => "adamw",
            Self::Sgd(_) => "sgd",
        }
    }

    /// State for one shard of `elements`, all zero.
    #[must_use]
    pub fn state(&self, elements: usize) -> State {
        match self {
            Self::AdamW(adam) => State::AdamW(adam::State::new(*adam, elements)),
            Self::Sgd(sgd) => State::Sgd(sgd::State::new(*sgd, elements)),
        }
    }
}

/// What an optimizer remembers of one shard: 8 bytes per element for AdamW, 4 for SGD.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum State {
    /// First and second moments.
    AdamW(adam::State),
    /// Momentum.
    Sgd(sgd::State),
}

impl State {
    /// Elements that it is for.
    #[must_use]
    pub fn elements(&self) -> usize {
        match self {
            Self::AdamW(state) => state.mean.len(),
            Self::Sgd(state) => state.velocity.len(),
        }
    }

    /// The configuration that it was made with.
    #[must_use]
    pub fn config(&self) -> Config {
        match self {
            Self::AdamW(state) => Config::AdamW(state.config),
            Self::Sgd(state) => Config::Sgd(state.config),
        }
    }

    /// One step: moves `parameters` against `gradient`, in place. `learning_rate` is finite and not negative.
    ///
    /// # Panics
    ///
    /// If `gradient` or `parameters` do not have the length that the state was made for.
    pub fn step(&mut self, learning_rate: f32, gradient: &[f32], parameters: &mut [f32]) {
        assert_eq!(gradient.len(), parameters.len(), "gradient and parameters of one shard");
        match self {
            Self::AdamW(state) => state.step(learning_rate, gradient, parameters),
            Self::Sgd(state) => state.step(learning_rate, gradient, parameters),
        }
    }
}

/// Refuses a learning rate that no step may have.
///
/// # Errors
///
/// If it is negative or not finite.
pub fn check_learning_rate(value: f32) -> Result<(), ConfigError> {
    in_range("learning_rate", value, value >= 0.0 && value.is_finite(), "0 or above")
}

fn in_range(name: &'static str, value: f32, inside: bool, range: &'static str) -> Result<(), ConfigError> {
    if inside { Ok(()) } else { Err(ConfigError { name, value, range }) }
}

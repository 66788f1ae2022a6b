//! An optimizer's state as plain numbers, for a checkpoint.

use super::{Config, State};

/// What an optimizer remembers of one shard, as plain numbers. How they are stored is the caller's business.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Saved {
    /// [`Config::id`] of the optimizer.
    pub optimizer: u32,
    /// Steps taken, where the optimizer counts them.
    pub counters: Vec<u64>,
    /// Running products of the decays; for LAMB also three numbers per tensor.
    pub scalars: Vec<f64>,
    /// The moments, one vector each, all of the shard's length.
    pub vectors: Vec<Vec<f32>>,
}

impl Saved {
    /// A state read back from where it was stored.
    #[must_use]
    pub fn new(optimizer: u32, counters: Vec<u64>, scalars: Vec<f64>, vectors: Vec<Vec<f32>>) -> Self {
        Self { optimizer, counters, scalars, vectors }
    }
}

/// A saved state that does not fit the optimizer and shard that it is given to, or has a number that no step leaves.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// Another optimizer, or another number of something.
    #[error("{what} is {found} in the checkpoint, must be {expected}")]
    Mismatch {
        /// What does not fit.
        what: &'static str,
        /// What the checkpoint says.
        found: u64,
        /// What is needed.
        expected: u64,
    },
    /// A number out of its range; one that is not finite is out of every range.
    #[error("optimizer's {name}[{index}] is {found:?} in the checkpoint, must be {least:?} to {most:?}")]
    Range {
        /// Of what: `mean`, `square` and the like.
        name: &'static str,
        /// Which element of the shard; of a number per tensor, which tensor; else 0.
        index: usize,
        /// What the checkpoint says.
        found: f64,
        /// The least that is taken.
        least: f64,
        /// The most.
        most: f64,
    },
}

impl RestoreError {
    fn check(what: &'static str, found: u64, expected: u64) -> Result<(), Self> {
        if found == expected { Ok(()) } else { Err(Self::Mismatch { what, found, expected }) }
    }

    fn check_length(what: &'static str, found: usize, expected: usize) -> Result<(), Self> {
        Self::check(what, found as u64, expected as u64)
    }
}

/// What a number of a state may be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Allowed {
    /// Any finite f32.
    Finite,
    /// A finite f32 that is not negative.
    NotNegative,
    /// 0 to 1, and below 1 once the optimizer has counted a step: 1 / (1 - it) corrects a bias.
    Power,
    /// From the first to the second.
    Between(f64, f64),
    /// 0, or from the first to the second.
    ZeroOr(f64, f64),
}

impl Allowed {
    /// Least and most; `counted` is whether the optimizer has counted a step.
    fn range(self, counted: bool) -> (f64, f64) {
        match self {
            Self::Finite => (f32::MIN.into(), f32::MAX.into()),
            Self::NotNegative => (0.0, f32::MAX.into()),
            Self::Power => (0.0, if counted { 1.0_f64.next_down() } else { 1.0 }),
            Self::Between(least, most) | Self::ZeroOr(least, most) => (least, most),
        }
    }

    fn check(self, name: &'static str, index: usize, found: f64, counted: bool) -> Result<(), RestoreError> {
        let (least, most) = self.range(counted);
        let zero = matches!(self, Self::ZeroOr(..)) && found == 0.0;
        // A NaN is in no range.
        if zero || (least..=most).contains(&found) {
            return Ok(());
        }
        Err(RestoreError::Range { name, index, found, least, most })
    }
}

/// Something that changes from step to step.
pub(super) struct Part<'a, T> {
    /// Its name in errors.
    pub(super) name: &'static str,
    /// Of a number per tensor: which.
    pub(super) tensor: usize,
    pub(super) allowed: Allowed,
    pub(super) value: &'a mut T,
}

impl<'a, T> Part<'a, T> {
    pub(super) fn new(name: &'static str, allowed: Allowed, value: &'a mut T) -> Self {
        Self { name, tensor: 0, allowed, value }
    }
}

/// Everything that changes from step to step, by reference.
pub(super) struct Parts<'a> {
    pub(super) counters: Vec<&'a mut u64>,
    pub(super) scalars: Vec<Part<'a, f64>>,
    pub(super) vectors: Vec<Part<'a, Vec<f32>>>,
    /// Elements of the shard.
    pub(super) elements: usize,
}

impl Parts<'_> {
    /// Whether `saved` is of an optimizer with these parts, with numbers that a step may leave.
    fn check(&self, saved: &Saved) -> Result<(), RestoreError> {
        let Saved { optimizer: _, counters, scalars, vectors } = saved;
        let lengths = [
            ("number of optimizer counters", counters.len(), self.counters.len()),
            ("number of optimizer scalars", scalars.len(), self.scalars.len()),
            ("number of optimizer vectors", vectors.len(), self.vectors.len()),
        ];
        let lengths = lengths.into_iter().chain(
            vectors.iter().map(|vector| ("length of an optimizer vector", vector.len(), self.elements)),
        );
        for (what, found, expected) in lengths {
            RestoreError::check_length(what, found, expected)?;
        }
        let counted = counters.iter().any(|counter| *counter > 0);
        for (Part { name, tensor, allowed, .. }, scalar) in self.scalars.iter().zip(scalars) {
            allowed.check(name, *tensor, *scalar, counted)?;
        }
        for (Part { name, allowed, .. }, vector) in self.vectors.iter().zip(vectors) {
            for (index, value) in vector.iter().enumerate() {
                allowed.check(name, index, (*value).into(), counted)?;
            }
        }
        Ok(())
    }
}

impl State {
    fn parts(&mut self) -> Parts<'_> {
        match self {
            Self::AdamW(state) => state.parts(),
            Self::Sgd(state) => state.parts(),
            Self::OneBit(state) => state.parts(),
            Self::OneBitLamb(state) => state.parts(),
        }
    }

    /// Everything that the next step depends on.
    #[must_use]
    pub fn save(&mut self, config: &Config) -> Saved {
        let parts = self.parts();
        Saved {
            optimizer: config.id(),
            counters: parts.counters.into_iter().map(|counter| *counter).collect(),
            scalars: parts.scalars.into_iter().map(|scalar| *scalar.value).collect(),
            vectors: parts.vectors.into_iter().map(|vector| vector.value.clone()).collect(),
        }
    }

    /// Whether [`restore`](Self::restore) takes `saved`.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn check(&mut self, config: &Config, saved: &Saved) -> Result<(), RestoreError> {
        RestoreError::check("optimizer", saved.optimizer.into(), config.id().into())?;
        self.parts().check(saved)
    }

    /// Goes on from `saved`, which [`save`](Self::save) gave for the same configuration and shard.
    ///
    /// # Errors
    ///
    /// [`RestoreError`] if it is of another optimizer or of another shard, or has a number that no step leaves or that the
    /// next one would make a NaN of: moments that are not finite, second moments below 0, and scalars out of their range. The
    /// state is then as before.
    pub fn restore(&mut self, config: &Config, saved: &Saved) -> Result<(), RestoreError> {
        self.check(config, saved)?;
        let parts = self.parts();
        for (counter, saved) in parts.counters.into_iter().zip(&saved.counters) {
            *counter = *saved;
        }
        for (scalar, saved) in parts.scalars.into_iter().zip(&saved.scalars) {
            *scalar.value = *saved;
        }
        for (vector, saved) in parts.vectors.into_iter().zip(&saved.vectors) {
            vector.value.clone_from(saved);
        }
        Ok(())
    }
}

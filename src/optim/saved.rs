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

/// A saved state that does not fit the optimizer and shard that it is given to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} is {found} in the checkpoint, must be {expected}")]
pub struct RestoreError {
    /// What does not fit.
    pub what: &'static str,
    /// What the checkpoint says.
    pub found: i64,
    /// What is needed.
    pub expected: i64,
}

impl RestoreError {
    /// Whether `found` is `expected`; else the error that says so.
    pub(crate) fn check(what: &'static str, found: i64, expected: i64) -> Result<(), Self> {
        if found == expected { Ok(()) } else { Err(Self { what, found, expected }) }
    }

    /// Of two lengths.
    pub(crate) fn check_length(what: &'static str, found: usize, expected: usize) -> Result<(), Self> {
        Self::check(what, found as i64, expected as i64)
    }
}

/// Everything that changes from step to step, by reference.
pub(super) struct Parts<'a> {
    pub(super) counters: Vec<&'a mut u64>,
    pub(super) scalars: Vec<&'a mut f64>,
    pub(super) vectors: Vec<&'a mut Vec<f32>>,
    /// Elements of the shard.
    pub(super) elements: usize,
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
            scalars: parts.scalars.into_iter().map(|scalar| *scalar).collect(),
            vectors: parts.vectors.into_iter().map(|vector| vector.clone()).collect(),
        }
    }

    /// Goes on from `saved`, which [`save`](Self::save) gave for the same configuration and shard.
    ///
    /// # Errors
    ///
    /// [`RestoreError`] if it is of another optimizer or of another shard; the state is then as before.
    pub fn restore(&mut self, config: &Config, saved: &Saved) -> Result<(), RestoreError> {
        RestoreError::check("optimizer", saved.optimizer.into(), config.id().into())?;
        let parts = self.parts();
        RestoreError::check_length(
            "number of optimizer counters",
            saved.counters.len(),
            parts.counters.len(),
        )?;
        RestoreError::check_length("number of optimizer scalars", saved.scalars.len(), parts.scalars.len())?;
        RestoreError::check_length("number of optimizer vectors", saved.vectors.len(), parts.vectors.len())?;
        for vector in &saved.vectors {
            RestoreError::check_length("length of an optimizer vector", vector.len(), parts.elements)?;
        }
        for (counter, saved) in parts.counters.into_iter().zip(&saved.counters) {
            *counter = *saved;
        }
        for (scalar, saved) in parts.scalars.into_iter().zip(&saved.scalars) {
            *scalar = *saved;
        }
        for (vector, saved) in parts.vectors.into_iter().zip(&saved.vectors) {
            vector.clone_from(saved);
        }
        Ok(())
    }
}

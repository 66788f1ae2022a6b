//! What of a checkpoint is refused before anything of it is believed: here, and by comparison with other ranks.

use super::checkpoint::Checkpoint;
use super::hierarchy::fingerprint;
use super::powersgd;
use super::scale::Moment;
use crate::codec::{ConfigError, StateError, Step};
use crate::digest::fnv1a;
use crate::optim;

/// A checkpoint that this rank can't go on from: of another rank, shard or configuration, or with numbers that no step
/// leaves. Nothing of it was taken over.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// A number that says where the checkpoint is from, or how long a part of it is.
    #[error("{what} is {found} in the checkpoint, must be {expected}")]
    Mismatch {
        /// Which number.
        what: &'static str,
        /// What the checkpoint says.
        found: u64,
        /// What is needed.
        expected: u64,
    },
    /// A count that no run gets to, or that does not go with another one.
    #[error("{what} is {found} in the checkpoint, must be {least} to {most}")]
    Range {
        /// Which count.
        what: &'static str,
        /// What the checkpoint says.
        found: u64,
        /// The least that is taken.
        least: u64,
        /// The most.
        most: u64,
    },
    /// A scale, or none, where the configuration has another one.
    #[error("scale_log2 is {} in the checkpoint, must be {}", show_scale(*.found), show_scale(*.expected))]
    Scale {
        /// What the checkpoint says.
        found: Option<i8>,
        /// What the configuration says.
        expected: Option<i8>,
    },
    /// A scale that the codec does not take.
    #[error(transparent)]
    Codec(#[from] ConfigError),
    /// A part that the configuration has and the checkpoint lacks.
    #[error("{what} is missing in the checkpoint, this run has one")]
    Missing {
        /// Which part.
        what: &'static str,
    },
    /// A part that the configuration has no use for.
    #[error("{what} is in the checkpoint, this run has none")]
    Unknown {
        /// Which part.
        what: &'static str,
    },
    /// NaN or infinity among parameters or momenta.
    #[error("{what}[{index}] is {found} in the checkpoint, must be finite")]
    NotFinite {
        /// `parameters` of the own shard, or `momentum`.
        what: &'static str,
        /// Which element.
        index: usize,
        /// What the checkpoint says.
        found: f32,
    },
    /// A sum of squares that is none.
    #[error("sum of squares of the last mean is {found} in the checkpoint, must be finite and not negative")]
    Moment {
        /// What the checkpoint says.
        found: f64,
    },
    /// State of the codec that no encoder leaves.
    #[error("codec state in the checkpoint: {0}")]
    CodecState(#[from] StateError),
    /// Another state of PowerSGD.
    #[error(transparent)]
    PowerSgd(#[from] powersgd::StateError),
    /// Another state of the optimizer.
    #[error(transparent)]
    Optimizer(#[from] optim::RestoreError),
}

fn show_scale(scale: Option<i8>) -> String {
    scale.map_or_else(|| "none".to_owned(), |scale| scale.to_string())
}

impl RestoreError {
    fn check(what: &'static str, found: u64, expected: u64) -> Result<(), Self> {
        if found == expected { Ok(()) } else { Err(Self::Mismatch { what, found, expected }) }
    }

    fn check_most(what: &'static str, found: u64, most: u64) -> Result<(), Self> {
        if found <= most { Ok(()) } else { Err(Self::Range { what, found, least: 0, most }) }
    }

    fn check_finite(what: &'static str, values: &[f32]) -> Result<(), Self> {
        match values.iter().position(|value| !value.is_finite()) {
            Some(index) => Err(Self::NotFinite { what, index, found: values[index] }),
            None => Ok(()),
        }
    }

    /// Of a scale that the configuration has fixed, or does not have.
    pub(super) fn check_scale(found: Option<i8>, expected: Option<i8>) -> Result<(), Self> {
        if found == expected { Ok(()) } else { Err(Self::Scale { found, expected }) }
    }

    /// Of a scheme that makes no scale of its last mean.
    pub(super) fn check_no_moment(moment: Option<Moment>) -> Result<(), Self> {
        moment.map_or(Ok(()), |_| Err(Self::Unknown { what: "last mean" }))
    }
}

/// A number that all ranks must have, and how it is shown.
pub(super) type Common = (&'static str, u64, fn(u64) -> String);

/// In place of a scale: none.
const NO_SCALE: u64 = 256;

impl Checkpoint {
    /// Whether a world of `ranks` can have these shares.
    pub(super) fn check_shares(&self, ranks: usize) -> Result<(), RestoreError> {
        if self.shares.is_empty() {
            return Ok(());
        }
        RestoreError::check("number of shares", self.shares.len() as u64, ranks as u64)?;
        let some = self.shares.iter().any(|weight| *weight > 0);
        RestoreError::check_most(
            "number of ranks without a share",
            if some { 0 } else { ranks as u64 },
            ranks as u64 - 1,
        )
    }

    /// Checks what says where it is from, lengths, counts and floats against a fresh checkpoint of this rank; the step that
    /// comes next.
    pub(super) fn check(&self, here: &Self) -> Result<Step, RestoreError> {
        let numbers = [
            ("world size", self.world_size.into(), here.world_size.into()),
            ("rank", self.rank.into(), here.rank.into()),
            ("number of parameters", self.elements, here.elements),
            ("fingerprint of sites", fingerprint(&self.sites), fingerprint(&here.sites)),
            ("fingerprint of shares", fingerprint(&self.shares), fingerprint(&here.shares)),
            ("codec", self.scheme.into(), here.scheme.into()),
            ("length of the codec's state", self.codec_state.len() as u64, here.codec_state.len() as u64),
            ("length of the mean's state", self.mean_state.len() as u64, here.mean_state.len() as u64),
            ("length of the momentum", self.momentum.len() as u64, here.momentum.len() as u64),
            ("length of the shard", self.parameters.len() as u64, here.parameters.len() as u64),
        ];
        numbers
            .into_iter()
            .try_for_each(|(what, found, expected)| RestoreError::check(what, found, expected))?;
        // The last step of all has none after it.
        let next = Step::new(self.next_step).filter(|step| step.next() > *step);
        let (what, found) = ("next step", self.next_step);
        let next = next.ok_or(RestoreError::Range { what, found, least: 1, most: u64::MAX - 1 })?;
        for counter in &self.optimizer.counters {
            RestoreError::check_most("count of optimizer steps", *counter, next.get() - 1)?;
        }
        if let Some(moment) = self.moment {
            let found = moment.sum_of_squares;
            if !(found.is_finite() && found >= 0.0) {
                return Err(RestoreError::Moment { found });
            }
            // Of the shard that it was taken in: a shard that changed hands since may be smaller.
            RestoreError::check_most("number of elements of the last mean", moment.elements, self.elements)?;
        }
        RestoreError::check_finite("parameters", &self.parameters)?;
        RestoreError::check_finite("momentum", &self.momentum)?;
        Ok(next)
    }

    /// What must be the same on all ranks that go on together. Of the same configuration, as many numbers on each.
    pub(super) fn common(&self) -> Vec<Common> {
        let scale = self.scale_log2.map_or(NO_SCALE, |scale| scale.cast_unsigned().into());
        let scalars = self.optimizer.scalars.iter().flat_map(|scalar| scalar.to_bits().to_le_bytes());
        let factors = self.powersgd.iter().flat_map(|state| &state.factors);
        let factors = factors.flat_map(|factor| factor.to_bits().to_le_bytes());
        let steps = self.optimizer.counters.iter();
        let mut common: Vec<Common> = vec![
            ("step of the checkpoint", self.next_step, decimal),
            ("scale of the checkpoint", scale, scale_log2),
            ("number of last means in the checkpoint", self.moment.is_some().into(), decimal),
            ("fingerprint of shares in the checkpoint", fingerprint(&self.shares), hexadecimal),
            // Powers of decays, and for LAMB the ratios of all tensors: every rank computes all of them.
            ("digest of the optimizer's scalars in the checkpoint", fnv1a(scalars), hexadecimal),
            ("digest of powersgd's factors in the checkpoint", fnv1a(factors), hexadecimal),
        ];
        common
            .extend(steps.map(|steps| ("count of optimizer steps in the checkpoint", *steps, decimal as _)));
        common
    }
}

fn decimal(number: u64) -> String {
    number.to_string()
}

pub(super) fn hexadecimal(number: u64) -> String {
    format!("{number:#018x}")
}

fn scale_log2(number: u64) -> String {
    // A peer may send any number.
    match u8::try_from(number) {
        Ok(scale) => scale.cast_signed().to_string(),
        Err(_) if number == NO_SCALE => "none".to_owned(),
        Err(_) => number.to_string(),
    }
}

//! What can end a synchronised step, and whose fault it is.

use gradwire_transport::{ExchangeError, Rank};

use super::hierarchy;
use super::packet::PacketError;
use super::powersgd::{self, ShapeError};
use super::restore::RestoreError;
use super::shares::SharesError;
use crate::codec::{self, AverageError};
use crate::optim;

/// A step, or a start, that did not complete.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SyncError {
    /// The caller has no parameters.
    #[error("caller has 0 parameters, at least 1 is needed")]
    Empty,
    /// The caller's slice does not have the length of the parameters.
    #[error("caller's {what} has {given} elements, the synchronizer was made for {expected}")]
    Length {
        /// Which slice.
        what: &'static str,
        /// Its length.
        given: usize,
        /// Number of parameters.
        expected: usize,
    },
    /// The caller's tensors are not the parameters.
    #[error("caller's tensors have {given} elements together, the parameters {expected}")]
    Tensors {
        /// Elements of all tensors named.
        given: usize,
        /// Number of parameters.
        expected: usize,
    },
    /// The caller's checkpoint is of another rank, shard or configuration, or has numbers that no step leaves.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// The caller's learning rate is negative or not finite.
    #[error("caller's learning rate is {value}, must be finite and not negative")]
    LearningRate {
        /// What was given.
        value: f32,
    },
    /// Gradients of these ranks have elements that are not finite. The same error on every rank; no rank took the step.
    #[error("step {step}: {} not finite", show_counts(counts, *elements))]
    NonFinite {
        /// The step that was not taken.
        step: u64,
        /// Elements of one gradient.
        elements: usize,
        /// Rank and number of non-finite elements, in rank order, zeros left out.
        counts: Vec<(Rank, u64)>,
    },
    /// Another rank was started with other settings.
    #[error("rank {rank} has {name} {theirs}, ours is {ours}")]
    Settings {
        /// The rank that differs.
        rank: Rank,
        /// The setting.
        name: &'static str,
        /// Its value there.
        theirs: String,
        /// Its value here.
        ours: String,
    },
    /// Another rank sent a packet that does not fit.
    #[error("rank {rank} in step {step}: {source}")]
    Packet {
        /// The rank at fault.
        rank: Rank,
        /// The step in progress.
        step: u64,
        /// What was wrong.
        source: PacketError,
    },
    /// The packets of this step can't be averaged.
    #[error("mean of the shard: {0}")]
    Average(#[from] AverageError),
    /// The caller's codec parameters are out of range.
    #[error(transparent)]
    Codec(#[from] codec::ConfigError),
    /// The caller's parameters of PowerSGD are out of range.
    #[error(transparent)]
    PowerSgd(#[from] powersgd::ConfigError),
    /// The caller's sites do not fit the world, the codec or the scheme.
    #[error(transparent)]
    Sites(#[from] hierarchy::ConfigError),
    /// The caller's shares do not fit the world.
    #[error(transparent)]
    Shares(#[from] SharesError),
    /// The caller's tensor shapes do not fit the parameters.
    #[error(transparent)]
    Shapes(#[from] ShapeError),
    /// The caller's optimizer parameters are out of range.
    #[error(transparent)]
    Optimizer(#[from] optim::ConfigError),
    /// This rank's device failed.
    #[cfg(feature = "gpu")]
    #[error(transparent)]
    Gpu(#[from] crate::gpu::GpuError),
    /// The exchange failed.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
}

impl From<optim::RestoreError> for SyncError {
    fn from(error: optim::RestoreError) -> Self {
        Self::Restore(error.into())
    }
}

impl SyncError {
    pub(super) fn non_finite(step: u64, elements: usize, by_rank: &[u64]) -> Self {
        let counts = (0..).map(Rank).zip(by_rank.iter().copied()).filter(|(_, count)| *count > 0);
        Self::NonFinite { step, elements, counts: counts.collect() }
    }

    /// The rank at fault, `own` if it is this one.
    #[must_use]
    pub fn culprit(&self, own: Rank) -> Option<Rank> {
        match self {
            Self::Exchange(error) => error.culprit(),
            Self::NonFinite { counts, .. } => counts.first().map(|(rank, _)| *rank),
            Self::Settings { rank, .. } | Self::Packet { rank, .. } => Some(*rank),
            // Packets come by rank.
            Self::Average(AverageError::Malformed { index, .. }) => u32::try_from(*index).ok().map(Rank),
            // Weights come from all ranks, none of them alone is at fault.
            Self::Average(_) => None,
            _ => Some(own),
        }
    }

    /// The error as told to other ranks, who put the culprit in front.
    pub(super) fn reason(&self) -> String {
        match self {
            Self::Settings { name, theirs, ours, .. } => format!("has {name} {theirs}, others have {ours}"),
            Self::Packet { step, source, .. } => format!("sent a bad packet in step {step}: {source}"),
            Self::Average(_) | Self::NonFinite { .. } | Self::Exchange(_) => self.to_string(),
            _ => format!("failed: {self}"),
        }
    }
}

fn show_counts(counts: &[(Rank, u64)], elements: usize) -> String {
    let each =
        counts.iter().map(|(rank, count)| format!("rank {rank} has {count} of {elements} gradient elements"));
    each.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_that_is_malformed_inside_is_its_senders_fault_and_weights_are_nobodys() {
        let malformed =
            AverageError::Malformed { index: 1, unit: 0, what: "count", found: 254, expected: 256 };
        assert_eq!(SyncError::Average(malformed).culprit(Rank(0)), Some(Rank(1)));
        assert_eq!(SyncError::Average(AverageError::NoSamples { weights: 2 }).culprit(Rank(0)), None);
    }
}

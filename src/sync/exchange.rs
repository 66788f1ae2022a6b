//! From one gradient per rank to the mean of the own shard, in two halves with the decision of all ranks between them.

use gradwire_transport::Communicator;

use super::hierarchy::{Hierarchy, Sites};
use super::packet::Header;
use super::packets::Packets;
use super::powersgd::PowerSgd;
use super::report::Stopwatch;
use super::{Checkpoint, Config, RestoreError, Scheme, StepReport, SyncError};
#[cfg(feature = "gpu")]
use crate::codec::Codec;
use crate::codec::{Gradient, Step};
use crate::shard::ShardLayout;

/// What a half of a step works with, besides the gradient.
pub(super) struct Turn<'a> {
    pub(super) communicator: &'a mut Communicator,
    pub(super) step: Step,
    pub(super) report: &'a mut StepReport,
    pub(super) watch: &'a mut Stopwatch,
}

/// State and buffers of one rank's scheme.
pub(super) enum Exchange {
    Packets(Box<Packets>),
    Hierarchy(Box<Hierarchy>),
    PowerSgd(Box<PowerSgd>),
}

impl Exchange {
    pub(super) fn new(config: &Config, layout: &ShardLayout, own: usize) -> Result<Self, SyncError> {
        Ok(match config.scheme {
            Scheme::Codec(codec) => match Sites::new(&config.sites) {
                None => Self::Packets(Box::new(Packets::new(codec, config, layout, own)?)),
                Some(sites) => Self::Hierarchy(Box::new(Hierarchy::new(codec, config, sites, layout, own)?)),
            },
            Scheme::PowerSgd(powersgd) => {
                Self::PowerSgd(Box::new(PowerSgd::new(powersgd, &config.shapes, layout, own)?))
            }
        })
    }

    /// Whether this side can go on from a checkpoint whose lengths fit.
    pub(super) fn check(&self, checkpoint: &Checkpoint) -> Result<(), RestoreError> {
        const STATE: &str = "state of powersgd";
        match (self, &checkpoint.powersgd) {
            (Self::Packets(packets), None) => packets.check(checkpoint),
            (Self::Hierarchy(hierarchy), None) => hierarchy.check(checkpoint),
            (Self::PowerSgd(powersgd), Some(state)) => {
                RestoreError::check_scale(checkpoint.scale_log2, None)?;
                RestoreError::check_no_moment(checkpoint.moment)?;
                Ok(powersgd.check_state(state)?)
            }
            (Self::Packets(_) | Self::Hierarchy(_), Some(_)) => Err(RestoreError::Unknown { what: STATE }),
            (Self::PowerSgd(_), None) => Err(RestoreError::Missing { what: STATE }),
        }
    }

    /// Goes on from a checkpoint that passed [`Self::check`].
    pub(super) fn restore(&mut self, checkpoint: &Checkpoint) -> Result<(), SyncError> {
        match (self, &checkpoint.powersgd) {
            (Self::Packets(packets), _) => packets.restore(checkpoint)?,
            (Self::Hierarchy(hierarchy), _) => hierarchy.restore(checkpoint)?,
            (Self::PowerSgd(powersgd), Some(state)) => powersgd.set_state(state.clone()),
            (Self::PowerSgd(_), None) => {}
        }
        Ok(())
    }

    /// Encodes and sends `gradient` as far as it takes for every rank to have every rank's header: those, in rank order. What
    /// comes of [`Self::mean`] on the way may be in `mean` already.
    pub(super) fn offer(
        &mut self,
        turn: &mut Turn<'_>,
        gradient: Gradient<'_>,
        samples: u32,
        mean: &mut [f32],
    ) -> Result<Vec<Header>, SyncError> {
        match self {
            Self::Packets(packets) => packets.offer(turn, gradient, samples, mean),
            Self::Hierarchy(hierarchy) => hierarchy.offer(turn, gradient, samples),
            Self::PowerSgd(powersgd) => powersgd.offer(turn, gradient, samples),
        }
    }

    /// The weighted mean of what was offered, of the own shard, into `mean`, which is as [`Self::offer`] left it. Not called
    /// for a step that no rank takes.
    pub(super) fn mean(
        &mut self,
        turn: &mut Turn<'_>,
        weights: &[u32],
        mean: &mut [f32],
    ) -> Result<(), SyncError> {
        match self {
            Self::Packets(packets) => packets.mean(turn, weights, mean),
            Self::Hierarchy(hierarchy) => hierarchy.mean(turn, weights, mean),
            Self::PowerSgd(powersgd) => powersgd.mean(turn, weights, mean),
        }
    }

    /// In place of [`Self::mean`] for whoever makes the mean itself: the codec, and the words of each rank's packet.
    #[cfg(feature = "gpu")]
    pub(super) fn received(&self) -> Option<(Codec, Vec<&[u32]>)> {
        match self {
            Self::Packets(packets) => Some(packets.received()),
            Self::Hierarchy(_) | Self::PowerSgd(_) => None,
        }
    }

    /// In place of [`Self::mean`] for a step that no rank takes; what is in `mean` then has no meaning.
    pub(super) fn follow(&mut self, weights: &[u32], mean: &mut [f32]) -> Result<(), SyncError> {
        match self {
            Self::Packets(packets) => packets.follow(weights, mean),
            Self::Hierarchy(hierarchy) => hierarchy.follow(weights, mean),
            // A step not taken has changed nothing.
            Self::PowerSgd(_) => Ok(()),
        }
    }

    /// See [`super::Synchronizer::scale_log2`].
    pub(super) fn scale_log2(&self) -> Option<i8> {
        match self {
            Self::Packets(packets) => packets.scale_log2(),
            Self::Hierarchy(hierarchy) => hierarchy.scale_log2(),
            Self::PowerSgd(_) => None,
        }
    }
}

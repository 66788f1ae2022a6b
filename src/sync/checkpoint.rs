//! Everything of one rank that the next step depends on, as plain numbers.
//!
//! The parameters of the whole vector are not in it: every rank has the same, and the caller writes them once. Nor are
//! settings: a run goes on with the configuration that it was started with.

use bytes::Bytes;
use gradwire_transport::Operation;

use super::exchange::Exchange;
use super::hierarchy::Sites;
use super::reshape::Parts;
use super::restore::Common;
use super::scale::Moment;
use super::{Shares, SyncError, Synchronizer, give_up, powersgd, shares};
use crate::codec::Step;
use crate::optim::Saved;

/// What one rank remembers between two steps. How it is stored is the caller's business; every rank has its own, and a run
/// goes on from the checkpoints that all ranks took after the same step, in a world of the same size.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Checkpoint {
    /// Ranks of the world.
    pub world_size: u32,
    /// The rank that it is of.
    pub rank: u32,
    /// Parameters of the whole vector.
    pub elements: u64,
    /// [`SchemeId`](super::scheme::SchemeId) of the run's codec or other scheme.
    pub scheme: u8,
    /// The site of each rank, counted from 0 in the order of their first ranks; empty where there is no
    /// [`hierarchy`](super::hierarchy).
    pub sites: Vec<u32>,
    /// By rank, in whose proportion shards are; empty for equal ones.
    pub shares: Vec<u32>,
    /// The step that comes next, at least 1.
    pub next_step: u64,
    /// The codec's scale: `None` for a codec without one, and while it is still to be agreed on.
    pub scale_log2: Option<i8>,
    /// What the next scale is made of, for a codec that [rescales](crate::codec::Codec::rescales): of the own shard's last mean.
    pub moment: Option<Moment>,
    /// Encoder state ([`Codec::state_words`](crate::codec::Codec::state_words)): residuals, for the whole gradient; with sites
    /// for the slice that this rank encodes.
    pub codec_state: Vec<u32>,
    /// What the owner of the shard keeps between means
    /// ([`Codec::mean_state_words`](crate::codec::Codec::mean_state_words)); empty for most codecs.
    pub mean_state: Vec<u32>,
    /// What [`powersgd`] remembers; `None` for a codec.
    pub powersgd: Option<powersgd::State>,
    /// This rank's momentum of the whole vector, where the optimizer has momenta travel; else empty.
    pub momentum: Vec<f32>,
    /// Parameters of the own shard.
    pub parameters: Vec<f32>,
    /// The optimizer's state of the own shard.
    pub optimizer: Saved,
}

impl Synchronizer {
    /// Everything of this rank that the next step depends on, but for the parameters of other shards, which every rank gave
    /// back in the last step.
    ///
    /// # Errors
    ///
    /// If a device can't be read.
    pub fn checkpoint(&mut self) -> Result<Checkpoint, SyncError> {
        let ([codec_state, mean_state], moment, powersgd) = match &self.parts.exchange {
            Exchange::Packets(packets) => (packets.state()?, packets.moment(), None),
            Exchange::Hierarchy(hierarchy) => (hierarchy.state()?, hierarchy.moment(), None),
            Exchange::PowerSgd(powersgd) => ([Vec::new(), Vec::new()], None, Some(powersgd.state().clone())),
        };
        let world = self.world();
        Ok(Checkpoint {
            world_size: world.size(),
            rank: world.rank().0,
            elements: self.parts.layout.elements() as u64,
            scheme: self.config.scheme.id().into(),
            sites: self.sites.as_ref().map_or_else(Vec::new, Sites::numbers),
            shares: self.weights.clone(),
            next_step: self.next.get(),
            scale_log2: self.scale_log2(),
            moment,
            codec_state,
            mean_state,
            powersgd,
            momentum: self.parts.momentum.as_ref().map_or_else(Vec::new, |momentum| momentum.own().to_vec()),
            // Also of a device: every step brings its parameters here.
            parameters: self.parts.master.clone(),
            optimizer: self.parts.optimizer.save(&self.config.optimizer)?,
        })
    }

    /// Goes on from `checkpoint`, which this rank took in a run of the same settings and world size. All ranks call this,
    /// with checkpoints that they took after the same step; the next step then gives the bits that it would have given
    /// in that run. Shares that were learned in that run are those of this one, and not learned again.
    ///
    /// **Price**: one all-gather of 48 bytes, 56 for an optimizer that counts its steps.
    ///
    /// # Errors
    ///
    /// [`SyncError::Restore`] if the checkpoint does not fit, or has a number that no step leaves: one that is not finite,
    /// a count that no run gets to, state that no encoder leaves. [`SyncError::Settings`] if another rank's has another step,
    /// scale, or state of what all ranks compute alike (scalars and steps of the optimizer, factors of
    /// [`powersgd`]). This rank is then as it was before. Last, a failed exchange or device. All of them end the exchange
    /// on all ranks.
    pub fn restore(&mut self, checkpoint: &Checkpoint) -> Result<(), SyncError> {
        let result = self.restore_inner(checkpoint);
        if let Err(error) = &result {
            give_up(&mut self.communicator, error);
        }
        result
    }

    fn restore_inner(&mut self, checkpoint: &Checkpoint) -> Result<(), SyncError> {
        let before = self.share_as(checkpoint)?;
        let next = match self.check_checkpoint(checkpoint) {
            Ok(next) => self.compare_checkpoints(checkpoint).map(|()| next),
            Err(error) => Err(error),
        };
        let next = next.inspect_err(|_| {
            if let Some((weights, parts)) = before {
                self.weights = weights;
                self.parts = parts;
            }
        })?;
        // From here on only a device can fail.
        self.next = next;
        self.learned =
            matches!(self.config.shares, Shares::Learned { steps } if next.get() > steps.get().into());
        self.take_over(checkpoint)
    }

    /// Makes shards as they are in `checkpoint`, where they can be learned; what was there before, if that was another
    /// thing.
    fn share_as(&mut self, checkpoint: &Checkpoint) -> Result<Option<(Vec<u32>, Parts)>, SyncError> {
        let Checkpoint { shares, .. } = checkpoint;
        if *shares == self.weights || !matches!(self.config.shares, Shares::Learned { .. }) {
            return Ok(None);
        }
        checkpoint.check_shares(self.parts.layout.world_size())?;
        let (elements, own) = (self.parts.layout.elements(), self.world().rank().index());
        let layout = shares::layout(elements, self.world(), shares, self.config.scheme.group());
        let zeros = vec![0.0; layout.range(own).len()];
        let parts = Parts::new(&self.config, &self.tensors, layout, own, zeros)?;
        let weights = std::mem::replace(&mut self.weights, shares.clone());
        Ok(Some((weights, std::mem::replace(&mut self.parts, parts))))
    }

    /// Goes on with the state in a checkpoint that was checked.
    pub(super) fn take_over(&mut self, checkpoint: &Checkpoint) -> Result<(), SyncError> {
        self.parts.optimizer.restore(
            &self.config.optimizer,
            &checkpoint.optimizer,
            &checkpoint.parameters,
        )?;
        self.parts.exchange.restore(checkpoint)?;
        if let Some(momentum) = &mut self.parts.momentum {
            momentum.set_own(&checkpoint.momentum);
        }
        self.parts.master.copy_from_slice(&checkpoint.parameters);
        Ok(())
    }

    /// Whether this rank can go on from `checkpoint`; the step that comes next.
    fn check_checkpoint(&mut self, checkpoint: &Checkpoint) -> Result<Step, SyncError> {
        let next = checkpoint.check(&self.checkpoint()?)?;
        let (config, saved) = (&self.config.optimizer, &checkpoint.optimizer);
        self.parts.optimizer.check(config, saved, self.parts.master.len())?;
        self.parts.exchange.check(checkpoint)?;
        Ok(next)
    }

    /// Whether all ranks go on from the same step, with the same numbers where these must be the same.
    fn compare_checkpoints(&mut self, checkpoint: &Checkpoint) -> Result<(), SyncError> {
        self.compare(Operation { step: 0, tag: super::RESTORED }, &checkpoint.common())
    }

    /// Whether all ranks have the numbers `ours`, as many on each: one all-gather of 8 bytes for each.
    pub(super) fn compare(&mut self, operation: Operation, ours: &[Common]) -> Result<(), SyncError> {
        let own: Bytes = ours.iter().flat_map(|(_, number, _)| number.to_le_bytes()).collect();
        let expected = vec![own.len() as u64; self.parts.layout.world_size()];
        let all = self.communicator.all_gather(operation, own, &expected)?;
        for (rank, bytes) in self.world().ranks().zip(&all) {
            for ((name, ours, show), theirs) in ours.iter().zip(bytes.as_chunks().0) {
                let theirs = u64::from_le_bytes(*theirs);
                if theirs != *ours {
                    let (theirs, ours) = (show(theirs), show(*ours));
                    return Err(SyncError::Settings { rank, name, theirs, ours });
                }
            }
        }
        Ok(())
    }
}

//! What moves the master parameters of the own shard: the CPU, or a device that keeps them.

use std::ops::Range;

use super::exchange::Exchange;
#[cfg(feature = "gpu")]
use super::hierarchy::Sites;
#[cfg(feature = "gpu")]
use super::{Backend, OptimizerOn, Scale, Scheme};
use super::{Config, SyncError};
#[cfg(feature = "gpu")]
use crate::gpu::{self, Gpu};
use crate::optim::{self, Exchanged, RestoreError, Saved, Tensors};

/// The optimizer of the own shard, with its moments.
pub(super) enum Optimizer {
    Cpu(optim::State),
    /// After a mean that the host needs, too.
    #[cfg(feature = "gpu")]
    Device(Box<gpu::Optimizer>),
    /// After a mean that nobody else needs.
    #[cfg(feature = "gpu")]
    Owner(Box<gpu::Owner>),
}

impl Optimizer {
    /// For the own `shard`, whose parameters are `master`.
    #[cfg_attr(not(feature = "gpu"), expect(unused_variables, reason = "only a device keeps parameters"))]
    pub(super) fn new(
        config: &Config,
        tensors: &Tensors,
        shard: Range<usize>,
        master: &[f32],
    ) -> Result<Self, SyncError> {
        #[cfg(feature = "gpu")]
        if let (OptimizerOn::Device, Backend::Gpu(gpu)) = (config.optimizer_on, &config.backend)
            && gpu::has_optimizer(&config.optimizer)
        {
            return Self::on_device(gpu, config, master);
        }
        Ok(Self::Cpu(config.optimizer.shard_state(tensors, shard)))
    }

    #[cfg(feature = "gpu")]
    fn on_device(gpu: &Gpu, config: &Config, master: &[f32]) -> Result<Self, SyncError> {
        let optimizer = &config.optimizer;
        if let Scheme::Codec(codec) = &config.scheme {
            // Scales are agreed on by the mean of the step before, and a state for means also follows packets of a step
            // that is not taken.
            let mean_on_host = config.scale == Scale::Auto && codec.rescales();
            let has_state = codec.mean_state_words(1, codec.unit().elements) > 0;
            // Not every step then has packets of the codec, and with gradients in them.
            let always_gradients = optimizer.momentum_decay().is_none();
            // Packets of sites are put together on the host.
            let flat = Sites::new(&config.sites).is_none();
            if always_gradients && !mean_on_host && !has_state && flat {
                return Ok(Self::Owner(Box::new(gpu::Owner::new(gpu, codec, optimizer, master)?)));
            }
        }
        Ok(Self::Device(Box::new(gpu::Optimizer::new(gpu, optimizer, master)?)))
    }

    /// What the mean of the next step must be the mean of.
    pub(super) fn exchanged(&self) -> Exchanged {
        match self {
            Self::Cpu(state) => state.exchanged(),
            // Momenta have no kernel.
            #[cfg(feature = "gpu")]
            Self::Device(_) | Self::Owner(_) => Exchanged::Gradient,
        }
    }

    /// The optimizer, if a step of it needs numbers of other shards.
    pub(super) fn by_tensors(&mut self) -> Option<&mut optim::State> {
        match self {
            Self::Cpu(state) => state.looks_at_tensors().then_some(state),
            #[cfg(feature = "gpu")]
            Self::Device(_) | Self::Owner(_) => None,
        }
    }

    /// Everything but parameters that the next step depends on.
    pub(super) fn save(&mut self, config: &optim::Config) -> Result<Saved, SyncError> {
        Ok(match self {
            Self::Cpu(state) => state.save(config),
            #[cfg(feature = "gpu")]
            Self::Device(device) => device.state()?.save(config),
            #[cfg(feature = "gpu")]
            Self::Owner(owner) => owner.state()?.save(config),
        })
    }

    /// Whether [`Self::restore`] can go on from `saved`, for a shard of `elements`.
    #[cfg_attr(
        not(feature = "gpu"),
        expect(unused_variables, reason = "only a device keeps its state elsewhere")
    )]
    pub(super) fn check(
        &mut self,
        config: &optim::Config,
        saved: &Saved,
        elements: usize,
    ) -> Result<(), RestoreError> {
        match self {
            Self::Cpu(state) => state.check(config, saved),
            #[cfg(feature = "gpu")]
            Self::Device(_) | Self::Owner(_) => config.state(elements).check(config, saved),
        }
    }

    /// Goes on from `saved`, which passed [`Self::check`], and on a device from `master`, the parameters of the own shard.
    #[cfg_attr(not(feature = "gpu"), expect(unused_variables, reason = "only a device keeps parameters"))]
    pub(super) fn restore(
        &mut self,
        config: &optim::Config,
        saved: &Saved,
        master: &[f32],
    ) -> Result<(), SyncError> {
        #[cfg(feature = "gpu")]
        let on_device = || -> Result<optim::State, SyncError> {
            let mut state = config.state(master.len());
            state.restore(config, saved)?;
            Ok(state)
        };
        match self {
            Self::Cpu(state) => state.restore(config, saved)?,
            #[cfg(feature = "gpu")]
            Self::Device(device) => device.restore(master, &on_device()?)?,
            #[cfg(feature = "gpu")]
            Self::Owner(owner) => owner.restore(master, &on_device()?)?,
        }
        Ok(())
    }

    /// Mean and step without the host in between, from the packets of all ranks; false, and nothing done, where there is no
    /// such way.
    #[cfg_attr(not(feature = "gpu"), expect(unused_variables, reason = "only a device takes packets"))]
    pub(super) fn average_step(
        &mut self,
        exchange: &mut Exchange,
        weights: &[u32],
        learning_rate: f32,
        master: &mut [f32],
    ) -> Result<bool, SyncError> {
        match self {
            #[cfg(feature = "gpu")]
            Self::Owner(owner) => {
                let Some((codec, packets)) = exchange.received() else { return Ok(false) };
                owner.step(&codec, &packets, weights, learning_rate, master)?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// One step after the mean that the host has; the new parameters come into `master`.
    pub(super) fn step(
        &mut self,
        learning_rate: f32,
        mean: &[f32],
        master: &mut [f32],
    ) -> Result<(), SyncError> {
        match self {
            Self::Cpu(state) => state.step(learning_rate, mean, master),
            #[cfg(feature = "gpu")]
            Self::Device(device) => device.step(learning_rate, mean, master)?,
            #[cfg(feature = "gpu")]
            Self::Owner(_) => unreachable!("it takes packets, and says so"),
        }
        Ok(())
    }
}

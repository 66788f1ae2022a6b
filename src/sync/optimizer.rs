//! What moves the master parameters of the own shard: the CPU, or a device that keeps them.

use super::exchange::Exchange;
#[cfg(feature = "gpu")]
use super::{Backend, OptimizerOn, Scale, Scheme};
use super::{Config, SyncError};
#[cfg(feature = "gpu")]
use crate::gpu::{self, Gpu};
use crate::optim;

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
    /// `master`: the parameters of the own shard.
    pub(super) fn new(config: &Config, master: &[f32]) -> Result<Self, SyncError> {
        #[cfg(feature = "gpu")]
        if let (OptimizerOn::Device, Backend::Gpu(gpu)) = (config.optimizer_on, &config.backend) {
            return Self::on_device(gpu, config, master);
        }
        Ok(Self::Cpu(config.optimizer.state(master.len())))
    }

    #[cfg(feature = "gpu")]
    fn on_device(gpu: &Gpu, config: &Config, master: &[f32]) -> Result<Self, SyncError> {
        let optimizer = &config.optimizer;
        if let Scheme::Codec(codec) = &config.scheme {
            // Scales are agreed on by the mean of the step before, and a state for means also follows packets of a step
            // that is not taken.
            let mean_on_host = config.scale == Scale::Auto && codec.rescales();
            let has_state = codec.mean_state_words(1, codec.unit().elements) > 0;
            if !mean_on_host && !has_state && gpu::has_kernels(codec) {
                return Ok(Self::Owner(Box::new(gpu::Owner::new(gpu, codec, optimizer, master)?)));
            }
        }
        Ok(Self::Device(Box::new(gpu::Optimizer::new(gpu, optimizer, master)?)))
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

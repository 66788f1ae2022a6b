//! What a rank sends instead of its gradient where the optimizer asks for it: see [`optim::Exchanged`].
//!
//! Every rank keeps a momentum of its own, `m_j = beta1 m_j + (1 - beta1) g_j` in f32, for all parameters. A step first
//! *prepares* the momentum that would follow, and *commits* it once every rank has seen that the step is taken: a step
//! that is refused or skipped because of a gradient that is not finite leaves no trace in it.

use super::engine::Backend;
use super::exchange::Exchange;
use super::{Config, SyncError};
use crate::codec::{CHUNK, Codec, Gradient};
use crate::optim::Exchanged;
use crate::shard::ShardLayout;

/// One rank's momentum, and what sends gradients as f32 beside the scheme of the run.
pub(super) struct Momentum {
    decay: f32,
    /// As of the last step that was taken.
    own: Vec<f32>,
    /// As it would be after this one.
    next: Vec<f32>,
    /// For steps of exact gradients.
    exact: Exchange,
}

impl Momentum {
    /// `None` for an optimizer that gradients travel to in every step.
    pub(super) fn new(config: &Config, layout: &ShardLayout, own: usize) -> Result<Option<Self>, SyncError> {
        let Some(decay) = config.optimizer.momentum_decay() else { return Ok(None) };
        let zeros = vec![0.0; layout.elements()];
        let (scheme, inner, backend) = (Codec::F32.into(), Codec::F32, Backend::Cpu);
        let config = Config { scheme, inner, backend, ..config.clone() };
        let exact = Exchange::new(&config, layout, own)?;
        Ok(Some(Self { decay, own: zeros.clone(), next: zeros, exact }))
    }

    /// Computes the momentum that `gradient` leads to.
    pub(super) fn prepare(&mut self, gradient: Gradient<'_>) {
        let (decay, gain) = (self.decay, 1.0 - self.decay);
        let Self { own, next, .. } = self;
        gradient.for_each_chunk(CHUNK, |start, values| {
            let range = start..start + values.len();
            for ((next, own), g) in next[range.clone()].iter_mut().zip(&own[range]).zip(values) {
                // Like the owner's, so that a single rank's momentum is that of its optimizer.
                *next = decay * *own + gain * g;
            }
        });
    }

    /// The step that [`prepare`](Self::prepare) was called for is taken.
    pub(super) fn commit(&mut self) {
        std::mem::swap(&mut self.own, &mut self.next);
    }

    pub(super) fn own(&self) -> &[f32] {
        &self.own
    }

    pub(super) fn set_own(&mut self, own: &[f32]) {
        self.own.copy_from_slice(own);
    }
}

/// What travels in this step, and what carries it.
pub(super) fn route<'a>(
    momentum: &'a mut Option<Momentum>,
    exchange: &'a mut Exchange,
    exchanged: Exchanged,
    gradient: Gradient<'a>,
) -> (&'a mut Exchange, Gradient<'a>) {
    match (momentum, exchanged) {
        (Some(momentum), Exchanged::ExactGradient) => (&mut momentum.exact, gradient),
        (Some(momentum), Exchanged::Momentum) => (exchange, Gradient::F32(&momentum.next)),
        _ => (exchange, gradient),
    }
}

//! How to synchronise: what all ranks choose alike, and where each computes.

use gradwire_transport::frame::MAX_PAYLOAD;

use super::powersgd::Shape;
use super::{Backend, Scheme, Shares};
use crate::codec::Codec;
use crate::optim;

/// Where the scale of a codec comes from that has one for the whole gradient (LoCo); others do not look at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// From the first step's root mean square over all ranks: about two codes. The one in the codec's parameters is
    /// ignored.
    Auto,
    /// From the codec's parameters.
    Fixed,
}

/// What to do with a step in which any rank's gradient has an element that is not finite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NonFinite {
    /// The same typed error on every rank, before any optimizer step. The default.
    #[default]
    Fail,
    /// No rank takes the step; the report says so, with the counts. What the step's codes stood for is lost: the
    /// residual has moved on as if they had been used. [`Scheme::PowerSgd`] keeps its error instead.
    Skip,
}

/// Where the owner of a shard keeps its master parameters and computes its optimizer step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OptimizerOn {
    /// On the CPU: the parameters of a run are the same bits whatever the backends are. The default.
    #[default]
    Cpu,
    /// On the device of [`Backend::Gpu`]; the CPU where the backend is the CPU, and for an optimizer without a kernel: all
    /// but [`AdamW`](optim::AdamW) and [`Sgd`](optim::Sgd). The mean then need not leave the device.
    ///
    /// All ranks of a run still have the same bits, as the owner's are sent to everyone; but floats on a device are not
    /// exact, so that a run with other devices or with CPUs differs in the last places.
    Device,
}

/// How to synchronise. All but `backend`, `optimizer_on` and what a rank [declares](Shares::Declared) of its speed must be equal
/// on all ranks, and is compared before the first step.
#[derive(Clone, Debug)]
pub struct Config {
    /// What the gradient travels as.
    pub scheme: Scheme,
    /// Where the matrices lie in the flat gradient; only [`Scheme::PowerSgd`] looks at it. Default none.
    pub shapes: Vec<Shape>,
    /// Where the codec's scale comes from. Default [`Scale::Auto`].
    pub scale: Scale,
    /// What computes the codec on this rank. [`Scheme::PowerSgd`] runs on the CPU.
    pub backend: Backend,
    /// What turns the mean gradient into parameters. Some optimizers have momenta travel in the codec, and gradients as
    /// f32 in some steps: see [`optim`].
    pub optimizer: optim::Config,
    /// Where it is computed on this rank. Default [`OptimizerOn::Cpu`].
    pub optimizer_on: OptimizerOn,
    /// What to do about NaN and infinity.
    pub nonfinite: NonFinite,
    /// Elements of each tensor in the parameters, in order, together all of them; only LAMB looks at them. Default: none
    /// named, which means that all parameters are one tensor.
    pub tensors: Vec<usize>,
    /// How large the shard of each rank is. Default [`Shares::Equal`].
    pub shares: Shares,
    /// Bytes of packets and parameters that travel as one piece, while the next is encoded and others are averaged: as many
    /// whole units of the codec (4 bytes of parameters) as that holds, but at least one, and at most 1 MiB. Default 1 MiB; less
    /// only makes sense in tests.
    pub piece_bytes: usize,
    /// The site of each rank, equal numbers for ranks that share a fast network: see [`hierarchy`](super::hierarchy). Default:
    /// none named, which means that all ranks exchange alike.
    pub sites: Vec<u32>,
    /// What gradients travel as inside a site: a codec without state and scale. Only looked at where there are sites. Default
    /// bf16.
    pub inner: Codec,
}

impl Config {
    /// An automatic scale, the codec on the CPU, and an error for a gradient that is not finite. Written as `Config { backend,
    /// ..Config::new(codec, optimizer) }`, a caller's code outlives new fields.
    #[must_use]
    pub fn new(scheme: impl Into<Scheme>, optimizer: optim::Config) -> Self {
        Self {
            scheme: scheme.into(),
            shapes: Vec::new(),
            scale: Scale::Auto,
            backend: Backend::Cpu,
            optimizer,
            optimizer_on: OptimizerOn::default(),
            nonfinite: NonFinite::default(),
            tensors: Vec::new(),
            shares: Shares::default(),
            piece_bytes: MAX_PAYLOAD,
            sites: Vec::new(),
            inner: Codec::Bf16,
        }
    }

    /// Where the tensors of `parameters` elements lie.
    pub(super) fn tensors(&self, parameters: usize) -> optim::Tensors {
        if self.tensors.is_empty() {
            optim::Tensors::whole(parameters)
        } else {
            optim::Tensors::new(&self.tensors)
        }
    }
}

//! Optimizers on the device: the host side of `shaders/optim`.
//!
//! # What
//!
//! The owner of a shard keeps its f32 master parameters and the optimizer's moments on the device. [`Optimizer`] takes
//! a mean gradient from the host; [`Owner`] takes the packets of all ranks and hands the mean from the codec's kernel
//! to the optimizer's without a way over the host: for LoCo in one kernel, for other codecs in one submission.
//!
//! # Exactness
//!
//! These kernels compute in f32, which no rule of WGSL makes exact: sums and products may be rounded either way, a
//! quotient may be off by 2.5 units in the last place (ULP), a root by that of `1 / inverseSqrt`, operations may be
//! fused, and subnormals may be zero. So **the owner of a shard computes its step once and everyone receives the
//! result**: the ranks of one run have the same bits, but another device in the owner's place gives other ones. Where
//! the parameters must be those of a run on CPUs, the optimizer belongs on the CPU.
//!
//! One step from the same numbers differs from the twin by no more than the rules allow. With `u = 2^-23`, the largest
//! that one ULP is in proportion to a number, and first-order terms:
//!
//! ```text
//! SGD    B = |momentum * velocity| + |g| + |weight_decay * p|
//!        velocity:  4.5 u * B
//!        parameter: 1.5 u * |p| + 7.5 u * learning_rate * B
//! AdamW  A = |beta1 * mean| + |(1 - beta1) * g|,  U = step_size * A / (sqrt(square * square_scale) + epsilon)
//!        mean:      3 u * A
//!        square:    4.5 u * square
//!        root:      8 u (6 u of its argument count half; inverseSqrt 2, quotient 2.5, the twin's rounding 0.5)
//!        parameter: 3 u * |p| + 18.5 u * U
//! ```
//!
//! (every operation counts 1 ULP on the device and half of one in the twin), so the tests allow 2 ULP of the parameter
//! and 8 of the update for SGD, 4 and 20 for AdamW. Mesa's lavapipe (22.3, x86-64) rounds as the twin does: not one bit
//! differs there. The mean itself stays exact: [`Owner`] computes it with integers, as the codec's own kernel does.
//!
//! A mean whose square overflows f32 (beyond 1.8e19) is outside of what WGSL defines, and of the bounds above.
//!
//! # Cost
//!
//! Device memory: 12 bytes per element for AdamW, 8 for SGD, and staging for one part. A step allocates no buffer.
//! [`Optimizer`] moves 4 bytes per element each way over the bus, [`Owner`] the packets one way and 4 bytes the other.

mod masters;
mod owner;

use std::ops::Range;

use wgpu::BufferUsages;

pub use self::owner::Owner;

use self::masters::{GROUP, Masters};
use super::buffer::{self, HEAD, HEAD_BYTES, Lane, Piece};
use super::error::check_length;
use super::kernel::{Kernel, Limits};
use super::source::{OPTIM_ADAMW, OPTIM_SGD, Shader};
use super::{Gpu, GpuError};
use crate::codec::Input;
use crate::optim::{self, Config};

/// Master parameters and moments of one shard, moved by a mean gradient from the host.
#[derive(Debug)]
pub struct Optimizer {
    masters: Masters,
    kernel: Kernel,
    mean: wgpu::Buffer,
    bindings: Vec<wgpu::BindGroup>,
    lanes: Vec<Lane>,
}

impl Optimizer {
    /// Puts `parameters` (any number) on `gpu`, with moments of zero.
    ///
    /// # Errors
    ///
    /// [`GpuError::Optimizer`], [`GpuError::NoOptimizerKernel`], [`GpuError::OutOfMemory`], and those of a failing device.
    pub fn new(gpu: &Gpu, config: &Config, parameters: &[f32]) -> Result<Self, GpuError> {
        Self::with_limits(gpu, config, parameters, Limits::of(gpu))
    }

    /// As [`Optimizer::new`], cutting the work to `limits` instead of what the adapter has.
    ///
    /// # Errors
    ///
    /// As [`Optimizer::new`].
    pub fn with_limits(
        gpu: &Gpu,
        config: &Config,
        parameters: &[f32],
        limits: Limits,
    ) -> Result<Self, GpuError> {
        config.validate()?;
        Self::with_kernel(gpu, config, parameters, limits, gpu.kernel(shader(config)?, Input::F32)?)
    }

    /// With another shader text: only to prove that the tests notice a wrong one.
    #[doc(hidden)]
    pub fn with_source(
        gpu: &Gpu,
        config: &Config,
        parameters: &[f32],
        limits: Limits,
        text: &str,
    ) -> Result<Self, GpuError> {
        Self::with_kernel(gpu, config, parameters, limits, Kernel::compile(gpu, "edited optim", text)?)
    }

    fn with_kernel(
        gpu: &Gpu,
        config: &Config,
        parameters: &[f32],
        limits: Limits,
        kernel: Kernel,
    ) -> Result<Self, GpuError> {
        let masters = Masters::new(gpu, config, parameters, limits, GROUP)?;
        let bytes = 4 * masters.longest() as u64;
        let mean = buffer::device_buffer(gpu, "mean", bytes, BufferUsages::STORAGE)?;
        let bindings = masters.bind(&kernel, &[Some(&mean), None])?;
        let lanes = lanes(gpu, &masters, bytes)?;
        Ok(Self { masters, kernel, mean, bindings, lanes })
    }

    /// Number of elements of the shard.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.masters.elements()
    }

    /// One step: moves the master parameters against `mean`, and copies them into `parameters`.
    ///
    /// Both have [`Optimizer::elements`] elements; `learning_rate` is finite and not negative.
    /// Twin: [`crate::optim::State::step`].
    ///
    /// # Errors
    ///
    /// [`GpuError::Length`] and [`GpuError::Optimizer`] before anything is changed. After any other error the state is
    /// unknown, and every later call is [`GpuError::Broken`] until [`Optimizer::restore`].
    pub fn step(&mut self, learning_rate: f32, mean: &[f32], parameters: &mut [f32]) -> Result<(), GpuError> {
        check_length("mean", "elements", self.elements(), mean.len())?;
        check_length("parameters", "elements", self.elements(), parameters.len())?;
        let coefficients = self.masters.begin(learning_rate)?;
        self.run(&coefficients, mean, parameters)?;
        self.masters.end();
        Ok(())
    }

    fn run(&mut self, coefficients: &[f32; 8], mean: &[f32], parameters: &mut [f32]) -> Result<(), GpuError> {
        let Self { masters, kernel, mean: given, bindings, lanes } = self;
        let gpu = masters.gpu();
        let longest = masters.longest();
        let mut take = |start: usize, bytes: &[u8]| masters.take(start, longest, bytes, parameters);
        let lane_count = lanes.len().max(1);
        for (index, binding) in bindings.iter().enumerate() {
            let lane = &mut lanes[index % lane_count];
            lane.land(gpu, &mut take)?;
            let span = masters.span(index * longest, longest);
            let (grid, padded_bytes) = (span.grid, span.padded_bytes);
            let head = span.head(0, 0, 0, coefficients);
            let values: &[u8] = bytemuck::cast_slice(&mean[span.elements.clone()]);
            // An upload buffer holds the last step's mean: the padding of a short group must be zero again.
            let pieces = [
                Piece { at: 0, bytes: bytemuck::cast_slice(&head), zeros: 0 },
                Piece { at: HEAD, bytes: values, zeros: padded_bytes - values.len() },
            ];
            lane.submit(gpu, span.elements.start, pieces, |encoder, upload, readback| {
                encoder.copy_buffer_to_buffer(upload, 0, masters.params(), 0, HEAD_BYTES);
                encoder.copy_buffer_to_buffer(upload, HEAD_BYTES, given, 0, padded_bytes as u64);
                kernel.dispatch(encoder, binding, grid);
                masters.copy_out(&span, encoder, readback, 0);
            })?;
        }
        for lane in lanes {
            lane.land(gpu, &mut take)?;
        }
        Ok(())
    }

    /// A copy of the master parameters.
    ///
    /// # Errors
    ///
    /// [`GpuError::Broken`] after a failed step; those of a failing device.
    pub fn parameters(&self) -> Result<Vec<f32>, GpuError> {
        self.masters.parameters()
    }

    /// A copy of the moments, as the CPU has them: for a checkpoint, which either may go on from.
    ///
    /// # Errors
    ///
    /// [`GpuError::Broken`] after a failed step; those of a failing device.
    pub fn state(&self) -> Result<optim::State, GpuError> {
        self.masters.state()
    }

    /// Replaces parameters and moments, and goes on with the state's configuration: from a checkpoint, or after a failed
    /// step.
    ///
    /// # Errors
    ///
    /// [`GpuError::Length`]; [`GpuError::OptimizerKind`] for the state of another optimizer; [`GpuError::Optimizer`]; those
    /// of a failing device.
    pub fn restore(&mut self, parameters: &[f32], state: &optim::State) -> Result<(), GpuError> {
        if self.masters.restore(parameters, state)? {
            // Whatever the failed step left in flight must not land in the next one.
            self.lanes = lanes(self.masters.gpu(), &self.masters, self.mean.size())?;
        }
        self.masters.end();
        Ok(())
    }
}

/// Whether there is a kernel for the optimizer; the others have their momenta travel, and run on the CPU.
#[must_use]
pub fn has_optimizer(config: &Config) -> bool {
    shader(config).is_ok()
}

fn shader(config: &Config) -> Result<&'static Shader, GpuError> {
    match config {
        Config::AdamW(_) => Ok(&OPTIM_ADAMW),
        Config::Sgd(_) => Ok(&OPTIM_SGD),
        Config::OneBitAdam(_) | Config::OneBitLamb(_) | Config::ZeroOneAdam(_) => Err(no_kernel(config)),
    }
}

fn no_kernel(config: &Config) -> GpuError {
    GpuError::NoOptimizerKernel { optimizer: config.name() }
}

/// Staging for one part at a time; a second one, if there are more parts, so that copying overlaps the kernel.
fn lanes(gpu: &Gpu, masters: &Masters, bytes: u64) -> Result<Vec<Lane>, GpuError> {
    (0..masters.parts().min(2)).map(|_| Lane::new(gpu, bytes, bytes)).collect()
}

/// Groups that the elements of `range` need, which starts on one; the last may be padded.
fn groups(range: &Range<usize>) -> usize {
    range.len().div_ceil(GROUP)
}

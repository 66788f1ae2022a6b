//! What the owner of a shard keeps on the device: parameters, moments, and how far the bias corrections are.

use std::ops::Range;

use wgpu::{BufferUsages, CommandEncoder};

use super::super::buffer::{self, HEAD_BYTES};
use super::super::error::check_length;
use super::super::kernel::{Grid, Kernel, Limits};
use super::super::{Gpu, GpuError};
use super::{groups, no_kernel};
use crate::optim::{self, AdamW, Config, Sgd, State, adam, sgd};

/// Elements that one invocation moves.
pub(super) const GROUP: usize = 8;

/// Groups that one workgroup takes.
const WORKGROUP: u32 = 256;

/// Words of the shaders' `Params`.
pub(super) const HEAD_WORDS: usize = 15;

#[derive(Debug)]
pub(super) struct Masters {
    gpu: Gpu,
    limits: Limits,
    clock: Clock,
    elements: usize,
    /// Elements of every part but the last.
    longest: usize,
    parts: Vec<Part>,
    params: wgpu::Buffer,
    /// A step began and did not end.
    broken: bool,
}

/// A run of elements that fits one binding.
#[derive(Debug)]
struct Part {
    elements: Range<usize>,
    parameters: wgpu::Buffer,
    moments: wgpu::Buffer,
}

impl Part {
    /// The elements of each group; in `moments`, those of each moment lie one behind the other.
    fn groups(&self) -> impl Iterator<Item = Range<usize>> {
        let Range { start, end } = self.elements;
        (start..end).step_by(GROUP).map(move |first| first..end.min(first + GROUP))
    }
}

/// What makes the coefficients of the next step.
#[derive(Clone, Copy, Debug)]
enum Clock {
    AdamW(AdamW, adam::Powers),
    Sgd(Sgd),
}

impl Clock {
    fn of(config: &Config) -> Result<Self, GpuError> {
        match *config {
            Config::AdamW(config) => Ok(Self::AdamW(config, adam::Powers::START)),
            Config::Sgd(config) => Ok(Self::Sgd(config)),
            Config::OneBitAdam(_) | Config::OneBitLamb(_) | Config::ZeroOneAdam(_) => Err(no_kernel(config)),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::AdamW(config, _) => Config::AdamW(config).name(),
            Self::Sgd(config) => Config::Sgd(config).name(),
        }
    }

    /// In the order that the shader's `Params` has them.
    fn next(&mut self, learning_rate: f32) -> [f32; 8] {
        match self {
            Self::AdamW(config, powers) => {
                let c = powers.next(config, learning_rate);
                [c.beta1, c.rest1, c.beta2, c.rest2, c.epsilon, c.step_size, c.square_scale, c.keep]
            }
            Self::Sgd(config) => {
                let c = sgd::Coefficients::new(config, learning_rate);
                [c.momentum, c.weight_decay, c.learning_rate, 0.0, 0.0, 0.0, 0.0, 0.0]
            }
        }
    }

    /// Moments per element.
    fn moments(self) -> usize {
        match self {
            Self::AdamW(..) => 2,
            Self::Sgd(_) => 1,
        }
    }
}

/// The elements of one dispatch, all in one part.
#[derive(Clone, Debug)]
pub(super) struct Span {
    pub(super) elements: Range<usize>,
    pub(super) grid: Grid,
    /// Bytes of its elements as f32, up to whole groups.
    pub(super) padded_bytes: usize,
    pub(super) part: usize,
    /// First group within the part.
    first: usize,
}

impl Span {
    /// The uniform of both shaders: integers, then the optimizer's numbers. `skip` groups of a given mean come first;
    /// `ranks` and `scale` are for a mean that the kernel makes.
    pub(super) fn head(
        &self,
        skip: usize,
        ranks: usize,
        scale: u32,
        numbers: &[f32; 8],
    ) -> [u32; HEAD_WORDS] {
        let mut head = [0; HEAD_WORDS];
        let word = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        let (units, elements) = (word(groups(&self.elements)), word(self.elements.len()));
        let integers = [units, self.grid.columns, word(ranks), elements, scale, word(skip), word(self.first)];
        head[..7].copy_from_slice(&integers);
        for (word, number) in head[7..].iter_mut().zip(numbers) {
            *word = number.to_bits();
        }
        head
    }
}

impl Masters {
    /// Parts are whole multiples of `unit` elements, itself one of [`GROUP`].
    pub(super) fn new(
        gpu: &Gpu,
        config: &Config,
        parameters: &[f32],
        limits: Limits,
        unit: usize,
    ) -> Result<Self, GpuError> {
        config.validate()?;
        gpu.check_alive()?;
        let clock = Clock::of(config)?;
        let elements = parameters.len();
        let fitting = limits.units(GROUP, 4 * GROUP * clock.moments()) * GROUP;
        // A shard without elements has no part, but still valid buffers.
        let longest = (fitting / unit).max(1) * unit;
        let longest = longest.min(elements.next_multiple_of(unit)).max(GROUP);
        let params = buffer::device_buffer(gpu, "params", HEAD_BYTES, BufferUsages::UNIFORM)?;
        let mut parts = Vec::new();
        for start in (0..elements).step_by(longest) {
            let range = start..elements.min(start + longest);
            let bytes = 4 * (groups(&range) * GROUP) as u64;
            let storage = |label, bytes| buffer::device_buffer(gpu, label, bytes, BufferUsages::STORAGE);
            let moments = storage("moments", clock.moments() as u64 * bytes)?;
            parts.push(Part { elements: range, parameters: storage("parameters", bytes)?, moments });
        }
        let gpu = gpu.clone();
        let masters = Self { gpu, limits, clock, elements, longest, parts, params, broken: false };
        masters.write_parameters(parameters)?;
        Ok(masters)
    }

    pub(super) fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    pub(super) fn limits(&self) -> Limits {
        self.limits
    }

    pub(super) fn elements(&self) -> usize {
        self.elements
    }

    pub(super) fn longest(&self) -> usize {
        self.longest
    }

    pub(super) fn parts(&self) -> usize {
        self.parts.len()
    }

    pub(super) fn params(&self) -> &wgpu::Buffer {
        &self.params
    }

    /// One bind group per part, with the buffers of the mean at bindings 1 and 2.
    pub(super) fn bind(
        &self,
        kernel: &Kernel,
        mean: &[Option<&wgpu::Buffer>; 2],
    ) -> Result<Vec<wgpu::BindGroup>, GpuError> {
        let bind = |part: &Part| {
            let own = [Some(&part.parameters), Some(&part.moments)];
            kernel.bind(&self.gpu, &[Some(&self.params), mean[0], mean[1], own[0], own[1]])
        };
        self.parts.iter().map(bind).collect()
    }

    /// Starts a step: until [`Self::end`] the state is unknown.
    pub(super) fn begin(&mut self, learning_rate: f32) -> Result<[f32; 8], GpuError> {
        optim::check_learning_rate(learning_rate)?;
        self.check_whole()?;
        self.broken = true;
        Ok(self.clock.next(learning_rate))
    }

    pub(super) fn end(&mut self) {
        self.broken = false;
    }

    /// At most `elements` elements (whole groups) from `start` on, within one part.
    pub(super) fn span(&self, start: usize, elements: usize) -> Span {
        let part = start / self.longest;
        let end = self.elements.min(start + elements).min((part + 1) * self.longest);
        let groups = groups(&(start..end));
        let grid = self.limits.grid(u32::try_from(groups).unwrap_or(u32::MAX), WORKGROUP);
        let first = (start - part * self.longest) / GROUP;
        Span { elements: start..end, grid, padded_bytes: 4 * GROUP * groups, part, first }
    }

    /// Records the copy of a span's new parameters to byte `at` of `readback`.
    pub(super) fn copy_out(
        &self,
        span: &Span,
        encoder: &mut CommandEncoder,
        readback: &wgpu::Buffer,
        at: u64,
    ) {
        let from = 4 * (GROUP * span.first) as u64;
        let source = &self.parts[span.part].parameters;
        encoder.copy_buffer_to_buffer(source, from, readback, at, span.padded_bytes as u64);
    }

    /// What [`Self::copy_out`] copied of the span at `start`, into the caller's `parameters`.
    pub(super) fn take(&self, start: usize, elements: usize, bytes: &[u8], parameters: &mut [f32]) {
        let target: &mut [u8] =
            bytemuck::cast_slice_mut(&mut parameters[self.span(start, elements).elements]);
        target.copy_from_slice(&bytes[..target.len()]);
    }

    pub(super) fn parameters(&self) -> Result<Vec<f32>, GpuError> {
        self.check_whole()?;
        let mut parameters = vec![0.0; self.elements];
        for part in &self.parts {
            let target: &mut [u8] = bytemuck::cast_slice_mut(&mut parameters[part.elements.clone()]);
            buffer::read(&self.gpu, &part.parameters, |bytes| {
                target.copy_from_slice(&bytes[..target.len()])
            })?;
        }
        Ok(parameters)
    }

    pub(super) fn state(&self) -> Result<State, GpuError> {
        self.check_whole()?;
        let mut moments = vec![vec![0.0; self.elements]; self.clock.moments()];
        for part in &self.parts {
            buffer::read(&self.gpu, &part.moments, |bytes| {
                let mut bytes = bytes.chunks_exact(4 * GROUP);
                for group in part.groups() {
                    for (moment, bytes) in moments.iter_mut().zip(&mut bytes) {
                        let target: &mut [u8] = bytemuck::cast_slice_mut(&mut moment[group.clone()]);
                        target.copy_from_slice(&bytes[..target.len()]);
                    }
                }
            })?;
        }
        let mut moments = moments.into_iter();
        let mut next = || moments.next().unwrap_or_default();
        Ok(match self.clock {
            Clock::AdamW(config, powers) => {
                State::AdamW(adam::State { config, powers, mean: next(), square: next() })
            }
            Clock::Sgd(config) => State::Sgd(sgd::State { config, velocity: next() }),
        })
    }

    /// Whether a step had failed before. The state is unknown until [`Self::end`].
    pub(super) fn restore(&mut self, parameters: &[f32], state: &State) -> Result<bool, GpuError> {
        check_length("parameters", "elements", self.elements, parameters.len())?;
        let (ours, theirs) = (self.clock.name(), state.config().name());
        if ours != theirs {
            return Err(GpuError::OptimizerKind { expected: ours, given: theirs });
        }
        state.config().validate()?;
        let (clock, moments) = match state {
            State::AdamW(state) => {
                let moments = vec![("mean", &state.mean), ("square", &state.square)];
                (Clock::AdamW(state.config, state.powers), moments)
            }
            State::Sgd(state) => (Clock::Sgd(state.config), vec![("velocity", &state.velocity)]),
            State::OneBit(_) | State::OneBitLamb(_) => return Err(no_kernel(&state.config())),
        };
        for (name, moment) in &moments {
            check_length(name, "elements", self.elements, moment.len())?;
        }
        let before = self.broken;
        self.broken = true;
        self.clock = clock;
        self.write_parameters(parameters)?;
        for part in &self.parts {
            let mut words = Vec::with_capacity(moments.len() * part.elements.len().next_multiple_of(GROUP));
            for group in part.groups() {
                for (_, moment) in &moments {
                    words.extend_from_slice(&moment[group.clone()]);
                    words.resize(words.len().next_multiple_of(GROUP), 0.0);
                }
            }
            self.write(&part.moments, &words)?;
        }
        Ok(before)
    }

    fn write_parameters(&self, parameters: &[f32]) -> Result<(), GpuError> {
        self.parts
            .iter()
            .try_for_each(|part| self.write(&part.parameters, &parameters[part.elements.clone()]))
    }

    fn write(&self, buffer: &wgpu::Buffer, values: &[f32]) -> Result<(), GpuError> {
        self.gpu.guard(|_| {
            self.gpu.queue().write_buffer(buffer, 0, bytemuck::cast_slice(values));
            Ok(())
        })
    }

    fn check_whole(&self) -> Result<(), GpuError> {
        if self.broken { Err(GpuError::Broken { adapter: self.gpu.info().name.clone() }) } else { Ok(()) }
    }
}

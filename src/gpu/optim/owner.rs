//! Mean and optimizer without a way over the host.

use std::ops::Range;

use wgpu::BufferUsages;

use super::super::buffer::{self, HEAD, HEAD_BYTES, Lane, Piece};
use super::super::codec::{Average, THEN, Then, check_codec};
use super::super::error::check_length;
use super::super::kernel::{Kernel, Limits};
use super::super::method;
use super::super::{Gpu, GpuError};
use super::masters::{GROUP, HEAD_WORDS, Masters, Span};
use super::shader;
use crate::codec::{Codec, Input};
use crate::optim::{self, Config};

/// What the owner of a shard does with the packets of all ranks: averages them, and moves its master parameters.
///
/// A call allocates no buffer unless it brings more ranks than any before.
#[derive(Debug)]
pub struct Owner {
    masters: Masters,
    codec: Codec,
    way: Way,
}

#[derive(Debug)]
enum Way {
    /// One kernel reads packets and writes parameters.
    One { kernel: Kernel, inbox: Option<Box<Inbox>> },
    /// The optimizer's kernel reads the buffer that the codec's wrote.
    Two { average: Box<Average>, kernel: Kernel, bound: Option<Bound> },
}

/// Where packets arrive for [`Way::One`].
#[derive(Debug)]
struct Inbox {
    /// Most ranks that a call may bring.
    ranks: usize,
    /// Elements of the longest dispatch.
    longest: usize,
    packets: wgpu::Buffer,
    weights: wgpu::Buffer,
    bindings: Vec<wgpu::BindGroup>,
    lanes: [Lane; 2],
}

/// The optimizer's bind groups for the buffer of the mean, which is another one when more ranks come.
#[derive(Debug)]
struct Bound {
    mean: wgpu::Buffer,
    bindings: Vec<wgpu::BindGroup>,
}

impl Owner {
    /// Puts `parameters` (any number) on `gpu`, with moments of zero, for packets of `codec`.
    ///
    /// # Errors
    ///
    /// [`GpuError::Config`], [`GpuError::Optimizer`], [`GpuError::NoOptimizerKernel`],
    /// [`GpuError::OutOfMemory`], and those of a failing device.
    pub fn new(gpu: &Gpu, codec: &Codec, config: &Config, parameters: &[f32]) -> Result<Self, GpuError> {
        Self::with_limits(gpu, codec, config, parameters, Limits::of(gpu))
    }

    /// As [`Owner::new`], cutting the work to `limits` instead of what the adapter has.
    ///
    /// # Errors
    ///
    /// As [`Owner::new`].
    pub fn with_limits(
        gpu: &Gpu,
        codec: &Codec,
        config: &Config,
        parameters: &[f32],
        limits: Limits,
    ) -> Result<Self, GpuError> {
        Self::make(gpu, codec, config, parameters, limits, true)
    }

    /// Two kernels also where one would do: only to prove that both ways give the same bits.
    #[doc(hidden)]
    pub fn with_two_kernels(
        gpu: &Gpu,
        codec: &Codec,
        config: &Config,
        parameters: &[f32],
        limits: Limits,
    ) -> Result<Self, GpuError> {
        Self::make(gpu, codec, config, parameters, limits, false)
    }

    fn make(
        gpu: &Gpu,
        codec: &Codec,
        config: &Config,
        parameters: &[f32],
        limits: Limits,
        fuse: bool,
    ) -> Result<Self, GpuError> {
        codec.validate()?;
        let masters = Masters::new(gpu, config, parameters, limits, codec.unit().elements)?;
        let fused = method::average_step(codec, config, 1).filter(|_| fuse);
        let way = if let Some(method) = fused {
            Way::One { kernel: gpu.kernel(&method.shader, Input::F32)?, inbox: None }
        } else {
            // A part of the mean then touches at most two of the masters.
            let binding_bytes = limits.binding_bytes.min(4 * masters.longest() as u64);
            let average =
                Average::with_limits(gpu, codec, parameters.len(), Limits { binding_bytes, ..limits })?;
            let kernel = gpu.kernel(shader(config)?, Input::F32)?;
            Way::Two { average: Box::new(average), kernel, bound: None }
        };
        Ok(Self { masters, codec: *codec, way })
    }

    /// Number of elements of the shard.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.masters.elements()
    }

    /// One step: moves the master parameters against the weighted mean of one packet per rank, in rank order, and copies
    /// them into `parameters`, which has [`Owner::elements`] elements.
    ///
    /// `codec`, `packets` and `weights` as for [`Average::average`]; `learning_rate` is finite and not negative.
    /// Twins: [`Codec::average`], then [`crate::optim::State::step`].
    ///
    /// # Errors
    ///
    /// [`GpuError::Length`], [`GpuError::Config`], [`GpuError::Codec`], [`GpuError::Average`] and [`GpuError::Optimizer`]
    /// before anything is changed. After any other error the state is unknown, and every later call is
    /// [`GpuError::Broken`] until [`Owner::restore`] (and [`Owner::set_mean_state`] for a codec with such a state).
    pub fn step(
        &mut self,
        codec: &Codec,
        packets: &[&[u32]],
        weights: &[u32],
        learning_rate: f32,
        parameters: &mut [f32],
    ) -> Result<(), GpuError> {
        check_length("parameters", "elements", self.elements(), parameters.len())?;
        check_codec(&self.codec, codec)?;
        let total = codec.check(packets, weights, self.elements())?;
        if let Way::Two { average, .. } = &self.way {
            average.check_ready(packets.len())?;
        }
        let numbers = self.masters.begin(learning_rate)?;
        let Self { masters, way, .. } = self;
        match way {
            _ if parameters.is_empty() => {}
            Way::One { kernel, inbox } => {
                let scale = method::average(codec, total).words[0];
                // Only a call that ran to its end leaves buffers that the next one can trust.
                let mut own = match inbox.take().filter(|inbox| inbox.ranks >= packets.len()) {
                    Some(inbox) => inbox,
                    None => Box::new(Inbox::new(masters, kernel, codec, packets.len())?),
                };
                own.run(
                    masters,
                    kernel,
                    codec,
                    packets,
                    weights,
                    |span| span.head(0, packets.len(), scale, &numbers),
                    parameters,
                )?;
                *inbox = Some(own);
            }
            Way::Two { average, kernel, bound } => {
                let mut moves = Moves { masters, kernel, bound, numbers, parameters };
                average.average_then(codec, packets, weights, &mut moves)?;
            }
        }
        self.masters.end();
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

    /// Replaces parameters and moments, as [`Optimizer::restore`](super::Optimizer::restore) does.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn restore(&mut self, parameters: &[f32], state: &optim::State) -> Result<(), GpuError> {
        self.masters.restore(parameters, state)?;
        self.masters.end();
        Ok(())
    }

    /// The codec's state for means, as [`Average::state`] gives it.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn mean_state(&self) -> Result<Vec<u32>, GpuError> {
        match &self.way {
            Way::One { .. } => Ok(Vec::new()),
            Way::Two { average, .. } => average.state(),
        }
    }

    /// Replaces it, as [`Average::set_state`] does.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn set_mean_state(&mut self, state: &[u32]) -> Result<(), GpuError> {
        match &mut self.way {
            Way::One { .. } => check_length("state", "words", 0, state.len()),
            Way::Two { average, .. } => average.set_state(state),
        }
    }
}

impl Inbox {
    fn new(masters: &Masters, kernel: &Kernel, codec: &Codec, ranks: usize) -> Result<Self, GpuError> {
        let (gpu, unit) = (masters.gpu(), codec.unit());
        let fitting = masters.limits().units(unit.elements, 4 * unit.words * ranks);
        let units = fitting.min(masters.longest() / unit.elements).max(1);
        let packet_bytes = (4 * unit.words * ranks * units) as u64;
        let packets = buffer::device_buffer(gpu, "packets", packet_bytes, BufferUsages::STORAGE)?;
        let weights = buffer::device_buffer(gpu, "weights", 4 * ranks as u64, BufferUsages::STORAGE)?;
        let bindings = masters.bind(kernel, &[Some(&packets), Some(&weights)])?;
        let longest = units * unit.elements;
        let lane = || Lane::new(gpu, 4 * ranks as u64 + packet_bytes, 4 * longest as u64);
        Ok(Self { ranks, longest, lanes: [lane()?, lane()?], packets, weights, bindings })
    }

    #[expect(clippy::too_many_arguments, reason = "one step has that many parts")]
    fn run(
        &mut self,
        masters: &Masters,
        kernel: &Kernel,
        codec: &Codec,
        packets: &[&[u32]],
        weights: &[u32],
        head: impl Fn(&Span) -> [u32; HEAD_WORDS],
        parameters: &mut [f32],
    ) -> Result<(), GpuError> {
        let Self { longest, packets: rows, weights: row_weights, bindings, lanes, .. } = self;
        let (gpu, unit, longest) = (masters.gpu(), codec.unit(), *longest);
        let mut take = |start: usize, bytes: &[u8]| masters.take(start, longest, bytes, parameters);
        let (mut start, mut turn) = (0, 0);
        while start < masters.elements() {
            let lane = &mut lanes[turn % 2];
            lane.land(gpu, &mut take)?;
            let span = masters.span(start, longest);
            let head = head(&span);
            let first_word = start / unit.elements * unit.words;
            let words = first_word..first_word + codec.packet_words(span.elements.len());
            let row = 4 * unit.words * span.elements.len().div_ceil(unit.elements);
            let first_row = HEAD + 4 * weights.len();
            let rows_of_ranks = packets.iter().enumerate().map(|(rank, packet)| {
                let bytes: &[u8] = bytemuck::cast_slice(&packet[words.clone()]);
                Piece { at: first_row + rank * row, bytes, zeros: row - bytes.len() }
            });
            let pieces = [
                Piece { at: 0, bytes: bytemuck::cast_slice(&head), zeros: 0 },
                Piece { at: HEAD, bytes: bytemuck::cast_slice(weights), zeros: 0 },
            ];
            let (weight_bytes, all_rows) = (4 * weights.len() as u64, (row * packets.len()) as u64);
            lane.submit(gpu, start, pieces.into_iter().chain(rows_of_ranks), |encoder, upload, readback| {
                encoder.copy_buffer_to_buffer(upload, 0, masters.params(), 0, HEAD_BYTES);
                encoder.copy_buffer_to_buffer(upload, HEAD_BYTES, row_weights, 0, weight_bytes);
                encoder.copy_buffer_to_buffer(upload, first_row as u64, rows, 0, all_rows);
                kernel.dispatch(encoder, &bindings[span.part], span.grid);
                masters.copy_out(&span, encoder, readback, 0);
            })?;
            (start, turn) = (span.elements.end, turn + 1);
        }
        for lane in lanes {
            lane.land(gpu, &mut take)?;
        }
        Ok(())
    }
}

/// The optimizer after a mean.
struct Moves<'a> {
    masters: &'a Masters,
    kernel: &'a Kernel,
    bound: &'a mut Option<Bound>,
    numbers: [f32; 8],
    parameters: &'a mut [f32],
}

/// Bytes of the upload for each of a part's two dispatches.
const EACH: usize = THEN / 2;

impl Moves<'_> {
    /// The one or two parts of the masters that `elements` lie in.
    fn spans(&self, elements: &Range<usize>) -> [Option<Span>; 2] {
        let span =
            |start: usize| (start < elements.end).then(|| self.masters.span(start, elements.end - start));
        let first = span(elements.start);
        let second = first.as_ref().and_then(|first| span(first.elements.end));
        [first, second]
    }
}

impl Then for Moves<'_> {
    fn begin(&mut self, mean: &wgpu::Buffer) -> Result<(), GpuError> {
        if self.bound.as_ref().is_none_or(|bound| bound.mean != *mean) {
            let bindings = self.masters.bind(self.kernel, &[Some(mean), None])?;
            *self.bound = Some(Bound { mean: mean.clone(), bindings });
        }
        Ok(())
    }

    fn head(&self, elements: &Range<usize>) -> [u32; THEN / 4] {
        const { assert!(4 * HEAD_WORDS <= EACH, "two dispatches have their parameters in one upload") };
        let mut heads = [0; THEN / 4];
        for (target, span) in heads.chunks_mut(EACH / 4).zip(self.spans(elements).into_iter().flatten()) {
            let skip = (span.elements.start - elements.start) / GROUP;
            target[..HEAD_WORDS].copy_from_slice(&span.head(skip, 0, 0, &self.numbers));
        }
        heads
    }

    fn record(
        &self,
        elements: &Range<usize>,
        encoder: &mut wgpu::CommandEncoder,
        upload: &wgpu::Buffer,
        _mean: &wgpu::Buffer,
        readback: &wgpu::Buffer,
    ) {
        let Some(Bound { bindings, .. }) = &*self.bound else { return };
        for (index, span) in self.spans(elements).into_iter().flatten().enumerate() {
            let head = (THEN + index * EACH) as u64;
            encoder.copy_buffer_to_buffer(upload, head, self.masters.params(), 0, EACH as u64);
            self.kernel.dispatch(encoder, &bindings[span.part], span.grid);
            let at = 4 * (span.elements.start - elements.start) as u64;
            self.masters.copy_out(&span, encoder, readback, at);
        }
    }

    fn take(&mut self, elements: Range<usize>, bytes: &[u8]) {
        let target: &mut [u8] = bytemuck::cast_slice_mut(&mut self.parameters[elements]);
        target.copy_from_slice(&bytes[..target.len()]);
    }
}

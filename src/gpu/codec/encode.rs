//! The host side of `shaders/<codec>/encode.wgsl`.

use wgpu::BufferUsages;

use super::super::buffer::{self, HEAD, HEAD_BYTES, Lane, Piece};
use super::super::error::check_length;
use super::super::kernel::{Kernel, Limits};
use super::super::method::{self, Method};
use super::super::{Gpu, GpuError};
use super::{Cut, Span, check_codec};
use crate::codec::{Codec, Gradient, Input, Stats, Step};

/// Bytes of `stats` in front of the packet in the readback buffer.
const STATS_BYTES: u64 = 8;

/// One rank's encoder: the state of its codec, on the device.
///
/// Not tied to a thread; needs `&mut` because a step changes the state. A step allocates no buffer: there are those
/// of one part (at most [`Limits::PART_BYTES`] of gradient, and its packet), two staging buffers for each of two parts,
/// so that copying the next part in overlaps the kernel on this one, and the state.
#[derive(Debug)]
pub struct Encode {
    gpu: Gpu,
    kernel: Kernel,
    limits: Limits,
    codec: Codec,
    input: Input,
    elements: usize,
    parts: Vec<Part>,
    lanes: Vec<Lane>,
    params: wgpu::Buffer,
    gradient: wgpu::Buffer,
    packet: wgpu::Buffer,
    stats: wgpu::Buffer,
    /// A call failed midway.
    broken: bool,
}

/// What one dispatch encodes.
#[derive(Debug)]
struct Part {
    span: Span,
    /// `None` of a codec without state.
    state: Option<wgpu::Buffer>,
    binding: wgpu::BindGroup,
}

impl Encode {
    /// An encoder of `codec` with a zero state for `elements` elements (any number) of type `input` on `gpu`.
    ///
    /// # Errors
    ///
    /// [`GpuError::Config`], [`GpuError::OutOfMemory`], and those of a failing device.
    pub fn new(gpu: &Gpu, codec: &Codec, input: Input, elements: usize) -> Result<Self, GpuError> {
        Self::with_limits(gpu, codec, input, elements, Limits::of(gpu))
    }

    /// As [`Encode::new`], cutting the work to `limits` instead of what the adapter has: for small devices, and for
    /// tests of the cutting.
    ///
    /// # Errors
    ///
    /// As [`Encode::new`].
    pub fn with_limits(
        gpu: &Gpu,
        codec: &Codec,
        input: Input,
        elements: usize,
        limits: Limits,
    ) -> Result<Self, GpuError> {
        let kernel = gpu.kernel(&method::encode(codec, Step::FIRST).shader, input)?;
        Self::with_kernel(gpu, codec, input, elements, limits, kernel)
    }

    /// With another shader text: only to prove that the tests notice a wrong one.
    #[doc(hidden)]
    pub fn with_source(
        gpu: &Gpu,
        codec: &Codec,
        input: Input,
        elements: usize,
        limits: Limits,
        text: &str,
    ) -> Result<Self, GpuError> {
        let kernel = Kernel::compile(gpu, "edited encode", text)?;
        Self::with_kernel(gpu, codec, input, elements, limits, kernel)
    }

    fn with_kernel(
        gpu: &Gpu,
        codec: &Codec,
        input: Input,
        elements: usize,
        limits: Limits,
        kernel: Kernel,
    ) -> Result<Self, GpuError> {
        codec.validate()?;
        gpu.check_alive()?;
        let unit = codec.unit();
        let gradient_bytes = unit.elements * input.bytes();
        let largest = gradient_bytes.max(4 * unit.words).max(4 * unit.state_words);
        let cut = Cut { unit, elements, part: limits.units(unit.elements, largest) };
        let storage =
            |label, bytes: usize| buffer::device_buffer(gpu, label, bytes as u64, BufferUsages::STORAGE);
        let params = buffer::device_buffer(gpu, "params", HEAD_BYTES, BufferUsages::UNIFORM)?;
        let gradient = storage("gradient", cut.longest() * gradient_bytes)?;
        let packet = storage("packet", cut.longest() * 4 * unit.words)?;
        let stats = storage("stats", 8)?;
        let mut parts = Vec::new();
        for span in cut.spans() {
            let state_bytes = span.units.len() * 4 * unit.state_words;
            let state = if state_bytes == 0 { None } else { Some(storage("state", state_bytes)?) };
            let buffers = [Some(&params), Some(&gradient), state.as_ref(), Some(&packet), Some(&stats)];
            let binding = kernel.bind(gpu, &buffers)?;
            parts.push(Part { span, state, binding });
        }
        let lanes = lanes(gpu, parts.len(), &gradient, &packet)?;
        Ok(Self {
            gpu: gpu.clone(),
            kernel,
            limits,
            codec: *codec,
            input,
            elements,
            parts,
            lanes,
            params,
            gradient,
            packet,
            stats,
            broken: false,
        })
    }

    /// Number of elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.elements
    }

    /// Takes gradients of type `input` from now on. Nothing happens if it does already; else buffers are made anew, and
    /// the state goes on.
    ///
    /// # Errors
    ///
    /// Those of [`Encode::new`] and [`Encode::state`], without any change.
    pub fn set_input(&mut self, input: Input) -> Result<(), GpuError> {
        if input != self.input {
            let mut other = Self::with_limits(&self.gpu, &self.codec, input, self.elements, self.limits)?;
            other.write_state(&self.state()?)?;
            *self = other;
        }
        Ok(())
    }

    /// Encodes `gradient` into `packet`, and updates the state on the device.
    ///
    /// `codec` is that of [`Encode::new`], maybe with other numbers of the same layout (such as its scale). `gradient`
    /// has [`Encode::elements`] elements, `packet` [`Codec::packet_words`] of them. Twin: [`Codec::encode`].
    ///
    /// # Errors
    ///
    /// [`GpuError::Config`], [`GpuError::Codec`], [`GpuError::Input`] and [`GpuError::Length`] before anything is
    /// changed. After any other error the state is unknown, and every later call is [`GpuError::Broken`] until
    /// [`Encode::set_state`].
    pub fn encode(
        &mut self,
        codec: &Codec,
        step: Step,
        gradient: Gradient<'_>,
        packet: &mut [u32],
    ) -> Result<Stats, GpuError> {
        check_codec(&self.codec, codec)?;
        if gradient.input() != self.input {
            return Err(GpuError::Input { expected: self.input, given: gradient.input() });
        }
        check_length("gradient", "elements", self.elements, gradient.len())?;
        check_length("packet", "words", codec.packet_words(self.elements), packet.len())?;
        self.check_whole()?;
        let method = method::encode(codec, step);
        let result = self.run(&method, gradient, packet);
        self.broken = result.is_err();
        result
    }

    fn run(
        &mut self,
        method: &Method,
        gradient: Gradient<'_>,
        packet: &mut [u32],
    ) -> Result<Stats, GpuError> {
        let Self {
            gpu,
            kernel,
            limits,
            codec,
            parts,
            lanes,
            params,
            gradient: input,
            packet: output,
            stats,
            ..
        } = self;
        let unit = codec.unit();
        let packet_words = packet.len();
        let mut total = Stats::default();
        let mut take = |index: usize, bytes: &[u8]| {
            let (counts, words) = bytes.split_at(8);
            let counts: [u32; 2] = bytemuck::pod_read_unaligned(counts);
            total += Stats { nonfinite: counts[0].into(), saturated: counts[1].into() };
            let target = &mut packet[parts[index].span.words(unit, packet_words)];
            let target: &mut [u8] = bytemuck::cast_slice_mut(target);
            target.copy_from_slice(&words[..target.len()]);
        };
        let lane_count = lanes.len().max(1);
        for (index, part) in parts.iter().enumerate() {
            let lane = &mut lanes[index % lane_count];
            lane.land(gpu, &mut take)?;
            let span = &part.span;
            let grid = limits.grid(span.units(), method.per_workgroup);
            let head = method.encode_params(span.units(), grid.columns, span.elements.len());
            let bytes = gradient.slice(span.elements.clone()).as_bytes();
            let padded = span.units.len() * unit.elements * gradient.input().bytes();
            // An upload buffer holds the last step's gradient: the padding of a short unit must be zero again.
            let pieces = [
                Piece { at: 0, bytes: bytemuck::cast_slice(&head), zeros: 0 },
                Piece { at: HEAD, bytes, zeros: padded - bytes.len() },
            ];
            let words = span.words(unit, packet_words).len();
            lane.submit(gpu, index, pieces, |encoder, upload, readback| {
                encoder.copy_buffer_to_buffer(upload, 0, params, 0, HEAD_BYTES);
                encoder.copy_buffer_to_buffer(upload, HEAD_BYTES, input, 0, padded as u64);
                encoder.clear_buffer(stats, 0, None);
                kernel.dispatch(encoder, &part.binding, grid);
                encoder.copy_buffer_to_buffer(stats, 0, readback, 0, STATS_BYTES);
                encoder.copy_buffer_to_buffer(output, 0, readback, STATS_BYTES, 4 * words as u64);
            })?;
        }
        for lane in lanes {
            lane.land(gpu, &mut take)?;
        }
        Ok(total)
    }

    /// A copy of the state, [`Codec::state_words`] words: what the CPU function would have.
    ///
    /// # Errors
    ///
    /// [`GpuError::Broken`] after a failed step; those of a failing device.
    pub fn state(&self) -> Result<Vec<u32>, GpuError> {
        self.check_whole()?;
        let mut state = Vec::with_capacity(self.codec.state_words(self.elements));
        for buffer in self.parts.iter().filter_map(|part| part.state.as_ref()) {
            buffer::read(&self.gpu, buffer, |bytes| {
                state.extend(bytes.chunks_exact(4).map(bytemuck::pod_read_unaligned::<u32>));
            })?;
        }
        Ok(state)
    }

    /// Replaces the state, [`Codec::state_words`] words: to continue from a checkpoint, or after a failed step.
    ///
    /// # Errors
    ///
    /// [`GpuError::Length`], and [`GpuError::State`] if it fails [`Codec::check_state`], without any change; those of a
    /// failing device.
    pub fn set_state(&mut self, state: &[u32]) -> Result<(), GpuError> {
        check_length("state", "words", self.codec.state_words(self.elements), state.len())?;
        self.codec.check_state(self.elements, state)?;
        self.write_state(state)
    }

    fn write_state(&mut self, state: &[u32]) -> Result<(), GpuError> {
        if self.broken {
            // Whatever the failed step left in flight must not land in the next one.
            self.lanes = lanes(&self.gpu, self.parts.len(), &self.gradient, &self.packet)?;
        }
        self.broken = true;
        let words = self.codec.unit().state_words;
        for part in &self.parts {
            let Some(buffer) = &part.state else { continue };
            let words = &state[part.span.units.start * words..part.span.units.end * words];
            self.gpu.guard(|_| {
                self.gpu.queue().write_buffer(buffer, 0, bytemuck::cast_slice(words));
                Ok(())
            })?;
        }
        self.broken = false;
        Ok(())
    }

    fn check_whole(&self) -> Result<(), GpuError> {
        if self.broken { Err(GpuError::Broken { adapter: self.gpu.info().name.clone() }) } else { Ok(()) }
    }

    /// Runs the kernel `times` times on what the buffers of the last call hold, and waits: for measuring.
    ///
    /// Only for work that is one part: parameters and buffers are those of the last one.
    pub(crate) fn rerun(&mut self, times: u32) -> Result<(), GpuError> {
        let [part] = self.parts.as_slice() else { return Ok(()) };
        let method = method::encode(&self.codec, Step::FIRST);
        let grid = self.limits.grid(part.span.units(), method.per_workgroup);
        self.kernel.repeat(&self.gpu, &part.binding, grid, times)
    }
}

/// Staging for one part at a time; a second one, if there are more parts, so that copying overlaps the kernel.
fn lanes(
    gpu: &Gpu,
    parts: usize,
    gradient: &wgpu::Buffer,
    packet: &wgpu::Buffer,
) -> Result<Vec<Lane>, GpuError> {
    (0..parts.min(2)).map(|_| Lane::new(gpu, gradient.size(), STATS_BYTES + packet.size())).collect()
}

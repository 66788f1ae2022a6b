//! The host side of `shaders/<codec>/average.wgsl`.

use std::ops::Range;

use wgpu::BufferUsages;

use super::super::buffer::{self, HEAD, HEAD_BYTES, Lane, Piece};
use super::super::error::check_length;
use super::super::kernel::{Kernel, Limits};
use super::super::method::{self, Method};
use super::super::{Gpu, GpuError};
use super::{Cut, check_codec};
use crate::codec::{Codec, Input};

/// Offset in an upload, and bytes, of what comes after a mean has in front of the payload.
pub(crate) const THEN: usize = 128;

/// What comes after a mean in the same submission: reading it back, or going on with it.
pub(crate) trait Then {
    /// Before everything else of a call: `mean` is the buffer that the mean will be in.
    fn begin(&mut self, mean: &wgpu::Buffer) -> Result<(), GpuError>;
    /// What the upload shall have at [`THEN`] for the part of `elements`.
    fn head(&self, elements: &Range<usize>) -> [u32; THEN / 4];
    /// Records the work on the part of `elements`, of which `mean` begins with the first, and 4 bytes of result for each
    /// element into `readback`.
    fn record(
        &self,
        elements: &Range<usize>,
        encoder: &mut wgpu::CommandEncoder,
        upload: &wgpu::Buffer,
        mean: &wgpu::Buffer,
        readback: &wgpu::Buffer,
    );
    /// Gets these results.
    fn take(&mut self, elements: Range<usize>, bytes: &[u8]);
}

/// The mean goes to the host.
struct Collect<'a>(&'a mut [f32]);

impl Then for Collect<'_> {
    fn begin(&mut self, _mean: &wgpu::Buffer) -> Result<(), GpuError> {
        Ok(())
    }

    fn head(&self, _elements: &Range<usize>) -> [u32; THEN / 4] {
        [0; THEN / 4]
    }

    fn record(
        &self,
        elements: &Range<usize>,
        encoder: &mut wgpu::CommandEncoder,
        _upload: &wgpu::Buffer,
        mean: &wgpu::Buffer,
        readback: &wgpu::Buffer,
    ) {
        encoder.copy_buffer_to_buffer(mean, 0, readback, 0, 4 * elements.len() as u64);
    }

    fn take(&mut self, elements: Range<usize>, bytes: &[u8]) {
        let target: &mut [u8] = bytemuck::cast_slice_mut(&mut self.0[elements]);
        target.copy_from_slice(&bytes[..target.len()]);
    }
}

/// Averages the packets of one shard.
///
/// Between calls it keeps buffers only, and the state of a codec that has one for means
/// ([`Codec::mean_state_words`]), on the device. A call allocates no buffer unless it brings more ranks than any before.
/// All ranks of a part are in one dispatch; a part has at most [`Limits::PART_BYTES`] of packets, or one unit of them.
#[derive(Debug)]
pub struct Average {
    gpu: Gpu,
    kernel: Kernel,
    limits: Limits,
    codec: Codec,
    elements: usize,
    params: wgpu::Buffer,
    /// `None` before the first call, and after one that failed midway.
    inbox: Option<Inbox>,
    /// `None` before the first call, and for all codecs without state.
    state: Option<State>,
    /// A call failed midway, and there is a state.
    broken: bool,
}

/// Where packets arrive, and the mean.
#[derive(Debug)]
struct Inbox {
    /// Most ranks that a call may bring.
    ranks: usize,
    cut: Cut,
    packets: wgpu::Buffer,
    weights: wgpu::Buffer,
    mean: wgpu::Buffer,
    /// One for each part if there is a state, which each part has its own piece of; else one for all.
    bindings: Vec<wgpu::BindGroup>,
    lanes: [Lane; 2],
}

/// One row of words per rank for the units of each part.
#[derive(Debug)]
struct State {
    ranks: usize,
    parts: Vec<wgpu::Buffer>,
}

impl Average {
    /// For shards of `elements` elements (any number).
    ///
    /// # Errors
    ///
    /// [`GpuError::Config`], [`GpuError::OutOfMemory`], and those of a failing device.
    pub fn new(gpu: &Gpu, codec: &Codec, elements: usize) -> Result<Self, GpuError> {
        Self::with_limits(gpu, codec, elements, Limits::of(gpu))
    }

    /// As [`Average::new`], cutting the work to `limits` instead of what the adapter has.
    ///
    /// # Errors
    ///
    /// As [`Average::new`].
    pub fn with_limits(gpu: &Gpu, codec: &Codec, elements: usize, limits: Limits) -> Result<Self, GpuError> {
        // The input type makes no difference to a kernel that reads packets.
        let kernel = gpu.kernel(&method::average(codec, 1).shader, Input::F32)?;
        Self::with_kernel(gpu, codec, elements, limits, kernel)
    }

    /// With another shader text: only to prove that the tests notice a wrong one.
    #[doc(hidden)]
    pub fn with_source(
        gpu: &Gpu,
        codec: &Codec,
        elements: usize,
        limits: Limits,
        text: &str,
    ) -> Result<Self, GpuError> {
        Self::with_kernel(gpu, codec, elements, limits, Kernel::compile(gpu, "edited average", text)?)
    }

    fn with_kernel(
        gpu: &Gpu,
        codec: &Codec,
        elements: usize,
        limits: Limits,
        kernel: Kernel,
    ) -> Result<Self, GpuError> {
        codec.validate()?;
        gpu.check_alive()?;
        let params = buffer::device_buffer(gpu, "params", HEAD_BYTES, BufferUsages::UNIFORM)?;
        let (gpu, codec) = (gpu.clone(), *codec);
        Ok(Self { gpu, kernel, limits, codec, elements, params, inbox: None, state: None, broken: false })
    }

    /// Number of elements of the shard.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.elements
    }

    /// The weighted mean of one packet per rank, in rank order, into `mean`.
    ///
    /// `codec` is that of [`Average::new`], maybe with other numbers of the same layout. Each packet has
    /// [`Codec::packet_words`] words, `mean` [`Average::elements`] elements; `weights` are samples per rank. A codec with
    /// a state for means takes the same number of ranks in every call. Twin: [`Codec::average`].
    ///
    /// # Errors
    ///
    /// [`GpuError::Config`], [`GpuError::Codec`], [`GpuError::Length`] and [`GpuError::Average`] before anything is
    /// touched; those of a failing device, after which the next call starts with fresh buffers. If there is a state it
    /// is then unknown, and every later call is [`GpuError::Broken`] until [`Average::set_state`].
    pub fn average(
        &mut self,
        codec: &Codec,
        packets: &[&[u32]],
        weights: &[u32],
        mean: &mut [f32],
    ) -> Result<(), GpuError> {
        check_length("mean", "elements", self.elements, mean.len())?;
        self.average_then(codec, packets, weights, &mut Collect(mean))
    }

    /// As [`Average::average`], but `then` goes on with the mean on the device.
    pub(crate) fn average_then(
        &mut self,
        codec: &Codec,
        packets: &[&[u32]],
        weights: &[u32],
        then: &mut dyn Then,
    ) -> Result<(), GpuError> {
        check_codec(&self.codec, codec)?;
        let total = codec.check(packets, weights, self.elements)?;
        self.check_ready(packets.len())?;
        if self.elements == 0 {
            return Ok(());
        }
        let clipped = codec.clip(packets, weights, self.elements);
        let clipped: Option<Vec<&[u32]>> =
            clipped.as_ref().map(|packets| packets.iter().map(|packet| &**packet).collect());
        let packets = clipped.as_deref().unwrap_or(packets);
        let method = method::average(codec, total);
        let result = self.take_inbox(packets.len()).and_then(|mut inbox| {
            then.begin(&inbox.mean)?;
            self.run(&mut inbox, &method, packets, weights, then)?;
            Ok(inbox)
        });
        self.broken = result.is_err() && self.state_row() > 0;
        // Only a call that ran to its end leaves buffers that the next one can trust.
        self.inbox = Some(result?);
        Ok(())
    }

    fn run(
        &self,
        inbox: &mut Inbox,
        method: &Method,
        packets: &[&[u32]],
        weights: &[u32],
        then: &mut dyn Then,
    ) -> Result<(), GpuError> {
        let Inbox { cut, packets: rows, weights: row_weights, mean: output, bindings, lanes, .. } = inbox;
        let (cut, unit) = (*cut, cut.unit);
        let step = cut.part * unit.elements;
        let elements = |index: usize| index * step..self.elements.min((index + 1) * step);
        let packet_words = self.codec.packet_words(self.elements);
        for (index, span) in cut.spans().enumerate() {
            let lane = &mut lanes[index % 2];
            lane.land(&self.gpu, |index, bytes| then.take(elements(index), bytes))?;
            let grid = self.limits.grid(span.units(), method.per_workgroup);
            let (ranks, elements) = (packets.len(), span.elements.len());
            let head = method.average_params(span.units(), grid.columns, ranks, elements);
            let head = Piece { at: 0, bytes: bytemuck::cast_slice(&head), zeros: 0 };
            let (then_head, elements) = (then.head(&span.elements), &span.elements);
            let then_head = Piece { at: THEN, bytes: bytemuck::cast_slice(&then_head), zeros: 0 };
            let all_weights = Piece { at: HEAD, bytes: bytemuck::cast_slice(weights), zeros: 0 };
            let words = span.words(unit, packet_words);
            // Whole units: the last one may be shorter in the packet, and what lies here is an earlier part.
            let row = span.units.len() * 4 * unit.words;
            let first_row = HEAD + 4 * weights.len();
            let pieces = packets.iter().enumerate().map(|(rank, packet)| {
                let bytes = bytemuck::cast_slice(&packet[words.clone()]);
                Piece { at: first_row + rank * row, bytes, zeros: row - bytes.len() }
            });
            let weight_bytes = 4 * weights.len() as u64;
            let all_rows = (row * packets.len()) as u64;
            let binding = &bindings[index % bindings.len()];
            let pieces = [head, then_head, all_weights].into_iter().chain(pieces);
            lane.submit(&self.gpu, index, pieces, |encoder, upload, readback| {
                encoder.copy_buffer_to_buffer(upload, 0, &self.params, 0, HEAD_BYTES);
                encoder.copy_buffer_to_buffer(upload, HEAD_BYTES, row_weights, 0, weight_bytes);
                encoder.copy_buffer_to_buffer(upload, first_row as u64, rows, 0, all_rows);
                self.kernel.dispatch(encoder, binding, grid);
                then.record(elements, encoder, upload, output, readback);
            })?;
        }
        for lane in lanes {
            lane.land(&self.gpu, |index, bytes| then.take(elements(index), bytes))?;
        }
        Ok(())
    }

    /// The buffers of earlier calls, or larger ones when `ranks` asks for them.
    fn take_inbox(&mut self, ranks: usize) -> Result<Inbox, GpuError> {
        if let Some(inbox) = self.inbox.take_if(|inbox| inbox.ranks >= ranks) {
            return Ok(inbox);
        }
        self.inbox = None;
        let cut = self.cut(ranks);
        if self.state.is_none() && self.state_row() > 0 {
            self.state = Some(self.new_state(ranks)?);
        }
        let (gpu, unit) = (&self.gpu, cut.unit);
        let storage =
            |label, bytes: usize| buffer::device_buffer(gpu, label, bytes as u64, BufferUsages::STORAGE);
        let packet_bytes = ranks * cut.longest() * 4 * unit.words;
        let packets = storage("packets", packet_bytes)?;
        let weights = storage("weights", 4 * ranks)?;
        let mean = storage("mean", cut.longest() * 4 * unit.elements)?;
        let bind = |state| {
            let buffers = [Some(&self.params), Some(&packets), Some(&weights), Some(&mean), state];
            self.kernel.bind(gpu, &buffers)
        };
        let bindings = match &self.state {
            None => vec![bind(None)?],
            Some(state) => state.parts.iter().map(|part| bind(Some(part))).collect::<Result<_, _>>()?,
        };
        let lane = || Lane::new(gpu, (4 * ranks + packet_bytes) as u64, mean.size());
        Ok(Inbox { ranks, cut, lanes: [lane()?, lane()?], packets, weights, mean, bindings })
    }

    /// Parts in which a unit of every rank fits one binding.
    fn cut(&self, ranks: usize) -> Cut {
        let unit = self.codec.unit();
        let largest = (4 * unit.elements).max(ranks * 4 * unit.words).max(ranks * 4 * self.state_unit());
        Cut { unit, elements: self.elements, part: self.limits.units(unit.elements, largest) }
    }

    /// Words of state of one rank and unit.
    fn state_unit(&self) -> usize {
        self.codec.mean_state_words(1, self.codec.unit().elements)
    }

    /// Words of state of one rank.
    fn state_row(&self) -> usize {
        self.codec.mean_state_words(1, self.elements)
    }

    fn new_state(&self, ranks: usize) -> Result<State, GpuError> {
        let row = |units: usize| ranks * units * 4 * self.state_unit();
        let parts = self.cut(ranks).spans().map(|span| {
            let bytes = row(span.units.len()) as u64;
            buffer::device_buffer(&self.gpu, "state", bytes, BufferUsages::STORAGE)
        });
        Ok(State { ranks, parts: parts.collect::<Result<_, _>>()? })
    }

    /// A copy of the state: [`Codec::mean_state_words`] words, a row per rank; none before the first call.
    ///
    /// # Errors
    ///
    /// [`GpuError::Broken`] after a failed call; those of a failing device.
    pub fn state(&self) -> Result<Vec<u32>, GpuError> {
        self.check_whole()?;
        let Some(State { ranks, parts }) = &self.state else { return Ok(Vec::new()) };
        let (row, unit) = (self.state_row(), self.state_unit());
        let mut words = vec![0; ranks * row];
        for (span, part) in self.cut(*ranks).spans().zip(parts) {
            let piece = 4 * span.units.len() * unit;
            buffer::read(&self.gpu, part, |bytes| {
                for (row, bytes) in words.chunks_mut(row).zip(bytes.chunks(piece)) {
                    let target = &mut row[span.units.start * unit..span.units.end * unit];
                    bytemuck::cast_slice_mut(target).copy_from_slice(bytes);
                }
            })?;
        }
        Ok(words)
    }

    /// Replaces the state by [`Codec::mean_state_words`] words of any world size; none: the next call starts from zero.
    ///
    /// # Errors
    ///
    /// [`GpuError::Length`] if they are not whole rows, and [`GpuError::State`] if they fail [`Codec::check_mean_state`],
    /// without any change; those of a failing device.
    pub fn set_state(&mut self, words: &[u32]) -> Result<(), GpuError> {
        let (row, unit) = (self.state_row(), self.state_unit());
        let ranks = words.len().checked_div(row).unwrap_or(0);
        check_length("state", "words", ranks * row, words.len())?;
        self.codec.check_mean_state(ranks, self.elements, words)?;
        self.inbox = None;
        self.state = None;
        self.broken = true;
        if ranks > 0 {
            let state = self.new_state(ranks)?;
            for (span, part) in self.cut(ranks).spans().zip(&state.parts) {
                let piece = |row: &[u32]| row[span.units.start * unit..span.units.end * unit].to_vec();
                let rows: Vec<u32> = words.chunks(row).flat_map(piece).collect();
                self.gpu.guard(|_| {
                    self.gpu.queue().write_buffer(part, 0, bytemuck::cast_slice(&rows));
                    Ok(())
                })?;
            }
            self.state = Some(state);
        }
        self.broken = false;
        Ok(())
    }

    /// Whether a call with `ranks` packets may follow.
    pub(crate) fn check_ready(&self, ranks: usize) -> Result<(), GpuError> {
        if let Some(state) = &self.state {
            check_length("mean", "packets", state.ranks, ranks)?;
        }
        self.check_whole()
    }

    fn check_whole(&self) -> Result<(), GpuError> {
        if self.broken { Err(GpuError::Broken { adapter: self.gpu.info().name.clone() }) } else { Ok(()) }
    }

    /// Runs the kernel `times` times on what the buffers of the last call hold, and waits: for measuring.
    ///
    /// Only for work that is one part, after an [`Average::average`]: parameters and buffers are those of its last one.
    pub(crate) fn rerun(&mut self, times: u32) -> Result<(), GpuError> {
        let Some(inbox) = &self.inbox else { return Ok(()) };
        let method = method::average(&self.codec, 1);
        let units = u32::try_from(inbox.cut.longest()).unwrap_or(u32::MAX);
        let grid = self.limits.grid(units, method.per_workgroup);
        self.kernel.repeat(&self.gpu, &inbox.bindings[0], grid, times)
    }
}

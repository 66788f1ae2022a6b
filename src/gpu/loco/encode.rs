//! Host twin of `shaders/loco/encode.wgsl`.

use std::ops::Range;

use wgpu::BufferUsages;

use super::super::buffer::{self, HEAD, HEAD_BYTES, Lane};
use super::super::error::check_length;
use super::super::kernel::{GROUP, Kernel, Limits};
use super::super::{Gpu, GpuError, source};
use crate::codec::loco::{Config, packet_words};
use crate::codec::{Stats, Step};

/// Bytes of `stats` in front of the packet in the readback buffer.
const STATS_BYTES: u64 = 8;

/// One rank's encoder: the residual of its gradient, on the device.
///
/// Not tied to a thread; needs `&mut` because a step changes the residual.
#[derive(Debug)]
pub struct Encode {
    gpu: Gpu,
    kernel: Kernel,
    limits: Limits,
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

/// A run of elements that one dispatch encodes.
#[derive(Debug)]
struct Part {
    elements: Range<usize>,
    words: Range<usize>,
    groups: u32,
    residual: wgpu::Buffer,
    binding: wgpu::BindGroup,
}

impl Encode {
    /// A zero residual for `elements` elements (any number) on `gpu`.
    ///
    /// # Errors
    ///
    /// [`GpuError::OutOfMemory`], and those of a failing device.
    pub fn new(gpu: &Gpu, elements: usize) -> Result<Self, GpuError> {
        Self::with_limits(gpu, elements, Limits::of(gpu))
    }

    /// As [`Encode::new`], cutting the work to `limits` instead of what the adapter has: for small devices, and for
    /// tests of the cutting.
    ///
    /// # Errors
    ///
    /// As [`Encode::new`].
    pub fn with_limits(gpu: &Gpu, elements: usize, limits: Limits) -> Result<Self, GpuError> {
        Self::with_kernel(gpu, elements, limits, gpu.kernel(&source::LOCO_ENCODE)?)
    }

    /// With another shader text: only to prove that the tests notice a wrong one.
    #[doc(hidden)]
    pub fn with_source(gpu: &Gpu, elements: usize, limits: Limits, text: &str) -> Result<Self, GpuError> {
        Self::with_kernel(gpu, elements, limits, Kernel::compile(gpu, "edited loco/encode", text)?)
    }

    fn with_kernel(gpu: &Gpu, elements: usize, limits: Limits, kernel: Kernel) -> Result<Self, GpuError> {
        gpu.check_alive()?;
        let part_elements = limits.groups() as usize * GROUP as usize;
        // The longest part, in groups; a state without elements has no part but still valid buffers.
        let longest = elements.min(part_elements).div_ceil(GROUP as usize).max(1) as u64;
        let storage = |label, bytes| buffer::device_buffer(gpu, label, bytes, BufferUsages::STORAGE);
        let params = buffer::device_buffer(gpu, "params", HEAD_BYTES, BufferUsages::UNIFORM)?;
        let gradient = storage("gradient", 32 * longest)?;
        let packet = storage("packet", 4 * longest)?;
        let stats = storage("stats", STATS_BYTES)?;
        let mut parts = Vec::new();
        for start in (0..elements).step_by(part_elements) {
            let range = start..elements.min(start + part_elements);
            let words = start / GROUP as usize..range.end.div_ceil(GROUP as usize);
            let groups = u32::try_from(words.len()).unwrap_or(u32::MAX);
            let residual = storage("residual", 8 * u64::from(groups))?;
            let binding = kernel.bind(gpu, &[&params, &gradient, &residual, &packet, &stats])?;
            parts.push(Part { elements: range, words, groups, residual, binding });
        }
        let lanes = lanes(gpu, parts.len(), &gradient, &packet)?;
        let gpu = gpu.clone();
        Ok(Self {
            gpu,
            kernel,
            limits,
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

    /// Compensates, quantizes and packs `gradient`, and updates the residual on the device.
    ///
    /// `gradient` has [`Encode::elements`] elements, `packet` [`packet_words`] words of them, the last one zero-filled.
    /// Twin: [`crate::codec::loco::encode`].
    ///
    /// # Errors
    ///
    /// [`GpuError::Length`] and [`GpuError::Config`] before anything is changed. After any other error the residual is
    /// unknown, and every later call is [`GpuError::Broken`] until [`Encode::set_residual`].
    pub fn encode(
        &mut self,
        config: &Config,
        step: Step,
        gradient: &[f32],
        packet: &mut [u32],
    ) -> Result<Stats, GpuError> {
        config.validate()?;
        check_length("gradient", "elements", self.elements, gradient.len())?;
        check_length("packet", "words", packet_words(self.elements), packet.len())?;
        self.check_whole()?;
        let result = self.run(config, step, gradient, packet);
        self.broken = result.is_err();
        result
    }

    fn run(
        &mut self,
        config: &Config,
        step: Step,
        gradient: &[f32],
        packet: &mut [u32],
    ) -> Result<Stats, GpuError> {
        let Self {
            gpu, kernel, limits, parts, lanes, params, gradient: input, packet: output, stats, ..
        } = self;
        let mut total = Stats::default();
        let mut take = |index: usize, bytes: &[u8]| {
            let part: &Part = &parts[index];
            let (counts, words) = bytes.split_at(8);
            let counts: [u32; 2] = bytemuck::pod_read_unaligned(counts);
            total += Stats { nonfinite: counts[0].into(), saturated: counts[1].into() };
            let target = &mut packet[part.words.clone()];
            bytemuck::cast_slice_mut(target).copy_from_slice(&words[..4 * part.words.len()]);
        };
        let lane_count = lanes.len().max(1);
        for (index, part) in parts.iter().enumerate() {
            let lane = &mut lanes[index % lane_count];
            lane.land(gpu, &mut take)?;
            let grid = limits.grid(part.groups);
            let head: [u32; 6] = [
                part.groups,
                grid.row(),
                (138 - i32::from(config.scale_log2)).cast_unsigned(),
                config.residual_scale_log2.into(),
                config.decay.into(),
                if config.is_reset(step) { 0 } else { u32::MAX },
            ];
            let values: &[u8] = bytemuck::cast_slice(&gradient[part.elements.clone()]);
            let padded = 32 * part.words.len();
            // An upload buffer holds the last step's gradient: the padding of a short group must be zero again.
            let padding = &[0; 28][..padded - values.len()];
            let pieces = [(0, bytemuck::cast_slice(&head)), (HEAD, values), (HEAD + values.len(), padding)];
            lane.submit(gpu, index, true, pieces, |encoder, upload, readback| {
                encoder.copy_buffer_to_buffer(upload, 0, params, 0, HEAD_BYTES);
                encoder.copy_buffer_to_buffer(upload, HEAD_BYTES, input, 0, padded as u64);
                encoder.clear_buffer(stats, 0, None);
                kernel.dispatch(encoder, &part.binding, grid);
                encoder.copy_buffer_to_buffer(stats, 0, readback, 0, STATS_BYTES);
                encoder.copy_buffer_to_buffer(output, 0, readback, STATS_BYTES, 4 * u64::from(part.groups));
            })?;
        }
        for lane in lanes {
            lane.land(gpu, &mut take)?;
        }
        Ok(total)
    }

    /// A copy of the residual, one byte per element.
    ///
    /// # Errors
    ///
    /// [`GpuError::Broken`] after a failed step; those of a failing device.
    pub fn residual(&self) -> Result<Vec<i8>, GpuError> {
        self.check_whole()?;
        let mut residual = vec![0_i8; self.elements];
        for part in &self.parts {
            let target: &mut [u8] = bytemuck::cast_slice_mut(&mut residual[part.elements.clone()]);
            buffer::read(&self.gpu, &part.residual, |bytes| target.copy_from_slice(&bytes[..target.len()]))?;
        }
        Ok(residual)
    }

    /// Replaces the residual, one byte per element: to continue from a checkpoint, or after a failed step.
    ///
    /// # Errors
    ///
    /// [`GpuError::Length`]; those of a failing device.
    pub fn set_residual(&mut self, residual: &[i8]) -> Result<(), GpuError> {
        check_length("residual", "bytes", self.elements, residual.len())?;
        if self.broken {
            // Whatever the failed step left in flight must not land in the next one.
            self.lanes = lanes(&self.gpu, self.parts.len(), &self.gradient, &self.packet)?;
        }
        self.broken = true;
        for part in &self.parts {
            let mut bytes: Vec<u8> = bytemuck::cast_slice(&residual[part.elements.clone()]).to_vec();
            bytes.resize(8 * part.words.len(), 0);
            self.gpu.guard(|_| {
                self.gpu.queue().write_buffer(&part.residual, 0, &bytes);
                Ok(())
            })?;
        }
        self.broken = false;
        Ok(())
    }

    fn check_whole(&self) -> Result<(), GpuError> {
        if self.broken { Err(GpuError::Broken { adapter: self.gpu.info().name.clone() }) } else { Ok(()) }
    }

    /// Runs the kernel of the first part `times` times on what its buffers hold, and waits: for measuring.
    ///
    /// Returns the elements of one run.
    pub(crate) fn rerun(&mut self, times: u32) -> Result<u64, GpuError> {
        let Some(part) = self.parts.first() else { return Ok(0) };
        self.gpu.guard(|device| {
            let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            for _ in 0..times {
                self.kernel.dispatch(&mut encoder, &part.binding, self.limits.grid(part.groups));
            }
            self.gpu.queue().submit([encoder.finish()]);
            Ok(())
        })?;
        buffer::idle(&self.gpu)?;
        Ok(part.elements.len() as u64)
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

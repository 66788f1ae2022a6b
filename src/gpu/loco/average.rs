//! Host twin of `shaders/loco/average.wgsl`.

use wgpu::BufferUsages;

use super::super::buffer::{self, HEAD, HEAD_BYTES, Lane};
use super::super::error::check_length;
use super::super::kernel::{GROUP, Kernel, Limits};
use super::super::{Gpu, GpuError, source};
use crate::codec::AverageError;
use crate::codec::loco::{Config, packet_words};

/// Averages the packets of one shard; keeps no numbers between calls, only buffers.
#[derive(Debug)]
pub struct Average {
    gpu: Gpu,
    kernel: Kernel,
    limits: Limits,
    elements: usize,
    params: wgpu::Buffer,
    mean: wgpu::Buffer,
    /// Grows when a call brings more ranks than any before.
    inbox: Option<Inbox>,
}

/// Where packets arrive: as many ranks at a time as fit one binding.
#[derive(Debug)]
struct Inbox {
    ranks: usize,
    packets: wgpu::Buffer,
    weights: wgpu::Buffer,
    binding: wgpu::BindGroup,
    lanes: [Lane; 2],
}

impl Average {
    /// For shards of `elements` elements (any number).
    ///
    /// # Errors
    ///
    /// [`GpuError::OutOfMemory`], and those of a failing device.
    pub fn new(gpu: &Gpu, elements: usize) -> Result<Self, GpuError> {
        Self::with_limits(gpu, elements, Limits::of(gpu))
    }

    /// As [`Average::new`], cutting the work to `limits` instead of what the adapter has.
    ///
    /// # Errors
    ///
    /// As [`Average::new`].
    pub fn with_limits(gpu: &Gpu, elements: usize, limits: Limits) -> Result<Self, GpuError> {
        gpu.check_alive()?;
        let kernel = gpu.kernel(&source::LOCO_AVERAGE)?;
        let params = buffer::device_buffer(gpu, "params", HEAD_BYTES, BufferUsages::UNIFORM)?;
        let longest = longest(elements, limits);
        let mean = buffer::device_buffer(gpu, "mean", 32 * longest as u64, BufferUsages::STORAGE)?;
        Ok(Self { gpu: gpu.clone(), kernel, limits, elements, params, mean, inbox: None })
    }

    /// Number of elements of the shard.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.elements
    }

    /// The weighted mean of one packet per rank into `mean`.
    ///
    /// Each packet has [`packet_words`] words, `mean` [`Average::elements`] elements; `weights` are samples per rank.
    /// Twin: [`crate::codec::loco::average`].
    ///
    /// # Errors
    ///
    /// [`GpuError::Length`], [`GpuError::Config`] and [`GpuError::Average`] before anything is touched; those of a
    /// failing device, after which the next call starts with fresh buffers.
    pub fn average(
        &mut self,
        config: &Config,
        packets: &[&[u32]],
        weights: &[u32],
        mean: &mut [f32],
    ) -> Result<(), GpuError> {
        config.validate()?;
        check_length("mean", "elements", self.elements, mean.len())?;
        let total = AverageError::check(packets, weights, self.elements, packet_words(self.elements))?;
        if self.elements == 0 {
            return Ok(());
        }
        let mut inbox = self.take_inbox(packets.len())?;
        self.run(&mut inbox, config.mean_scale(total), packets, weights, mean)?;
        // Only a call that ran to its end leaves buffers that the next one can trust.
        self.inbox = Some(inbox);
        Ok(())
    }

    fn run(
        &self,
        inbox: &mut Inbox,
        scale: f32,
        packets: &[&[u32]],
        weights: &[u32],
        mean: &mut [f32],
    ) -> Result<(), GpuError> {
        let Inbox { ranks, packets: rows, weights: row_weights, binding, lanes } = inbox;
        let part = self.limits.groups() as usize;
        let mut take = |index: usize, bytes: &[u8]| {
            let start = index * part * GROUP as usize;
            let end = mean.len().min(start + part * GROUP as usize);
            let target: &mut [u8] = bytemuck::cast_slice_mut(&mut mean[start..end]);
            target.copy_from_slice(&bytes[..target.len()]);
        };
        let words = packet_words(self.elements);
        let mut lane_of_next = 0;
        for (index, start) in (0..words).step_by(part).enumerate() {
            let columns = start..words.min(start + part);
            let groups = u32::try_from(columns.len()).unwrap_or(u32::MAX);
            let grid = self.limits.grid(groups);
            let batches = packets.chunks(*ranks).zip(weights.chunks(*ranks));
            let last = batches.len() - 1;
            for (batch, (packets, weights)) in batches.enumerate() {
                let lane = &mut lanes[lane_of_next];
                lane_of_next = 1 - lane_of_next;
                lane.land(&self.gpu, &mut take)?;
                let head: [u32; 5] = [
                    groups,
                    grid.row(),
                    u32::try_from(packets.len()).unwrap_or(u32::MAX),
                    u32::from(batch == 0),
                    if batch == last { scale.to_bits() } else { 0 },
                ];
                let weight_bytes = 4 * weights.len() as u64;
                let row = 4 * columns.len();
                let rows_start = HEAD + 4 * weights.len();
                let pieces = [(0, bytemuck::cast_slice(&head)), (HEAD, bytemuck::cast_slice(weights))];
                let packet_pieces = packets.iter().enumerate().map(|(rank, packet)| {
                    (rows_start + rank * row, bytemuck::cast_slice(&packet[columns.clone()]))
                });
                let (first_row, all_rows) = (HEAD_BYTES + weight_bytes, (row * packets.len()) as u64);
                let read = batch == last;
                lane.submit(
                    &self.gpu,
                    index,
                    read,
                    pieces.into_iter().chain(packet_pieces),
                    |encoder, upload, readback| {
                        encoder.copy_buffer_to_buffer(upload, 0, &self.params, 0, HEAD_BYTES);
                        encoder.copy_buffer_to_buffer(upload, HEAD_BYTES, row_weights, 0, weight_bytes);
                        encoder.copy_buffer_to_buffer(upload, first_row, rows, 0, all_rows);
                        self.kernel.dispatch(encoder, binding, grid);
                        if read {
                            encoder.copy_buffer_to_buffer(&self.mean, 0, readback, 0, 32 * u64::from(groups));
                        }
                    },
                )?;
            }
        }
        for lane in lanes {
            lane.land(&self.gpu, &mut take)?;
        }
        Ok(())
    }

    /// The buffers of earlier calls, or larger ones when `world_size` asks for them.
    fn take_inbox(&mut self, world_size: usize) -> Result<Inbox, GpuError> {
        let longest = longest(self.elements, self.limits);
        // At least one rank fits: a row is an eighth of a binding at most.
        let fitting = (self.limits.groups() as usize * GROUP as usize / longest).max(1);
        let ranks = fitting.min(world_size);
        if let Some(inbox) = self.inbox.take_if(|inbox| inbox.ranks >= ranks) {
            return Ok(inbox);
        }
        self.inbox = None;
        let gpu = &self.gpu;
        let row_bytes = 4 * longest as u64;
        let (rank_count, bytes) = (ranks as u64, ranks as u64 * row_bytes);
        let packets = buffer::device_buffer(gpu, "packets", bytes, BufferUsages::STORAGE)?;
        let weights = buffer::device_buffer(gpu, "weights", 4 * rank_count, BufferUsages::STORAGE)?;
        let binding = self.kernel.bind(gpu, &[&self.params, &packets, &weights, &self.mean])?;
        let lane = || Lane::new(gpu, 4 * rank_count + bytes, 32 * longest as u64);
        Ok(Inbox { ranks, lanes: [lane()?, lane()?], packets, weights, binding })
    }

    /// Runs the kernel of the first part `times` times on what its buffers hold, and waits: for measuring.
    ///
    /// Returns the bytes that one run reads and writes. Needs an earlier [`Average::average`] with all its ranks in one
    /// batch, whose parameters are then still in place.
    pub(crate) fn rerun(&mut self, times: u32) -> Result<u64, GpuError> {
        let Some(inbox) = &self.inbox else { return Ok(0) };
        let groups = longest(self.elements, self.limits);
        let grid = self.limits.grid(u32::try_from(groups).unwrap_or(u32::MAX));
        self.gpu.guard(|device| {
            let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            for _ in 0..times {
                self.kernel.dispatch(&mut encoder, &inbox.binding, grid);
            }
            self.gpu.queue().submit([encoder.finish()]);
            Ok(())
        })?;
        buffer::idle(&self.gpu)?;
        Ok(groups as u64 * (4 * inbox.ranks as u64 + 32))
    }
}

/// Groups of the longest part, at least 1 so that a buffer is never empty.
fn longest(elements: usize, limits: Limits) -> usize {
    elements.div_ceil(GROUP as usize).min(limits.groups() as usize).max(1)
}

//! `shaders/<codec>/average.wgsl` in the caller's commands.

use wgpu::BufferBinding;

use super::super::codec::check_codec;
use super::super::error::check_length;
use super::super::kernel::{Grid, Limits};
use super::super::{Gpu, GpuError, method};
use super::{Slots, cut, units};
use crate::codec::{AverageError, Codec, Input};

/// What [`Average`] works on.
#[derive(Clone, Debug)]
pub struct AverageBuffers<'a> {
    /// In: a row per rank.
    pub packets: BufferBinding<'a>,
    /// Out.
    pub mean: BufferBinding<'a>,
    /// In and out, a row of words per rank; looked at only if the codec has a state for means.
    pub state: Option<BufferBinding<'a>>,
}

/// How many bytes of each buffer [`Average`] needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AverageBytes {
    /// From one packet in [`AverageBuffers::packets`] to the next: a packet of whole units.
    pub row: u64,
    /// Of [`AverageBuffers::packets`].
    pub packets: u64,
    /// Of [`AverageBuffers::mean`].
    pub mean: u64,
    /// Of [`AverageBuffers::state`]; 0 of a codec without a state for means.
    pub state: u64,
}

impl AverageBytes {
    /// For the packets of `ranks` ranks of `elements` elements.
    #[must_use]
    pub fn new(codec: &Codec, ranks: usize, elements: usize) -> Self {
        let unit = codec.unit();
        let units = elements.div_ceil(unit.elements) as u64;
        let row = units * 4 * unit.words as u64;
        Self {
            row,
            packets: ranks as u64 * row,
            mean: units * 4 * unit.elements as u64,
            state: units * 4 * codec.mean_state_words(ranks, unit.elements) as u64,
        }
    }
}

/// Averages the packets of one shard, or of a part of whole units of it, where they lie. See the [module](super).
#[derive(Debug)]
pub struct Average {
    gpu: Gpu,
    pipeline: wgpu::ComputePipeline,
    codec: Codec,
    elements: usize,
    units: u32,
    ranks: usize,
    grid: Grid,
    slots: Slots,
}

impl Average {
    /// For `ranks` packets (at least 1) of `elements` elements (at least 1) in `buffers`, of which clones are kept.
    ///
    /// # Errors
    ///
    /// Those of [`Encode::new`](super::Encode::new); [`GpuError::HostStep`] of a codec that changes packets on the host
    /// before their mean ([`Codec::clip`]).
    pub fn new(
        gpu: &Gpu,
        codec: &Codec,
        ranks: usize,
        elements: usize,
        buffers: &AverageBuffers<'_>,
    ) -> Result<Self, GpuError> {
        codec.validate()?;
        check_clip(codec)?;
        let method = method::average(codec, 1);
        let units = units(gpu, codec, elements)?;
        if ranks == 0 {
            return Err(AverageError::NoSamples { weights: 0 }.into());
        }
        let bytes = AverageBytes::new(codec, ranks, elements);
        let mut wanted =
            vec![(1, "packets", &buffers.packets, bytes.packets), (3, "mean", &buffers.mean, bytes.mean)];
        if bytes.state > 0 {
            let missing = GpuError::BindingSize { what: "state", needed: bytes.state, given: 0 };
            wanted.push((4, "state", buffers.state.as_ref().ok_or(missing)?, bytes.state));
        }
        let bindings = cut(gpu, &wanted)?;
        // The input type makes no difference to a kernel that reads packets.
        let kernel = gpu.shared_kernel(&method.shader, Input::F32)?;
        let slots = Slots::new(gpu, &kernel, ranks, &bindings)?;
        let grid = Limits::of(gpu).grid(units, method.per_workgroup);
        let (gpu, codec, pipeline) = (gpu.clone(), *codec, kernel.pipeline);
        Ok(Self { gpu, pipeline, codec, elements, units, ranks, grid, slots })
    }

    /// Records one mean into `encoder`, in a pass of its own.
    ///
    /// `codec` is that of [`Average::new`], maybe with other numbers of the same layout; `weights` are samples per rank.
    ///
    /// # Errors
    ///
    /// [`GpuError::Config`], [`GpuError::Codec`], [`GpuError::HostStep`], [`GpuError::Length`] and [`GpuError::Average`] before anything is
    /// recorded; those of a failing device.
    pub fn record(
        &mut self,
        encoder: &mut wgpu::CommandEncoder,
        codec: &Codec,
        weights: &[u32],
    ) -> Result<(), GpuError> {
        let descriptor = wgpu::ComputePassDescriptor { label: Some("average"), timestamp_writes: None };
        self.record_in(&mut encoder.begin_compute_pass(&descriptor), codec, weights)
    }

    /// Records one mean into `pass`, whose pipeline and bind group 0 are then those of the kernel.
    ///
    /// # Errors
    ///
    /// Those of [`Average::record`].
    pub fn record_in(
        &mut self,
        pass: &mut wgpu::ComputePass<'_>,
        codec: &Codec,
        weights: &[u32],
    ) -> Result<(), GpuError> {
        check_codec(&self.codec, codec)?;
        check_clip(codec)?;
        check_length("weights", "ranks", self.ranks, weights.len())?;
        let total = AverageError::check_weights(weights)?;
        let method = method::average(codec, total);
        let params = method.average_params(self.units, self.grid.columns, self.ranks, self.elements);
        let binding = self.slots.with(&self.gpu, &params, weights)?;
        pass.set_pipeline(&self.pipeline);
        pass.set_bind_group(0, binding, &[]);
        pass.dispatch_workgroups(self.grid.columns, self.grid.rows, 1);
        Ok(())
    }
}

/// Refuses a codec that scales packets down by what it reads in all of them.
fn check_clip(codec: &Codec) -> Result<(), GpuError> {
    // Of no packets at all it says whether it would.
    match codec.clip(&[], &[], 0) {
        Some(_) => Err(GpuError::HostStep { codec: codec.id() }),
        None => Ok(()),
    }
}

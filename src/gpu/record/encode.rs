//! `shaders/<codec>/encode.wgsl` in the caller's commands.

use wgpu::BufferBinding;

use super::super::codec::check_codec;
use super::super::kernel::{Grid, Limits};
use super::super::{Gpu, GpuError, method};
use super::{Slots, cut, units};
use crate::codec::{Codec, Input, Step};

/// What [`Encode`] works on.
#[derive(Clone, Debug)]
pub struct EncodeBuffers<'a> {
    /// In.
    pub gradient: BufferBinding<'a>,
    /// In and out; looked at only if the codec has a state.
    pub state: Option<BufferBinding<'a>>,
    /// Out.
    pub packet: BufferBinding<'a>,
    /// Two `u32` to which every recording adds: non-finite elements, saturated codes. With `COPY_DST` usage too.
    pub stats: BufferBinding<'a>,
}

/// How many bytes of each buffer [`Encode`] needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EncodeBytes {
    /// Of [`EncodeBuffers::gradient`].
    pub gradient: u64,
    /// Of [`EncodeBuffers::state`]; 0 of a codec without.
    pub state: u64,
    /// Of [`EncodeBuffers::packet`]; the packet itself may be shorter, [`Codec::packet_words`].
    pub packet: u64,
    /// Of [`EncodeBuffers::stats`].
    pub stats: u64,
}

impl EncodeBytes {
    /// For `elements` elements of type `input`.
    #[must_use]
    pub fn new(codec: &Codec, input: Input, elements: usize) -> Self {
        let unit = codec.unit();
        let units = elements.div_ceil(unit.elements) as u64;
        Self {
            gradient: units * (unit.elements * input.bytes()) as u64,
            state: units * 4 * unit.state_words as u64,
            packet: units * 4 * unit.words as u64,
            stats: 8,
        }
    }
}

/// Encodes one rank's gradient, or a part of whole units of it, where it lies. See the [module](super).
#[derive(Debug)]
pub struct Encode {
    gpu: Gpu,
    pipeline: wgpu::ComputePipeline,
    codec: Codec,
    elements: usize,
    units: u32,
    grid: Grid,
    slots: Slots,
    stats: (wgpu::Buffer, u64),
}

impl Encode {
    /// For `elements` elements (at least 1) of type `input` in `buffers`, of which clones are kept.
    ///
    /// # Errors
    ///
    /// [`GpuError::Config`]; [`GpuError::BindingSize`], [`GpuError::BindingOffset`],
    /// [`GpuError::BindingOverlap`] and [`GpuError::Limits`] of buffers that do not fit; those of a failing device.
    pub fn new(
        gpu: &Gpu,
        codec: &Codec,
        input: Input,
        elements: usize,
        buffers: &EncodeBuffers<'_>,
    ) -> Result<Self, GpuError> {
        codec.validate()?;
        let method = method::encode(codec, Step::FIRST);
        let units = units(gpu, codec, elements)?;
        let bytes = EncodeBytes::new(codec, input, elements);
        let mut wanted = vec![(1, "gradient", &buffers.gradient, bytes.gradient)];
        if bytes.state > 0 {
            let missing = GpuError::BindingSize { what: "state", needed: bytes.state, given: 0 };
            wanted.push((2, "state", buffers.state.as_ref().ok_or(missing)?, bytes.state));
        }
        wanted.push((3, "packet", &buffers.packet, bytes.packet));
        wanted.push((4, "stats", &buffers.stats, bytes.stats));
        let bindings = cut(gpu, &wanted)?;
        let kernel = gpu.shared_kernel(&method.shader, input)?;
        let slots = Slots::new(gpu, &kernel, 0, &bindings)?;
        let grid = Limits::of(gpu).grid(units, method.per_workgroup);
        let stats = (buffers.stats.buffer.clone(), buffers.stats.offset);
        let (gpu, codec, pipeline) = (gpu.clone(), *codec, kernel.pipeline);
        Ok(Self { gpu, pipeline, codec, elements, units, grid, slots, stats })
    }

    /// Records one step into `encoder`, in a pass of its own, with the counts of this step alone in `stats`.
    ///
    /// `codec` is that of [`Encode::new`], maybe with other numbers of the same layout (such as its scale).
    ///
    /// # Errors
    ///
    /// [`GpuError::Config`] and [`GpuError::Codec`] before anything is recorded; those of a failing device.
    pub fn record(
        &mut self,
        encoder: &mut wgpu::CommandEncoder,
        codec: &Codec,
        step: Step,
    ) -> Result<(), GpuError> {
        check_codec(&self.codec, codec)?;
        let (stats, offset) = &self.stats;
        encoder.clear_buffer(stats, *offset, Some(8));
        let descriptor = wgpu::ComputePassDescriptor { label: Some("encode"), timestamp_writes: None };
        self.record_in(&mut encoder.begin_compute_pass(&descriptor), codec, step)
    }

    /// Records one step into `pass`, whose pipeline and bind group 0 are then those of the kernel; `stats` go on counting.
    ///
    /// # Errors
    ///
    /// Those of [`Encode::record`].
    pub fn record_in(
        &mut self,
        pass: &mut wgpu::ComputePass<'_>,
        codec: &Codec,
        step: Step,
    ) -> Result<(), GpuError> {
        check_codec(&self.codec, codec)?;
        let params = method::encode(codec, step).encode_params(self.units, self.grid.columns, self.elements);
        let binding = self.slots.with(&self.gpu, &params, &[])?;
        pass.set_pipeline(&self.pipeline);
        pass.set_bind_group(0, binding, &[]);
        pass.dispatch_workgroups(self.grid.columns, self.grid.rows, 1);
        Ok(())
    }
}

//! A compiled kernel, and how work is cut to what a device accepts.

use super::{Gpu, GpuError, buffer};

/// What one dispatch may use; larger work is split into parts, which changes no bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the largest binding, rounded down to whole units of a codec; a part has at least one unit.
    pub binding_bytes: u64,
    /// Workgroups in one dimension; at least 1. More become a second dimension.
    pub workgroups_per_dimension: u32,
}

impl Limits {
    /// 64 MiB: below every device's binding limit, and small enough that copying one part in overlaps the kernel
    /// on the one before.
    pub const PART_BYTES: u64 = 64 << 20;

    /// What `gpu` allows, at most [`Limits::PART_BYTES`] a binding.
    #[must_use]
    pub fn of(gpu: &Gpu) -> Self {
        let limits = &gpu.info().limits;
        Self {
            // Half a buffer leaves room for the parameters in front of the payload in a staging buffer.
            binding_bytes: limits.binding_bytes.min(limits.buffer_bytes / 2).min(Self::PART_BYTES),
            workgroups_per_dimension: limits.workgroups_per_dimension,
        }
    }

    /// How many units one dispatch takes, of which each has `elements` and needs `bytes` of the largest binding.
    pub(crate) fn units(&self, elements: usize, bytes: usize) -> usize {
        // 2^29 elements are 2 GiB of f32: indices of elements and bytes stay below 2^32.
        let bytes_left = usize::try_from(self.binding_bytes.min(1 << 31)).unwrap_or(usize::MAX);
        (bytes_left / bytes.max(1)).min((1 << 29) / elements.max(1)).max(1)
    }

    /// The grid for `units`, of which one workgroup takes `per_workgroup`.
    pub(crate) fn grid(&self, units: u32, per_workgroup: u32) -> Grid {
        let workgroups = units.div_ceil(per_workgroup.max(1));
        let columns = workgroups.min(self.workgroups_per_dimension.max(1));
        Grid { columns, rows: workgroups.div_ceil(columns.max(1)) }
    }
}

/// A two-dimensional dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    /// Goes into the uniform, as HLSL has no `num_workgroups`.
    pub(crate) columns: u32,
    pub(crate) rows: u32,
}

/// A compute pipeline with the layout of its only bind group.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    name: &'static str,
    pub(crate) pipeline: wgpu::ComputePipeline,
}

impl Kernel {
    pub(crate) fn compile(gpu: &Gpu, name: &'static str, source: &str) -> Result<Self, GpuError> {
        gpu.guard(|device| {
            let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
                label: Some(name),
                source: wgpu::ShaderSource::Wgsl(source.into()),
            });
            let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: Some(name),
                layout: None,
                module: &module,
                entry_point: Some("main"),
                compilation_options: wgpu::PipelineCompilationOptions::default(),
                cache: None,
            });
            Ok(Self { name, pipeline })
        })
    }

    /// Binds `buffers` at 0, 1, ..: the uniform first, then the storage buffers in the shader's order, each but those
    /// that the kernel does without.
    pub(crate) fn bind(
        &self,
        gpu: &Gpu,
        buffers: &[Option<&wgpu::Buffer>],
    ) -> Result<wgpu::BindGroup, GpuError> {
        let whole = |buffer| wgpu::BufferBinding { buffer, offset: 0, size: None };
        let parts = (0_u32..).zip(buffers).filter_map(|(index, buffer)| Some((index, whole((*buffer)?))));
        self.bind_parts(gpu, parts)
    }

    /// Binds parts of buffers at the indices that stand with them.
    pub(crate) fn bind_parts<'a>(
        &self,
        gpu: &Gpu,
        parts: impl Iterator<Item = (u32, wgpu::BufferBinding<'a>)>,
    ) -> Result<wgpu::BindGroup, GpuError> {
        gpu.guard(|device| {
            let entries: Vec<_> = parts
                .map(|(binding, part)| wgpu::BindGroupEntry {
                    binding,
                    resource: wgpu::BindingResource::Buffer(part),
                })
                .collect();
            Ok(device.create_bind_group(&wgpu::BindGroupDescriptor {
                label: Some(self.name),
                layout: &self.pipeline.get_bind_group_layout(0),
                entries: &entries,
            }))
        })
    }

    pub(crate) fn dispatch(&self, encoder: &mut wgpu::CommandEncoder, binding: &wgpu::BindGroup, grid: Grid) {
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
            label: Some(self.name),
            timestamp_writes: None,
        });
        pass.set_pipeline(&self.pipeline);
        pass.set_bind_group(0, binding, &[]);
        pass.dispatch_workgroups(grid.columns, grid.rows, 1);
    }

    /// Dispatches `times` times and waits until all are done: for measuring.
    pub(crate) fn repeat(
        &self,
        gpu: &Gpu,
        binding: &wgpu::BindGroup,
        grid: Grid,
        times: u32,
    ) -> Result<(), GpuError> {
        gpu.guard(|device| {
            let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            for _ in 0..times {
                self.dispatch(&mut encoder, binding, grid);
            }
            gpu.queue().submit([encoder.finish()]);
            Ok(())
        })?;
        buffer::idle(gpu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_covers_every_unit_and_keeps_both_dimensions_below_the_limit() {
        for (units, per_workgroup, limit, columns, rows) in [
            (1, 256, 65_535, 1, 1),
            (256, 256, 65_535, 1, 1),
            (257, 256, 65_535, 2, 1),
            (65_535 * 256, 256, 65_535, 65_535, 1),
            (65_535 * 256 + 1, 256, 65_535, 65_535, 2),
            (1 << 26, 256, 65_535, 65_535, 5),
            (2049, 256, 2, 2, 5),
            (5, 1, 2, 2, 3),
            (5, 4, 2, 2, 1),
        ] {
            let grid =
                Limits { binding_bytes: 32, workgroups_per_dimension: limit }.grid(units, per_workgroup);
            assert_eq!(grid, Grid { columns, rows }, "{units} units, {limit} workgroups per dimension");
            let covered = u64::from(grid.columns) * u64::from(grid.rows) * u64::from(per_workgroup);
            assert!(covered >= u64::from(units), "{units} units");
        }
    }

    #[test]
    fn a_part_has_a_unit_and_at_most_2_gib_whatever_the_limits() {
        for (binding_bytes, elements, bytes, units) in [
            (256, 8, 32, 8),
            (255, 8, 32, 7),
            (256, 4096, 16_384, 1),
            (0, 8, 32, 1),
            (u64::MAX, 8, 32, 1 << 26),
            (u64::MAX, 8, 16, 1 << 26),
            (u64::MAX, 8, 4096, 1 << 19),
        ] {
            let limits = Limits { binding_bytes, workgroups_per_dimension: 1 };
            assert_eq!(limits.units(elements, bytes), units, "{binding_bytes} bytes, {bytes} each");
        }
    }
}

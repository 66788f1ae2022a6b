//! A compiled kernel, and how work is cut to what a device accepts.

use super::{Gpu, GpuError};

/// Invocations in a workgroup: what every WebGPU device accepts, and 2 x faster than 64 on lavapipe 25.
pub(crate) const WORKGROUP: u32 = 256;

/// Elements of one invocation: one packet word.
pub(crate) const GROUP: u32 = 8;

/// What one dispatch may use; larger work is split into parts, which changes no bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the largest binding; at least 32, rounded down to whole groups of 8 f32.
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

    /// Groups of 8 f32 in one binding.
    pub(crate) fn groups(&self) -> u32 {
        let groups = self.binding_bytes / u64::from(4 * GROUP);
        // 2^26 groups are 2 GiB: element indices and byte offsets stay below 2^32.
        u32::try_from(groups).unwrap_or(u32::MAX).clamp(1, 1 << 26)
    }

    /// The grid for one invocation per group.
    pub(crate) fn grid(&self, groups: u32) -> Grid {
        let workgroups = groups.div_ceil(WORKGROUP);
        let columns = workgroups.min(self.workgroups_per_dimension.max(1));
        Grid { columns, rows: workgroups.div_ceil(columns.max(1)) }
    }
}

/// A two-dimensional dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    pub(crate) columns: u32,
    pub(crate) rows: u32,
}

impl Grid {
    /// Invocations in one row: goes into the uniform, as HLSL has no `num_workgroups`.
    pub(crate) fn row(&self) -> u32 {
        self.columns * WORKGROUP
    }
}

/// A compute pipeline with the layout of its only bind group.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    name: &'static str,
    pipeline: wgpu::ComputePipeline,
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

    /// Binds `buffers` at 0, 1, ..: the uniform first, then the storage buffers in the shader's order.
    pub(crate) fn bind(&self, gpu: &Gpu, buffers: &[&wgpu::Buffer]) -> Result<wgpu::BindGroup, GpuError> {
        gpu.guard(|device| {
            let entries: Vec<_> = (0u32..)
                .zip(buffers)
                .map(|(binding, buffer)| wgpu::BindGroupEntry {
                    binding,
                    resource: buffer.as_entire_binding(),
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_covers_every_group_and_keeps_both_dimensions_below_the_limit() {
        for (groups, limit, columns, rows) in [
            (1, 65_535, 1, 1),
            (256, 65_535, 1, 1),
            (257, 65_535, 2, 1),
            (65_535 * 256, 65_535, 65_535, 1),
            (65_535 * 256 + 1, 65_535, 65_535, 2),
            (1 << 26, 65_535, 65_535, 5),
            (2049, 2, 2, 5),
        ] {
            let grid = Limits { binding_bytes: 32, workgroups_per_dimension: limit }.grid(groups);
            assert_eq!(grid, Grid { columns, rows }, "{groups} groups, {limit} workgroups per dimension");
            assert!(u64::from(grid.row()) * u64::from(grid.rows) >= u64::from(groups), "{groups} groups");
        }
    }
}

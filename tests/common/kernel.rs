//! One kernel over one input and one output buffer: for tests of a fragment.

#![allow(clippy::unwrap_used, reason = "test code")]

use gradwire::gpu::wgpu::{self, BufferUsages};
use gradwire::gpu::{Gpu, wgpu::util::DeviceExt};

/// Runs `source` once: `input` at binding 0, `words` zeroed words at binding 1, which come back.
pub(crate) fn run(gpu: &Gpu, source: &str, input: &[u8], words: usize, workgroups: usize) -> Vec<u32> {
    let device = gpu.device();
    let bytes = 4 * words as u64;
    let buffer = |size, usage| {
        device.create_buffer(&wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false })
    };
    let input = device.create_buffer_init(&wgpu::util::BufferInitDescriptor {
        label: None,
        contents: input,
        usage: BufferUsages::STORAGE,
    });
    let output = buffer(bytes, BufferUsages::STORAGE | BufferUsages::COPY_SRC);
    let readback = buffer(bytes, BufferUsages::MAP_READ | BufferUsages::COPY_DST);
    let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
        label: None,
        source: wgpu::ShaderSource::Wgsl(source.into()),
    });
    let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: None,
        layout: None,
        module: &module,
        entry_point: None,
        compilation_options: wgpu::PipelineCompilationOptions::default(),
        cache: None,
    });
    let group = device.create_bind_group(&wgpu::BindGroupDescriptor {
        label: None,
        layout: &pipeline.get_bind_group_layout(0),
        entries: &[entry(0, &input), entry(1, &output)],
    });
    let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    {
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        pass.set_pipeline(&pipeline);
        pass.set_bind_group(0, &group, &[]);
        pass.dispatch_workgroups(u32::try_from(workgroups).unwrap(), 1, 1);
    }
    encoder.copy_buffer_to_buffer(&output, 0, &readback, 0, bytes);
    let submission = gpu.queue().submit([encoder.finish()]);
    readback.map_async(wgpu::MapMode::Read, .., |result| result.unwrap());
    device.poll(wgpu::PollType::Wait { submission_index: Some(submission), timeout: None }).unwrap();
    let view = readback.get_mapped_range(..).unwrap();
    bytemuck::pod_collect_to_vec(&view)
}

fn entry(binding: u32, buffer: &wgpu::Buffer) -> wgpu::BindGroupEntry<'_> {
    wgpu::BindGroupEntry { binding, resource: buffer.as_entire_binding() }
}

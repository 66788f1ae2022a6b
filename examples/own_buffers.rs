//! Encodes a gradient that is on the device already, beside the program's own commands.
//!
//!     cargo run --example own_buffers

use gradwire::codec::{Codec, CodecId, Input, Step};
use gradwire::gpu::record::{Encode, EncodeBuffers, EncodeBytes};
use gradwire::gpu::{Gpu, wgpu};
use wgpu::{BufferBinding, BufferUsages};

const ELEMENTS: usize = 1000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Device, queue and buffer are the program's own; a training framework has them long before.
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle_from_env());
    let adapter = pollster::block_on(instance.request_adapter(&wgpu::RequestAdapterOptions::default()))?;
    let required_limits = wgpu::Limits::downlevel_defaults();
    let descriptor = wgpu::DeviceDescriptor { required_limits, ..Default::default() };
    let (device, queue) = pollster::block_on(adapter.request_device(&descriptor))?;

    // One page for all, as memory pools have them: each part starts at a multiple of 256 bytes.
    let codec = Codec::new(CodecId::Loco);
    let need = EncodeBytes::new(&codec, Input::F32, ELEMENTS);
    let mut end = 0;
    let mut part = |bytes: u64| {
        let start = end;
        end += bytes.next_multiple_of(256);
        start
    };
    let [gradient, state, packet, stats] =
        [need.gradient, need.state, need.packet, need.stats].map(&mut part);
    let buffer = |size, usage| {
        device.create_buffer(&wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false })
    };
    let page = buffer(end, BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST);
    let readback = buffer(need.packet, BufferUsages::MAP_READ | BufferUsages::COPY_DST);

    // Made once: from here on, a step allocates nothing.
    let gpu = Gpu::from_device(&adapter.get_info(), device.clone(), queue.clone());
    let at = |offset| BufferBinding { buffer: &page, offset, size: None };
    let buffers = EncodeBuffers {
        gradient: at(gradient),
        state: Some(at(state)),
        packet: at(packet),
        stats: at(stats),
    };
    let mut encode = Encode::new(&gpu, &codec, Input::F32, ELEMENTS, &buffers)?;

    let mut expected_state = vec![0; codec.state_words(ELEMENTS)];
    for step in (1..=3).filter_map(Step::new) {
        // In the place of a backward pass.
        let values: Vec<f32> = (0..ELEMENTS).map(|i| (i as f32 * step.get() as f32).sin() * 1e-5).collect();
        queue.write_buffer(&page, gradient, bytemuck::cast_slice(&values));

        let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        encode.record(&mut encoder, &codec, step)?;
        encoder.copy_buffer_to_buffer(&page, packet, &readback, 0, need.packet);
        queue.submit([encoder.finish()]);
        readback.map_async(wgpu::MapMode::Read, .., |result| result.expect("the packet can be read"));
        device.poll(wgpu::PollType::wait_indefinitely())?;
        let found: Vec<u32> = bytemuck::pod_collect_to_vec(&readback.get_mapped_range(..)?[..]);
        readback.unmap();

        let mut expected = vec![0; codec.packet_words(ELEMENTS)];
        codec.encode(step, (&values).into(), &mut expected_state, &mut expected);
        assert_eq!(found[..expected.len()], expected, "the CPU is the definition");
        println!("step {}: {} bytes, the same as on the CPU", step.get(), 4 * expected.len());
    }
    Ok(())
}

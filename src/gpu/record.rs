//! Kernels in the caller's own commands, on the caller's own buffers: for programs whose gradients are on the device.
//!
//! **What.** [`Encode`] and [`Average`] are made once for a set of buffers and then record one dispatch per step into a
//! [`wgpu::CommandEncoder`] or [`wgpu::ComputePass`]. Nothing is allocated, waited for or read back; submitting is the
//! caller's. [`Gpu::from_device`] takes the caller's device and queue. `examples/own_buffers.rs` is a whole program.
//!
//! **Buffers.** Each is a [`wgpu::BufferBinding`] of a buffer with `STORAGE` usage: `offset` a multiple of the device's
//! `min_storage_buffer_offset_alignment` (256 is one everywhere), `size` at least what [`EncodeBytes`] or
//! [`AverageBytes`] says, `None` up to the end of the buffer. All may be parts of one buffer, as pools hand them out, if
//! they do not overlap: everything is bound for reading and writing. They hold whole [`Unit`](crate::codec::Unit)s:
//!
//! - gradient: the elements behind the last one are zero up to a whole unit, else they are encoded too;
//! - state: zeros before the first step, afterwards what the last step left there;
//! - packet: what is sent are its first [`Codec::packet_words`] words;
//! - packets: a row of [`AverageBytes::row`] bytes per rank in rank order, each a packet and zeros behind it;
//! - mean: f32, of which what lies behind the last element says nothing.
//!
//! One object is one dispatch. A gradient beyond the device's binding limit is encoded by several, each from a multiple
//! of a unit on: units do not touch each other.
//!
//! **Exactness.** That of [`gpu::Encode`](super::Encode) and [`gpu::Average`](super::Average). Kernels stay inside their
//! buffers whatever words they find. But nobody looks at packets on the device: where the CPU function would refuse one
//! that no encoder writes, the mean is some number.
//!
//! **Parameters** travel through the queue and are there when the caller submits next. [`IN_FLIGHT`] recordings of one
//! object with different parameters may wait for their submission; one more would change the oldest of them.

use wgpu::{BufferBinding, BufferUsages};

pub use self::average::{Average, AverageBuffers, AverageBytes};
pub use self::encode::{Encode, EncodeBuffers, EncodeBytes};
use super::buffer::{HEAD_BYTES, device_buffer};
use super::kernel::Kernel;
use super::method::WORDS;
use super::{Gpu, GpuError};
use crate::codec::Codec;

mod average;
mod encode;

/// How many recordings of one object with different parameters may wait for their submission.
pub const IN_FLIGHT: usize = 8;

/// Indices of elements and bytes stay below 2^32.
const MOST_ELEMENTS: usize = 1 << 29;

/// Binding index, what for, the caller's buffer, and how many bytes of it the kernel sees.
type Wanted<'a> = (u32, &'static str, &'a BufferBinding<'a>, u64);

/// Cuts every buffer to the bytes wanted, after checking sizes, offsets, and that none touches another.
fn cut<'a>(gpu: &Gpu, wanted: &[Wanted<'a>]) -> Result<Vec<(u32, BufferBinding<'a>)>, GpuError> {
    let limits = gpu.device().limits();
    let alignment = u64::from(limits.min_storage_buffer_offset_alignment);
    let available = limits.max_storage_buffer_binding_size;
    for (place, &(_, what, BufferBinding { buffer, offset, size }, needed)) in wanted.iter().enumerate() {
        let offset = *offset;
        if needed > available {
            let (adapter, limit) = (gpu.info().name.clone(), "max_storage_buffer_binding_size");
            return Err(GpuError::Limits { adapter, limit, needed, available });
        }
        if !offset.is_multiple_of(alignment) {
            return Err(GpuError::BindingOffset { what, offset, alignment });
        }
        let left = buffer.size().saturating_sub(offset);
        let given = size.map_or(left, |size| left.min(size.get()));
        if given < needed {
            return Err(GpuError::BindingSize { what, needed, given });
        }
        let touches = |(_, _, other, bytes): &&Wanted<'_>| {
            other.buffer == *buffer && offset < other.offset + bytes && other.offset < offset + needed
        };
        if let Some((_, first, ..)) = wanted[..place].iter().find(touches) {
            return Err(GpuError::BindingOverlap { first, second: what });
        }
    }
    let cut = |&(index, _, binding, bytes): &Wanted<'a>| {
        (index, BufferBinding { size: wgpu::BufferSize::new(bytes), ..binding.clone() })
    };
    Ok(wanted.iter().map(cut).collect())
}

/// Parameters of the recordings that wait for their submission: a slot each, used in turn.
#[derive(Debug)]
struct Slots {
    params: wgpu::Buffer,
    /// Weights of every slot; only an average has them.
    weights: Option<wgpu::Buffer>,
    /// Bytes from one slot's weights to the next.
    weights_stride: u64,
    bindings: Vec<wgpu::BindGroup>,
    current: usize,
    /// What is in the current slot; none before the first recording.
    written: Vec<u32>,
}

impl Slots {
    /// `buffers` are what the kernel binds besides the parameters and, for `ranks` above 0, the weights.
    fn new(
        gpu: &Gpu,
        kernel: &Kernel,
        ranks: usize,
        buffers: &[(u32, BufferBinding<'_>)],
    ) -> Result<Self, GpuError> {
        let slots = IN_FLIGHT as u64;
        let params = device_buffer(gpu, "params", slots * HEAD_BYTES, BufferUsages::UNIFORM)?;
        let weight_bytes = 4 * ranks as u64;
        let weights_stride = weight_bytes.next_multiple_of(HEAD_BYTES);
        let weights = match ranks {
            0 => None,
            _ => Some(device_buffer(gpu, "weights", slots * weights_stride, BufferUsages::STORAGE)?),
        };
        let mut written = Vec::new();
        written.reserve_exact(4 + WORDS + ranks);
        let bindings = (0..slots).map(|slot| {
            let part =
                |buffer, offset, bytes| BufferBinding { buffer, offset, size: wgpu::BufferSize::new(bytes) };
            let own = [
                Some((0, part(&params, slot * HEAD_BYTES, HEAD_BYTES))),
                weights.as_ref().map(|weights| (2, part(weights, slot * weights_stride, weight_bytes))),
            ];
            kernel.bind_parts(gpu, own.into_iter().flatten().chain(buffers.iter().cloned()))
        });
        let bindings = bindings.collect::<Result<_, _>>()?;
        Ok(Self { params, weights, weights_stride, bindings, current: 0, written })
    }

    /// The binding in which the kernel finds `params` and `weights`, once everything recorded is submitted.
    fn with(&mut self, gpu: &Gpu, params: &[u32], weights: &[u32]) -> Result<&wgpu::BindGroup, GpuError> {
        let (old, old_weights) = self.written.split_at(self.written.len().min(params.len()));
        if old != params || old_weights != weights {
            self.current = (self.current + 1) % IN_FLIGHT;
            self.written.clear();
            let slot = self.current as u64;
            gpu.guard(|_| {
                gpu.queue().write_buffer(&self.params, slot * HEAD_BYTES, bytemuck::cast_slice(params));
                if let Some(buffer) = &self.weights {
                    let offset = slot * self.weights_stride;
                    gpu.queue().write_buffer(buffer, offset, bytemuck::cast_slice(weights));
                }
                Ok(())
            })?;
            self.written.extend_from_slice(params);
            self.written.extend_from_slice(weights);
        }
        Ok(&self.bindings[self.current])
    }
}

/// Units of `elements` elements as kernels count them; refused if it is not at least one, or more than one dispatch.
fn units(gpu: &Gpu, codec: &Codec, elements: usize) -> Result<u32, GpuError> {
    if elements == 0 {
        return Err(GpuError::Length { what: "gradient", unit: "elements", expected: 1, given: 0 });
    }
    if elements > MOST_ELEMENTS {
        let (needed, available) = (elements as u64, MOST_ELEMENTS as u64);
        let adapter = gpu.info().name.clone();
        return Err(GpuError::Limits { adapter, limit: "elements of a dispatch", needed, available });
    }
    Ok(u32::try_from(elements.div_ceil(codec.unit().elements)).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{CodecId, Input};

    #[test]
    fn the_bytes_of_a_buffer_are_those_of_whole_units() {
        let loco = Codec::new(CodecId::Loco);
        let EncodeBytes { gradient, state, packet, stats } = EncodeBytes::new(&loco, Input::F16, 9);
        assert_eq!((gradient, state, packet, stats), (32, 16, 8, 8));
        let AverageBytes { row, packets, mean, state } = AverageBytes::new(&loco, 3, 9);
        assert_eq!((row, packets, mean, state), (8, 24, 64, 0));
    }
}

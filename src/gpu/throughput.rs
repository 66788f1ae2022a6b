//! How fast an adapter runs the kernels, against a plain copy on the same device.
//!
//! **What.** Seconds of the kernels on data that is on the device already, and of whole calls with their transfers.
//!
//! **Cost.** At least 0.35 s a measurement, and the memory of the states it makes.

use std::time::Instant;

use wgpu::BufferUsages;

use super::buffer::{self, device_buffer};
use super::{Average, Encode, Gpu, GpuError, Limits};
use crate::codec::loco::Config;
use crate::codec::{Codec, Input, Step};

/// Repeats of every measurement.
const REPEATS: usize = 5;

/// A repeat runs as often as fills this many seconds, so that submission and wake-up do not count.
const REPEAT_SECONDS: f64 = 0.05;

/// Bytes that the copy reads, and writes: together beyond any cache.
const COPY_BYTES: u64 = 64 << 20;

/// Seconds of one run, over several repeats.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Rate {
    /// Bytes that one run reads and writes.
    pub bytes: u64,
    /// Median seconds of one run.
    pub seconds: f64,
    /// Fastest.
    pub min: f64,
    /// Slowest.
    pub max: f64,
}

impl Rate {
    /// 10^9 bytes read and written per second, at the median.
    #[must_use]
    pub fn gb_per_s(&self) -> f64 {
        self.bytes as f64 / self.seconds / 1e9
    }

    /// Measures `work`, which is told how often to run and returns the bytes of one run.
    ///
    /// # Errors
    ///
    /// Those of `work`.
    pub fn measure<E>(mut work: impl FnMut(u32) -> Result<u64, E>) -> Result<Self, E> {
        // Once for warming up, once to learn how often fills a repeat.
        work(1)?;
        let start = Instant::now();
        let bytes = work(1)?;
        let once = start.elapsed().as_secs_f64().max(1e-9);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 1 and 1000")]
        let times = (REPEAT_SECONDS / once).clamp(1.0, 1000.0) as u32;
        let mut seconds = Vec::new();
        for _ in 0..REPEATS {
            let start = Instant::now();
            work(times)?;
            seconds.push(start.elapsed().as_secs_f64() / f64::from(times));
        }
        seconds.sort_by(f64::total_cmp);
        Ok(Self { bytes, seconds: seconds[REPEATS / 2], min: seconds[0], max: seconds[REPEATS - 1] })
    }
}

/// What [`measure`] found.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Throughput {
    /// Elements of one kernel run: those asked for, at most one part.
    pub elements: usize,
    /// Ranks that the average had.
    pub ranks: usize,
    /// The encode kernel: 6.5 bytes per element.
    pub encode: Rate,
    /// The average kernel: half a byte per element and rank, and 4 bytes per element.
    pub average: Rate,
    /// A copy from one device buffer to another.
    pub copy: Rate,
    /// A whole call of [`Encode::encode`], with upload and readback: 4.5 bytes per element over the bus.
    pub encode_call: Rate,
}

/// Measures the kernels and a copy on `gpu`, on `elements` elements (at least 1; at most 16 Mi count).
///
/// # Errors
///
/// Those of a failing device.
pub fn measure(gpu: &Gpu, elements: usize) -> Result<Throughput, GpuError> {
    const RANKS: usize = 4;
    let part = usize::try_from(Limits::of(gpu).binding_bytes / 4).unwrap_or(usize::MAX) & !7;
    let elements = elements.clamp(1, part);
    let codec = Codec::Loco(Config { scale_log2: 0, ..Config::default() });
    let gradient: Vec<f32> = (0..elements).map(|at| (at * 7 % 251) as f32 / 50.0 - 2.5).collect();
    let mut packet = vec![0; codec.packet_words(elements)];

    let mut encode = Encode::new(gpu, &codec, Input::F32, elements)?;
    let encode_call = Rate::measure(|times| {
        for _ in 0..times {
            encode.encode(&codec, Step::FIRST, (&gradient).into(), &mut packet)?;
        }
        Ok::<_, GpuError>(elements as u64 * 9 / 2)
    })?;
    let encode_rate = Rate::measure(|times| Ok::<_, GpuError>(encode.rerun(times)? * 13 / 2))?;
    drop(encode);

    let mut average = Average::new(gpu, &codec, elements)?;
    let mut mean = gradient;
    average.average(&codec, &[packet.as_slice(); RANKS], &[1; RANKS], &mut mean)?;
    let average_rate = Rate::measure(|times| average.rerun(times))?;
    drop(average);

    let copy = copy(gpu, COPY_BYTES.min(gpu.info().limits.buffer_bytes / 4 * 4))?;
    Ok(Throughput { elements, ranks: RANKS, encode: encode_rate, average: average_rate, copy, encode_call })
}

/// Copies `bytes` between two device buffers, which moves twice as many.
fn copy(gpu: &Gpu, bytes: u64) -> Result<Rate, GpuError> {
    let from = device_buffer(gpu, "copy source", bytes, BufferUsages::empty())?;
    let to = device_buffer(gpu, "copy target", bytes, BufferUsages::empty())?;
    Rate::measure(|times| {
        gpu.guard(|device| {
            let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            for _ in 0..times {
                encoder.copy_buffer_to_buffer(&from, 0, &to, 0, bytes);
            }
            gpu.queue().submit([encoder.finish()]);
            Ok(())
        })?;
        buffer::idle(gpu)?;
        Ok(2 * bytes)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code")]

    use super::*;

    #[test]
    fn a_rate_is_the_median_of_its_repeats_in_order() {
        let rate = Rate::measure(|times| {
            std::thread::sleep(std::time::Duration::from_micros(u64::from(times)));
            Ok::<_, std::convert::Infallible>(100)
        })
        .unwrap();
        assert!(rate.min <= rate.seconds && rate.seconds <= rate.max, "{rate:?}");
        assert_eq!(rate.bytes, 100);
    }
}

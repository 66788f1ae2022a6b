//! How fast an adapter runs the kernels, against a plain copy on the same device.
//!
//! **What.** Seconds of the kernels of any codec on data that is on the device already.
//!
//! **Cost.** About 0.35 s a measurement, of which there are three, or 7 runs of a kernel that takes longer than 0.05 s;
//! and the memory of the states it makes.

use std::time::Instant;

use wgpu::BufferUsages;

use super::buffer::{self, device_buffer};
use super::{Average, Encode, Gpu, GpuError, Limits};
use crate::codec::{Codec, Gradient, Input, Step};

/// Repeats of every measurement.
pub const REPEATS: usize = 5;

/// Ranks of every average.
pub const RANKS: usize = 4;

/// Their samples: odd, so that no product of the mean is a shift.
pub const WEIGHTS: [u32; RANKS] = [3, 5, 7, 9];

/// A repeat runs as often as fills this many seconds, so that submission and wake-up do not count.
const REPEAT_SECONDS: f64 = 0.05;

/// No repeat is shorter than this, whatever a first run took, unless it has [`MOST_RUNS`] already.
const SHORTEST_SECONDS: f64 = 0.005;

/// The most runs of a repeat, about: 1,000 doubled ten times.
const MOST_RUNS: u32 = 1_000_000;

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
        let mut times = (REPEAT_SECONDS / once).clamp(1.0, 1000.0) as u32;
        // One short run says little of the next: more of them until the clock has something to see.
        while times < MOST_RUNS {
            let start = Instant::now();
            work(times)?;
            if start.elapsed().as_secs_f64() >= SHORTEST_SECONDS {
                break;
            }
            times *= 2;
        }
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

/// Bytes that the encode of `elements` elements reads and writes: gradient, packet, and the state twice; whole units.
#[must_use]
pub fn encode_bytes(codec: &Codec, input: Input, elements: usize) -> u64 {
    let unit = codec.unit();
    let bytes = unit.elements * input.bytes() + 4 * unit.words + 8 * unit.state_words;
    elements.div_ceil(unit.elements) as u64 * bytes as u64
}

/// Bytes that the average of `ranks` packets of `elements` elements reads and writes: packets, mean, and the state of a
/// codec that has one for means twice; whole units.
#[must_use]
pub fn average_bytes(codec: &Codec, ranks: usize, elements: usize) -> u64 {
    let unit = codec.unit();
    let state_words = codec.mean_state_words(ranks, unit.elements);
    let bytes = 4 * ranks * unit.words + 4 * unit.elements + 8 * state_words;
    elements.div_ceil(unit.elements) as u64 * bytes as u64
}

/// What [`measure`] found.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Throughput {
    /// Elements of one kernel run: those of the gradient, at most what the adapter takes in one dispatch.
    pub elements: usize,
    /// The encode kernel: [`encode_bytes`].
    pub encode: Rate,
    /// The average kernel: [`average_bytes`].
    pub average: Rate,
    /// A copy from one device buffer to another, which moves as many bytes as the encode.
    pub copy: Rate,
}

/// Measures the kernels of `codec` and a copy on `gpu`, with [`RANKS`] ranks in the average.
///
/// The data decide how much some codecs have to do: `gradient` should have about the scale that the codec is run with.
///
/// # Errors
///
/// Those of a failing device, and [`GpuError::Length`] of a gradient without elements.
pub fn measure(gpu: &Gpu, codec: &Codec, gradient: Gradient<'_>) -> Result<Throughput, GpuError> {
    if gradient.is_empty() {
        return Err(GpuError::Length { what: "gradient", unit: "elements", expected: 1, given: 0 });
    }
    // One dispatch as large as the device takes it: the host's own parts are as small as copying asks for.
    let available = &gpu.info().limits;
    let binding_bytes = available.binding_bytes.min(available.buffer_bytes / 2);
    let limits = Limits { binding_bytes, ..Limits::of(gpu) };
    let unit = codec.unit();
    let words = (RANKS * unit.words).max(unit.state_words).max(codec.mean_state_words(RANKS, unit.elements));
    let most = limits.units(unit.elements, 4 * words.max(unit.elements)) * unit.elements;
    let elements = gradient.len().min(most);
    let gradient = gradient.slice(0..elements);
    let mut packet = vec![0; codec.packet_words(elements)];

    let mut encode = Encode::with_limits(gpu, codec, gradient.input(), elements, limits)?;
    // Fills the buffers that the kernel then runs on.
    encode.encode(codec, Step::FIRST, gradient, &mut packet)?;
    let bytes = encode_bytes(codec, gradient.input(), elements);
    let encode_rate = Rate::measure(|times| encode.rerun(times).map(|()| bytes))?;
    drop(encode);

    let mut average = Average::with_limits(gpu, codec, elements, limits)?;
    average.average(codec, &[packet.as_slice(); RANKS], &WEIGHTS, &mut vec![0.0; elements])?;
    let average_bytes = average_bytes(codec, RANKS, elements);
    let average_rate = Rate::measure(|times| average.rerun(times).map(|()| average_bytes))?;
    drop(average);

    let copy = copy(gpu, (bytes / 8 * 4).clamp(4, available.buffer_bytes / 4 * 4))?;
    Ok(Throughput { elements, encode: encode_rate, average: average_rate, copy })
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
    use crate::codec::CodecId;

    #[test]
    fn bytes_are_those_of_whole_units_and_of_loco_6_and_a_half_per_element() {
        let loco = Codec::new(CodecId::Loco);
        assert_eq!(encode_bytes(&loco, Input::F32, 1 << 20), 13 << 19);
        assert_eq!(encode_bytes(&loco, Input::F16, 9), 2 * (16 + 4 + 16));
        assert_eq!(average_bytes(&loco, RANKS, 1 << 20), 6 << 20);
        assert_eq!(encode_bytes(&Codec::F32, Input::F32, 8), 64);
    }

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

    #[test]
    fn a_repeat_of_short_runs_is_long_enough_for_the_clock() {
        let run = std::time::Duration::from_nanos(500);
        let shortest = || {
            let mut last = 0.0;
            Rate::measure(|times| {
                let (start, whole) = (Instant::now(), run * times);
                while start.elapsed() < whole {}
                last = whole.as_secs_f64();
                Ok::<_, std::convert::Infallible>(100)
            })
            .unwrap();
            last
        };
        // A machine that is busy elsewhere makes a short repeat look long, but not five times in a row.
        assert!(
            (0..5).any(|_| shortest() >= SHORTEST_SECONDS / 2.0),
            "repeats of {run:?} runs are too short"
        );
    }
}

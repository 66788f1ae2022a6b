//! Staging: bytes to the device and back, in buffers that stay for the life of a codec state.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Instant;

use wgpu::{BufferUsages, MapMode, PollError, PollType};

use super::{Gpu, GpuError};

/// Bytes in front of the payload of an upload: the parameters. 256 is the largest alignment a device may ask for.
pub(crate) const HEAD_BYTES: u64 = 256;

/// [`HEAD_BYTES`] as an offset in the mapped buffer.
pub(crate) const HEAD: usize = 256;

type Mapped = Result<(), wgpu::BufferAsyncError>;

/// Bytes of an upload from `at` on, and behind them so many zeros.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece<'a> {
    pub(crate) at: usize,
    pub(crate) bytes: &'a [u8],
    pub(crate) zeros: usize,
}

/// One upload and one readback buffer, and the submission that uses them.
///
/// The upload buffer is mapped whenever nothing is in flight: writing into it costs one copy. `write_buffer` was
/// measured 5 x slower (219 against 42 ms for 256 MiB, lavapipe).
#[derive(Debug)]
pub(crate) struct Lane {
    upload: wgpu::Buffer,
    readback: wgpu::Buffer,
    flight: Option<Flight>,
}

#[derive(Debug)]
struct Flight {
    submission: wgpu::SubmissionIndex,
    mapped: Receiver<Mapped>,
    /// Which piece of the caller's work it is.
    job: usize,
}

impl Lane {
    pub(crate) fn new(gpu: &Gpu, payload_bytes: u64, readback_bytes: u64) -> Result<Self, GpuError> {
        gpu.guard(|device| {
            let upload = device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("upload"),
                size: HEAD_BYTES + payload_bytes,
                usage: BufferUsages::MAP_WRITE | BufferUsages::COPY_SRC,
                mapped_at_creation: true,
            });
            let readback = device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("readback"),
                size: readback_bytes,
                usage: BufferUsages::MAP_READ | BufferUsages::COPY_DST,
                mapped_at_creation: false,
            });
            Ok(Self { upload, readback, flight: None })
        })
    }

    /// Writes `pieces` and submits what `record` records.
    ///
    /// `record` gets the upload buffer, and the readback buffer to copy results into. The lane must have landed.
    pub(crate) fn submit<'a>(
        &mut self,
        gpu: &Gpu,
        job: usize,
        pieces: impl IntoIterator<Item = Piece<'a>>,
        record: impl FnOnce(&mut wgpu::CommandEncoder, &wgpu::Buffer, &wgpu::Buffer),
    ) -> Result<(), GpuError> {
        let flight = gpu.guard(|device| {
            // One view of the whole: views may only start at multiples of 8, packets at multiples of 4.
            let mut view = self.upload.get_mapped_range_mut(..).map_err(|error| map_failed(gpu, &error))?;
            for Piece { at, bytes, zeros } in pieces {
                let end = at + bytes.len();
                view.slice(at..end).copy_from_slice(bytes);
                view.slice(end..end + zeros).fill(0);
            }
            drop(view);
            self.upload.unmap();
            let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            record(&mut encoder, &self.upload, &self.readback);
            let submission = gpu.queue().submit([encoder.finish()]);
            let (sender, mapped) = channel();
            let map = |buffer: &wgpu::Buffer, mode| {
                let sender = sender.clone();
                // Nobody listens if the lane was dropped meanwhile: then nobody waits either.
                buffer.map_async(mode, .., move |result| drop(sender.send(result)));
            };
            map(&self.upload, MapMode::Write);
            map(&self.readback, MapMode::Read);
            Ok(Flight { submission, mapped, job })
        })?;
        self.flight = Some(flight);
        Ok(())
    }

    /// Waits for what is in flight, if anything, and hands its job number and readback bytes to `take`.
    pub(crate) fn land(&mut self, gpu: &Gpu, take: impl FnOnce(usize, &[u8])) -> Result<(), GpuError> {
        let Some(flight) = self.flight.take() else { return Ok(()) };
        wait(gpu, flight.submission, &flight.mapped)?;
        let view = self.readback.get_mapped_range(..).map_err(|error| map_failed(gpu, &error))?;
        take(flight.job, &view);
        drop(view);
        self.readback.unmap();
        Ok(())
    }
}

/// A buffer that kernels bind or copies touch.
pub(crate) fn device_buffer(
    gpu: &Gpu,
    label: &str,
    bytes: u64,
    usage: BufferUsages,
) -> Result<wgpu::Buffer, GpuError> {
    gpu.guard(|device| {
        Ok(device.create_buffer(&wgpu::BufferDescriptor {
            label: Some(label),
            size: bytes,
            usage: usage | BufferUsages::COPY_DST | BufferUsages::COPY_SRC,
            mapped_at_creation: false,
        }))
    })
}

/// Reads the whole of `buffer` through a temporary one: for state that is looked at rarely.
pub(crate) fn read(gpu: &Gpu, buffer: &wgpu::Buffer, take: impl FnOnce(&[u8])) -> Result<(), GpuError> {
    let bytes = buffer.size();
    let mut lane = Lane::new(gpu, 0, bytes)?;
    lane.submit(gpu, 0, [], |encoder, _, readback| {
        encoder.copy_buffer_to_buffer(buffer, 0, readback, 0, bytes);
    })?;
    lane.land(gpu, |_, bytes| take(bytes))
}

/// Waits until everything submitted so far is done.
pub(crate) fn idle(gpu: &Gpu) -> Result<(), GpuError> {
    poll(gpu, None, Instant::now() + gpu.deadline())
}

/// Waits for `submission` and the map callbacks of both buffers of its lane.
fn wait(gpu: &Gpu, submission: wgpu::SubmissionIndex, mapped: &Receiver<Mapped>) -> Result<(), GpuError> {
    let until = Instant::now() + gpu.deadline();
    poll(gpu, Some(submission), until)?;
    for _ in 0..2 {
        // The callbacks ran in our poll, or run right now in the poll of another thread that shares the device.
        match mapped.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(map_failed(gpu, &error)),
            Err(RecvTimeoutError::Timeout) => return Err(timeout(gpu)),
            Err(RecvTimeoutError::Disconnected) => return Err(gpu.lost("it dropped a pending map request")),
        }
    }
    Ok(())
}

fn poll(gpu: &Gpu, submission_index: Option<wgpu::SubmissionIndex>, until: Instant) -> Result<(), GpuError> {
    let timeout_left = until.saturating_duration_since(Instant::now());
    poll_for(gpu, PollType::Wait { submission_index, timeout: Some(timeout_left) })
}

/// Runs pending callbacks and returns at once.
pub(crate) fn poll_once(gpu: &Gpu) -> Result<(), GpuError> {
    poll_for(gpu, PollType::Poll)
}

fn poll_for(gpu: &Gpu, how: wgpu::PollType) -> Result<(), GpuError> {
    // wgpu 30 panics in `poll` when the driver reports the device lost; there is no fallible form of it.
    match catch_unwind(AssertUnwindSafe(|| gpu.device().poll(how))) {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(PollError::Timeout)) => Err(timeout(gpu)),
        // The submission never reached the queue.
        Ok(Err(error)) => Err(gpu.lost(&error.to_string())),
        Err(_) => Err(gpu.lost("the driver reported it lost while waiting")),
    }
}

fn timeout(gpu: &Gpu) -> GpuError {
    GpuError::Timeout { adapter: gpu.info().name.clone(), deadline: gpu.deadline() }
}

/// A buffer of ours that cannot be mapped was destroyed with its device.
fn map_failed(gpu: &Gpu, error: &dyn std::error::Error) -> GpuError {
    gpu.lost(&format!("a staging buffer cannot be mapped: {error}"))
}

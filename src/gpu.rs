//! WGSL kernels and their host side, through wgpu: Vulkan, Metal and DX12 from one source.
//!
//! **What.** [`Gpu`] is an opened adapter; [`Encode`] and [`Average`] compute any [`Codec`](crate::codec::Codec) on it;
//! [`record`] does so in the caller's own commands and buffers;
//! [`probe`] asks whether an adapter gives the bits of the CPU definition; [`throughput`] measures the kernels.
//! [`Optimizer`] moves parameters by a mean, [`Owner`] by packets. [`source::SHADERS`] is the table of kernels.
//!
//! **Exactness.** No kernel of a codec contains a float operation: WGSL fixes neither a rounding mode nor subnormals, and drivers
//! fuse and reorder floats. Integers are the same everywhere, so every adapter equals [`crate::codec`] in every bit.
//! The optimizers compute in floats, once for all ranks: see [`Optimizer`].
//!
//! **Cost.** Buffers are allocated once per codec state and reused by every step. A device error is a [`GpuError`]:
//! never a panic, never a wait without a deadline.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub use self::adapter::{AdapterChoice, AdapterInfo, AdapterLimits, DeviceType, adapters};
pub use self::codec::{Average, Encode};
pub use self::error::GpuError;
pub use self::kernel::Limits;
pub use self::optim::{Optimizer, Owner, has_optimizer};
/// The wgpu that this crate was built with, for callers that bring their own device.
pub use wgpu;

use self::kernel::Kernel;
use crate::codec::Input;

mod adapter;
mod buffer;
mod codec;
mod error;
mod kernel;
mod method;
mod optim;
pub mod probe;
pub mod record;
pub mod source;
pub mod throughput;

/// How long one submission may take before it counts as failed.
///
/// 30 s: a driver's own watchdog acts after 2 to 10 s, and lavapipe encodes 16 Mi elements in 0.2 s.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(30);

/// An opened adapter: device, queue and compiled kernels. Clones share them; usable from several threads.
#[derive(Clone, Debug)]
pub struct Gpu(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    info: AdapterInfo,
    device: wgpu::Device,
    queue: wgpu::Queue,
    deadline: Duration,
    /// A pipeline takes 2 to 30 ms, so it is made once per device.
    kernels: Mutex<HashMap<KernelKey, Kernel>>,
    /// Why the device was lost, once it is.
    lost: Arc<Mutex<Option<String>>>,
}

/// Shader path, input type, and whether all is bound for writing.
type KernelKey = (&'static str, Option<Input>, bool);

impl Gpu {
    /// Opens the adapter that `choice` names, else the best one: discrete before integrated before virtual and other
    /// before software.
    ///
    /// # Errors
    ///
    /// [`GpuError::NoAdapter`] says what to install, or which adapters were seen; [`GpuError::RequestDevice`] if the
    /// driver refuses; [`GpuError::Limits`] if the adapter is below WebGPU's downlevel limits.
    pub fn open(choice: &AdapterChoice) -> Result<Self, GpuError> {
        let (info, device, queue) = adapter::open(choice)?;
        let lost = Arc::new(Mutex::new(None));
        let reason = Arc::clone(&lost);
        device.set_device_lost_callback(move |_, message| {
            *reason.lock().unwrap_or_else(PoisonError::into_inner) = Some(message);
        });
        // Without a handler wgpu panics. What reaches it comes from no call of ours, so it can only be logged.
        device.on_uncaptured_error(Arc::new(|error| tracing::error!(%error, "uncaptured device error")));
        Ok(Self::new(info, device, queue, lost))
    }

    /// Uses a device that the caller opened and keeps; its callbacks stay the caller's.
    ///
    /// `adapter_info` is what [`Gpu::info`] tells and errors name. The device needs WebGPU's downlevel limits:
    /// 4 storage buffers, workgroups of 256.
    #[must_use]
    pub fn from_device(adapter_info: &wgpu::AdapterInfo, device: wgpu::Device, queue: wgpu::Queue) -> Self {
        let info = AdapterInfo::new(adapter_info, &device.limits());
        Self::new(info, device, queue, Arc::default())
    }

    fn new(
        info: AdapterInfo,
        device: wgpu::Device,
        queue: wgpu::Queue,
        lost: Arc<Mutex<Option<String>>>,
    ) -> Self {
        let kernels = Mutex::default();
        Self(Arc::new(Inner { info, device, queue, deadline: DEFAULT_DEADLINE, kernels, lost }))
    }

    /// The same device with another deadline for each submission (default [`DEFAULT_DEADLINE`]); kernels are compiled anew.
    #[must_use]
    pub fn with_deadline(&self, deadline: Duration) -> Self {
        Self(Arc::new(Inner {
            info: self.0.info.clone(),
            device: self.0.device.clone(),
            queue: self.0.queue.clone(),
            deadline,
            kernels: Mutex::default(),
            lost: Arc::clone(&self.0.lost),
        }))
    }

    /// What the adapter is and can do.
    #[must_use]
    pub fn info(&self) -> &AdapterInfo {
        &self.0.info
    }

    /// The wgpu device.
    #[must_use]
    pub fn device(&self) -> &wgpu::Device {
        &self.0.device
    }

    /// The queue of [`Gpu::device`].
    #[must_use]
    pub fn queue(&self) -> &wgpu::Queue {
        &self.0.queue
    }

    pub(crate) fn deadline(&self) -> Duration {
        self.0.deadline
    }

    /// The compiled kernel of one row of [`source::SHADERS`], made at the first call for its `input`.
    pub(crate) fn kernel(&self, shader: &source::Shader, input: Input) -> Result<Kernel, GpuError> {
        self.kernel_as(shader, input, false)
    }

    /// As [`Gpu::kernel`], with every storage buffer bound for reading and writing: wgpu takes one buffer in one dispatch
    /// as either of both, whichever parts of it are bound.
    pub(crate) fn shared_kernel(&self, shader: &source::Shader, input: Input) -> Result<Kernel, GpuError> {
        self.kernel_as(shader, input, true)
    }

    fn kernel_as(&self, shader: &source::Shader, input: Input, shared: bool) -> Result<Kernel, GpuError> {
        let mut kernels = self.0.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (shader.path, shader.gradient.then_some(input), shared);
        if let Some(kernel) = kernels.get(&key) {
            return Ok(kernel.clone());
        }
        let mut source = shader.source(input);
        if shared {
            source = source.replace("var<storage, read>", "var<storage, read_write>");
        }
        let kernel = Kernel::compile(self, shader.path, &source)?;
        kernels.insert(key, kernel.clone());
        Ok(kernel)
    }

    /// Runs `work` so that whatever wgpu finds wrong comes back as an error: without a scope it would panic.
    pub(crate) fn guard<T>(
        &self,
        work: impl FnOnce(&wgpu::Device) -> Result<T, GpuError>,
    ) -> Result<T, GpuError> {
        use wgpu::ErrorFilter::{Internal, OutOfMemory, Validation};
        self.check_lost()?;
        let scopes = [Validation, OutOfMemory, Internal].map(|filter| self.0.device.push_error_scope(filter));
        let result = work(&self.0.device);
        let mut caught = None;
        for scope in scopes.into_iter().rev() {
            caught = pollster::block_on(scope.pop()).or(caught);
        }
        // A lost device also shows as follow-up errors; the loss is the cause.
        self.check_lost()?;
        match caught {
            None => result,
            Some(error) => Err(GpuError::device(&self.0.info.name, error)),
        }
    }

    fn check_lost(&self) -> Result<(), GpuError> {
        // In a statement of its own: `lost` takes the lock again.
        let reason = self.0.lost.lock().unwrap_or_else(PoisonError::into_inner).clone();
        reason.map_or(Ok(()), |reason| Err(self.lost(&reason)))
    }

    /// Lets wgpu tell about a loss that it has not told yet: it does so in a poll only.
    pub(crate) fn check_alive(&self) -> Result<(), GpuError> {
        buffer::poll_once(self)?;
        self.check_lost()
    }

    /// The typed form of a device loss, remembered for every later call.
    pub(crate) fn lost(&self, reason: &str) -> GpuError {
        let mut lost = self.0.lost.lock().unwrap_or_else(PoisonError::into_inner);
        let reason = lost.get_or_insert_with(|| reason.to_owned());
        GpuError::DeviceLost { adapter: self.0.info.name.clone(), reason: reason.clone() }
    }
}

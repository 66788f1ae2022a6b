//! Which adapters there are, and which one is opened.

use super::GpuError;

/// Which adapter to open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdapterChoice {
    /// Part of the adapter's [`label`](AdapterInfo::label), in any case: its name, or `vulkan` of a GPU that two backends
    /// offer; `None` (default) takes the best adapter.
    pub name: Option<String>,
}

/// What an adapter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceType {
    /// A GPU with memory of its own.
    Discrete,
    /// A GPU that shares the CPU's memory.
    Integrated,
    /// A GPU behind a hypervisor.
    Virtual,
    /// The driver does not say.
    Other,
    /// A program on the CPU: lavapipe, SwiftShader, WARP.
    Software,
}

impl std::fmt::Display for DeviceType {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Discrete => "discrete",
            Self::Integrated => "integrated",
            Self::Virtual => "virtual",
            Self::Other => "other",
            Self::Software => "software",
        })
    }
}

/// The limits that decide how work is split.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AdapterLimits {
    /// Largest buffer in bytes.
    pub buffer_bytes: u64,
    /// Largest part of a buffer that one kernel can see, in bytes.
    pub binding_bytes: u64,
    /// Workgroups in one dimension of a dispatch.
    pub workgroups_per_dimension: u32,
    /// Invocations in one workgroup.
    pub workgroup_invocations: u32,
}

/// An adapter, as its driver describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AdapterInfo {
    /// Name of the device.
    pub name: String,
    /// `vulkan`, `metal` or `dx12`.
    pub backend: String,
    /// Name and version of the driver.
    pub driver: String,
    /// What it is.
    pub device_type: DeviceType,
    /// What it can do.
    pub limits: AdapterLimits,
}

impl AdapterInfo {
    pub(crate) fn new(info: &wgpu::AdapterInfo, limits: &wgpu::Limits) -> Self {
        Self {
            name: info.name.clone(),
            backend: info.backend.to_str().to_owned(),
            driver: format!("{} {}", info.driver, info.driver_info).trim().to_owned(),
            device_type: match info.device_type {
                wgpu::DeviceType::DiscreteGpu => DeviceType::Discrete,
                wgpu::DeviceType::IntegratedGpu => DeviceType::Integrated,
                wgpu::DeviceType::VirtualGpu => DeviceType::Virtual,
                wgpu::DeviceType::Other => DeviceType::Other,
                wgpu::DeviceType::Cpu => DeviceType::Software,
            },
            limits: AdapterLimits {
                buffer_bytes: limits.max_buffer_size,
                binding_bytes: limits.max_storage_buffer_binding_size,
                workgroups_per_dimension: limits.max_compute_workgroups_per_dimension,
                workgroup_invocations: limits.max_compute_invocations_per_workgroup,
            },
        }
    }

    /// `name (backend, type)`: what [`AdapterChoice::name`] is compared with.
    #[must_use]
    pub fn label(&self) -> String {
        self.to_string()
    }
}

impl std::fmt::Display for AdapterInfo {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} ({}, {})", self.name, self.backend, self.device_type)
    }
}

/// Every adapter of this machine, best first: the order in which [`super::Gpu::open`] prefers them.
///
/// `WGPU_BACKEND` (`vulkan`, `dx12`, `metal`) restricts the list, as in every wgpu program.
#[must_use]
pub fn adapters() -> Vec<AdapterInfo> {
    enumerate().into_iter().map(|(info, _)| info).collect()
}

pub(super) fn open(choice: &AdapterChoice) -> Result<(AdapterInfo, wgpu::Device, wgpu::Queue), GpuError> {
    let found = enumerate();
    let seen = found.iter().map(|(info, _)| info.label()).collect();
    let wanted = choice.name.as_ref().map(|name| name.to_lowercase());
    let fits = |info: &AdapterInfo| {
        wanted.as_ref().is_none_or(|wanted| info.label().to_lowercase().contains(wanted))
    };
    let Some((info, adapter)) = found.into_iter().find(|(info, _)| fits(info)) else {
        return Err(GpuError::NoAdapter { wanted: choice.name.clone(), seen });
    };
    let required = required_limits(&info)?;
    let device = adapter.request_device(&wgpu::DeviceDescriptor {
        label: Some("gradwire"),
        required_limits: required,
        ..Default::default()
    });
    let (device, queue) = pollster::block_on(device)
        .map_err(|source| GpuError::RequestDevice { adapter: info.name.clone(), source })?;
    Ok((info, device, queue))
}

fn enumerate() -> Vec<(AdapterInfo, wgpu::Adapter)> {
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle_from_env());
    let found = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::all()));
    let mut found: Vec<_> = found
        .into_iter()
        .map(|adapter| (AdapterInfo::new(&adapter.get_info(), &adapter.limits()), adapter))
        .collect();
    // Stable, so that equal types keep the order of the loader.
    found.sort_by_key(|(info, _)| info.device_type);
    found
}

/// WebGPU's downlevel limits, with the sizes that this adapter really has.
fn required_limits(info: &AdapterInfo) -> Result<wgpu::Limits, GpuError> {
    let base = wgpu::Limits::downlevel_defaults();
    let limits = &info.limits;
    for (limit, needed, available) in [
        (
            "max_compute_invocations_per_workgroup",
            base.max_compute_invocations_per_workgroup,
            limits.workgroup_invocations,
        ),
        (
            "max_compute_workgroups_per_dimension",
            base.max_compute_workgroups_per_dimension,
            limits.workgroups_per_dimension,
        ),
    ] {
        if available < needed {
            let (needed, available) = (needed.into(), available.into());
            return Err(GpuError::Limits { adapter: info.name.clone(), limit, needed, available });
        }
    }
    Ok(wgpu::Limits {
        max_buffer_size: limits.buffer_bytes,
        max_storage_buffer_binding_size: limits.binding_bytes,
        max_compute_workgroups_per_dimension: limits.workgroups_per_dimension,
        ..base
    })
}

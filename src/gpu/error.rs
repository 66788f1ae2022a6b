//! What can go wrong on a device, and whose fault it is.

use std::time::Duration;

use crate::codec::{CodecId, Input};

/// A failure of the GPU side. Every message names the adapter, or the caller's two numbers.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// No adapter at all, or none that fits the wanted name.
    #[error("{}", no_adapter(.wanted.as_deref(), .seen))]
    NoAdapter {
        /// The name that was asked for.
        wanted: Option<String>,
        /// Names of the adapters that were there.
        seen: Vec<String>,
    },
    /// The driver of `adapter` gave no device.
    #[error("adapter {adapter} gives no device: {source}")]
    RequestDevice {
        /// Name of the adapter.
        adapter: String,
        /// The reason as wgpu puts it.
        source: wgpu::RequestDeviceError,
    },
    /// `adapter` cannot do what every kernel needs.
    #[error("adapter {adapter} offers {available} for {limit}, the kernels need {needed}")]
    Limits {
        /// Name of the adapter.
        adapter: String,
        /// wgpu's name of the limit.
        limit: &'static str,
        /// What the kernels need.
        needed: u64,
        /// What the adapter has.
        available: u64,
    },
    /// The device went away: unplugged, reset by its driver, or destroyed by its owner.
    #[error("device {adapter} is lost: {reason}")]
    DeviceLost {
        /// Name of the adapter.
        adapter: String,
        /// The reason as the driver puts it.
        reason: String,
    },
    /// The device did not finish one submission within the deadline.
    #[error("device {adapter} did not finish within {deadline:.1?}")]
    Timeout {
        /// Name of the adapter.
        adapter: String,
        /// What it was given.
        deadline: Duration,
    },
    /// The device has not enough memory.
    #[error("device {adapter} is out of memory")]
    OutOfMemory {
        /// Name of the adapter.
        adapter: String,
    },
    /// wgpu or the driver refused an operation: a bug here or in the driver, with wgpu's words.
    #[error("device {adapter} refused an operation: {message}")]
    Device {
        /// Name of the adapter.
        adapter: String,
        /// wgpu's words.
        message: String,
    },
    /// An earlier call failed midway, so that the codec's state is unknown.
    #[error("an earlier call on device {adapter} failed midway: set the state, or start anew")]
    Broken {
        /// Name of the adapter.
        adapter: String,
    },
    /// The caller's slice has another length than the state was made for.
    #[error("{what} has {given} {unit}, this state was made for {expected}")]
    Length {
        /// Which argument.
        what: &'static str,
        /// What is counted.
        unit: &'static str,
        /// The length that fits.
        expected: usize,
        /// The length given.
        given: usize,
    },
    /// The codec changes packets on the host before their mean, which nobody does to packets on the device.
    #[error(
        "codec {codec} changes packets on the host before their mean: it averages packets of the host only"
    )]
    HostStep {
        /// The codec that was asked for.
        codec: CodecId,
    },
    /// The caller's codec is another than the state was made for.
    #[error("codec is {given}, this state was made for {expected}")]
    Codec {
        /// The codec that fits.
        expected: CodecId,
        /// The codec given.
        given: CodecId,
    },
    /// The caller's gradient has another element type than the state was made for.
    #[error("gradient is {}, this state was made for {}", .given.name(), .expected.name())]
    Input {
        /// The type that fits.
        expected: Input,
        /// The type given.
        given: Input,
    },
    /// The caller's buffer, or the part of it that is to be bound, is too small.
    #[error("{what} has {given} bytes to bind, the kernel needs {needed}")]
    BindingSize {
        /// Which buffer.
        what: &'static str,
        /// Bytes needed.
        needed: u64,
        /// Bytes from the offset on.
        given: u64,
    },
    /// The part of the caller's buffer that is to be bound begins where the device can't bind.
    #[error("{what} begins at byte {offset}, the device binds at multiples of {alignment}")]
    BindingOffset {
        /// Which buffer.
        what: &'static str,
        /// The offset given.
        offset: u64,
        /// The device's alignment.
        alignment: u64,
    },
    /// Two parts of one buffer of the caller overlap.
    #[error("{first} and {second} overlap in one buffer")]
    BindingOverlap {
        /// One of them.
        first: &'static str,
        /// The other.
        second: &'static str,
    },
    /// The optimizer has no kernel: it runs on the CPU.
    #[error("optimizer {optimizer} has no GPU kernel")]
    NoOptimizerKernel {
        /// The optimizer.
        optimizer: &'static str,
    },
    /// The caller's state is that of another optimizer.
    #[error("state of optimizer {given}, this one is {expected}")]
    OptimizerKind {
        /// The optimizer that fits.
        expected: &'static str,
        /// The one that the state is of.
        given: &'static str,
    },
    /// The caller's optimizer parameters or learning rate are out of range.
    #[error(transparent)]
    Optimizer(#[from] crate::optim::ConfigError),
    /// The caller's configuration is out of range.
    #[error(transparent)]
    Config(#[from] crate::codec::ConfigError),
    /// The caller's state is one that no encoder leaves.
    #[error(transparent)]
    State(#[from] crate::codec::StateError),
    /// The packets and weights do not fit each other, or a packet says what no encoder says.
    #[error(transparent)]
    Average(#[from] crate::codec::AverageError),
}

impl GpuError {
    /// The typed form of what an error scope caught.
    pub(crate) fn device(adapter: &str, error: wgpu::Error) -> Self {
        let adapter = adapter.to_owned();
        match error {
            wgpu::Error::OutOfMemory { .. } => Self::OutOfMemory { adapter },
            wgpu::Error::Validation { description, .. } | wgpu::Error::Internal { description, .. } => {
                // wgpu's report has several indented lines; an error here is one.
                let message = description.split_whitespace().collect::<Vec<_>>().join(" ");
                Self::Device { adapter, message }
            }
        }
    }
}

pub(crate) fn check_length(
    what: &'static str,
    unit: &'static str,
    expected: usize,
    given: usize,
) -> Result<(), GpuError> {
    if expected == given { Ok(()) } else { Err(GpuError::Length { what, unit, expected, given }) }
}

fn no_adapter(wanted: Option<&str>, seen: &[String]) -> String {
    match (wanted, seen) {
        (Some(name), [_, ..]) => format!("no adapter is named like {name:?}, seen: {}", seen.join(", ")),
        _ => "no GPU adapter on this machine: install the driver of its GPU, or a software adapter, on Debian-like \
              systems with `apt-get install mesa-vulkan-drivers libvulkan1`"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_adapter_says_what_to_install_and_a_wrong_name_what_was_seen() {
        let none = GpuError::NoAdapter { wanted: Some("x".into()), seen: vec![] }.to_string();
        assert!(none.contains("apt-get install mesa-vulkan-drivers libvulkan1"), "{none}");
        let other = GpuError::NoAdapter { wanted: Some("x".into()), seen: vec!["a".into(), "b".into()] };
        assert_eq!(other.to_string(), "no adapter is named like \"x\", seen: a, b");
    }
}

//! Which device computes a rank's codec.

use gradwire::gpu::{self, AdapterChoice, DeviceType, Gpu, probe};
use gradwire::sync::{Backend, Scheme};

use crate::args::BackendName;
use crate::failure::Failure;
use crate::say::note;

/// An opened device, and its name where it has one.
pub(crate) struct Opened {
    pub(crate) backend: Backend,
    /// `cpu` or `gpu`.
    pub(crate) kind: &'static str,
    pub(crate) adapter: Option<String>,
}

/// What `auto` comes to on this machine, and a line that says why it is the CPU, if it is.
///
/// A software adapter counts only if it was asked for by name: the CPU functions give the same bits faster. Nor does one
/// that does not give the bits of the codecs in `schemes`.
pub(crate) fn settle(
    asked: BackendName,
    adapter: Option<&str>,
    schemes: &[Scheme],
) -> (BackendName, Option<String>) {
    if asked != BackendName::Auto {
        return (asked, None);
    }
    let found = gpu::adapters();
    let fits = |label: &str| adapter.is_none_or(|part| label.to_lowercase().contains(&part.to_lowercase()));
    let usable = found
        .iter()
        .any(|info| (info.device_type != DeviceType::Software || adapter.is_some()) && fits(&info.label()));
    let seen: Vec<String> = found.iter().map(|info| info.label()).collect();
    let why = match (seen.is_empty(), adapter) {
        _ if usable => match open_exact(adapter, schemes) {
            Ok(_) => return (BackendName::Gpu, None),
            Err(failure) => failure.to_string(),
        },
        (true, _) => "no adapter found (gradwire doctor says what to install)".to_owned(),
        (false, Some(part)) => format!("no adapter has {part:?} in its name, only: {}", seen.join(", ")),
        (false, None) => format!("no hardware adapter, only: {}", seen.join(", ")),
    };
    (BackendName::Cpu, Some(format!("backend auto: {why}; using the CPU, which gives the same bits")))
}

/// Opens what [`settle`] gave, for `scheme`.
pub(crate) fn open(settled: BackendName, adapter: Option<&str>, scheme: &Scheme) -> Result<Opened, Failure> {
    if matches!(scheme, Scheme::PowerSgd(_)) && settled == BackendName::Gpu {
        note!("powersgd has no kernels: it runs on the CPU");
    }
    if settled != BackendName::Gpu || matches!(scheme, Scheme::PowerSgd(_)) {
        return Ok(Opened { backend: Backend::Cpu, kind: "cpu", adapter: None });
    }
    let gpu = open_exact(adapter, std::slice::from_ref(scheme))?;
    let name = gpu.info().name.clone();
    Ok(Opened { backend: Backend::Gpu(gpu), kind: "gpu", adapter: Some(name) })
}

/// Opens the best adapter with `adapter` in its name, if it gives the bits of the codecs in `schemes`.
fn open_exact(adapter: Option<&str>, schemes: &[Scheme]) -> Result<Gpu, Failure> {
    let gpu = Gpu::open(&AdapterChoice { name: adapter.map(str::to_owned) }).map_err(Failure::work)?;
    for scheme in schemes {
        // PowerSGD is computed by the CPU.
        let Scheme::Codec(codec) = scheme else { continue };
        if let Some(difference) = probe::difference_for(&gpu, codec).map_err(Failure::work)? {
            return Err(Failure::Work(format!("adapter {} is not exact: {difference}", gpu.info().name)));
        }
    }
    Ok(gpu)
}

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
/// A software adapter does not count: the CPU functions give the same bits faster. Nor does one that does not give the bits
/// of the codecs in `schemes`. Who asks for an adapter by name gets it or an error.
pub(crate) fn settle(
    asked: BackendName,
    adapter: Option<&str>,
    schemes: &[Scheme],
) -> (BackendName, Option<String>) {
    match (asked, adapter) {
        (BackendName::Auto, None) => {}
        (BackendName::Auto, Some(_)) => return (BackendName::Gpu, None),
        _ => return (asked, None),
    }
    let found = gpu::adapters();
    let why = if found.iter().any(|info| info.device_type != DeviceType::Software) {
        match open_exact(None, schemes) {
            Ok(_) => return (BackendName::Gpu, None),
            Err(failure) => failure.to_string(),
        }
    } else if found.is_empty() {
        "no adapter found (gradwire doctor says what to install)".to_owned()
    } else {
        let seen: Vec<String> = found.iter().map(|info| info.label()).collect();
        format!("no hardware adapter, only: {}", seen.join(", "))
    };
    (BackendName::Cpu, Some(format!("backend auto: {why}; using the CPU, which gives the same bits")))
}

/// Refuses an adapter's name where none of `asked` uses one.
pub(crate) fn check(asked: &[BackendName], adapter: Option<&str>) -> Result<(), Failure> {
    match adapter {
        Some(name) if asked.iter().all(|asked| *asked == BackendName::Cpu) => Err(Failure::Usage(format!(
            "--adapter {name} belongs to --backend gpu or auto; --backend is cpu"
        ))),
        _ => Ok(()),
    }
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

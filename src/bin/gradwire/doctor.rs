//! `gradwire doctor`: what can this machine do, and what should be changed?
//!
//! Every adapter is asked for exactness (bit for bit the CPU definition) and speed. Ends with 0 also without any:
//! a rank without a GPU is a full member of a run.

use gradwire::codec::loco::{self, Config};
use gradwire::codec::{Codec, Input};
use gradwire::gpu::throughput;
use gradwire::gpu::{AdapterChoice, AdapterInfo, DeviceType, Gpu, GpuError, adapters, probe};
use gradwire::transport::quic::Tuning;
use serde::Serialize;

use crate::bench::cpu::{self, Values};
use crate::failure::Failure;

/// Elements that an adapter measures: 104 MB in and out, beyond any cache.
const ELEMENTS: usize = 16 << 20;

/// For software adapters, which are 100 times slower: the verb stays below 10 s.
const ELEMENTS_IN_SOFTWARE: usize = 4 << 20;

/// Show what this machine can do: its adapters, whether they are exact, how fast they are, and its UDP sockets.
///
/// Measures for some seconds, and says what should be changed. Ends with 0 also without any adapter: a rank without
/// a GPU is a full member of a run.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Print one JSON object on stdout instead of text.
    #[arg(long)]
    json: bool,
}

/// Looks, measures, and prints on stdout.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let report = examine()?;
    if args.json {
        crate::say::print(serde_json::to_string(&report).map_err(Failure::work)?)
    } else {
        crate::say::print(text(&report))
    }
}

#[derive(Serialize)]
struct Report {
    adapters: Vec<Adapter>,
    cpu: Cpu,
    udp: Udp,
    advice: Vec<String>,
}

#[derive(Serialize)]
struct Adapter {
    name: String,
    backend: String,
    driver: String,
    r#type: String,
    exact: bool,
    /// What is wrong, if it is not exact: the first difference, or the device's error.
    problem: Option<String>,
    encode_gb_per_s: Option<f64>,
    copy_gb_per_s: Option<f64>,
    limits: AdapterLimits,
}

#[derive(Serialize)]
struct AdapterLimits {
    buffer_bytes: u64,
    binding_bytes: u64,
    workgroups_per_dimension: u32,
    workgroup_invocations: u32,
}

#[derive(Serialize)]
struct Cpu {
    encode_gb_per_s: f64,
    copy_gb_per_s: f64,
    simd: &'static str,
}

/// `null` where the system does not tell.
#[derive(Serialize)]
struct Udp {
    socket_buffer: Option<u64>,
    gso: Option<bool>,
    gro: Option<bool>,
}

fn examine() -> Result<Report, Failure> {
    let found = adapters();
    let adapters: Vec<Adapter> = found.iter().map(examine_adapter).collect();
    let cpu = measure_cpu()?;
    let udp = examine_udp();
    let advice = advice(&found, &adapters, &cpu, &udp);
    Ok(Report { adapters, cpu, udp, advice })
}

fn examine_adapter(info: &AdapterInfo) -> Adapter {
    let limits = AdapterLimits {
        buffer_bytes: info.limits.buffer_bytes,
        binding_bytes: info.limits.binding_bytes,
        workgroups_per_dimension: info.limits.workgroups_per_dimension,
        workgroup_invocations: info.limits.workgroup_invocations,
    };
    let mut adapter = Adapter {
        name: info.name.clone(),
        backend: info.backend.clone(),
        driver: info.driver.clone(),
        r#type: info.device_type.to_string(),
        exact: false,
        problem: None,
        encode_gb_per_s: None,
        copy_gb_per_s: None,
        limits,
    };
    if let Err(error) = try_adapter(info, &mut adapter) {
        adapter.problem = Some(error.to_string());
    }
    adapter
}

fn try_adapter(info: &AdapterInfo, adapter: &mut Adapter) -> Result<(), GpuError> {
    let gpu = Gpu::open(&AdapterChoice { name: Some(info.label()) })?;
    let difference = probe::difference(&gpu)?;
    adapter.exact = difference.is_none();
    adapter.problem = difference.map(|difference| difference.to_string());
    let software = info.device_type == DeviceType::Software;
    let values = Values::new(Input::F32, if software { ELEMENTS_IN_SOFTWARE } else { ELEMENTS });
    let measured = throughput::measure(&gpu, &codec(), values.gradient())?;
    adapter.encode_gb_per_s = Some(measured.encode.gb_per_s());
    adapter.copy_gb_per_s = Some(measured.copy.gb_per_s());
    Ok(())
}

/// What speed is told of.
fn codec() -> Codec {
    cpu::scaled(Codec::Loco(Config::default()))
}

/// One core, as one rank of a fleet uses it.
fn measure_cpu() -> Result<Cpu, Failure> {
    let values = Values::new(Input::F32, ELEMENTS);
    let rates = cpu::measure(&codec(), values.gradient()).map_err(Failure::work)?;
    let (encode_gb_per_s, copy_gb_per_s) = (rates.encode.gb_per_s(), rates.copy.gb_per_s());
    Ok(Cpu { encode_gb_per_s, copy_gb_per_s, simd: loco::fastest().name })
}

/// What the Linux kernel tells under `/proc`; elsewhere nothing.
fn examine_udp() -> Udp {
    let number = |name: &str| {
        std::fs::read_to_string(format!("/proc/sys/net/core/{name}")).ok()?.trim().parse::<u64>().ok()
    };
    let socket_buffer = number("rmem_max").zip(number("wmem_max")).map(|(receive, send)| receive.min(send));
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").ok();
    let since = |version| release.as_deref().and_then(kernel_version).map(|kernel| kernel >= version);
    // UDP_SEGMENT came with Linux 4.18, UDP_GRO with 5.0.
    Udp { socket_buffer, gso: since((4, 18)), gro: since((5, 0)) }
}

/// Major and minor of a release such as `6.1.0-28-amd64`.
fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn advice(found: &[AdapterInfo], adapters: &[Adapter], cpu: &Cpu, udp: &Udp) -> Vec<String> {
    let mut advice = Vec::new();
    if found.is_empty() {
        advice.push(GpuError::NoAdapter { wanted: None, seen: Vec::new() }.to_string());
    } else if found.iter().all(|info| info.device_type == DeviceType::Software) {
        let best = adapters.iter().filter_map(|adapter| adapter.encode_gb_per_s).fold(0.0, f64::max);
        if best < cpu.encode_gb_per_s {
            advice.push(format!(
                "only software adapters, the best encodes {best:.1} GB/s, one CPU core {:.1} GB/s: use --backend cpu, and \
                 install the driver of the GPU if there is one",
                cpu.encode_gb_per_s
            ));
        }
    }
    for adapter in adapters {
        if let Some(problem) = &adapter.problem {
            advice.push(format!("do not use adapter {} ({}): {problem}", adapter.name, adapter.backend));
        }
    }
    let asked = Tuning::default().socket_buffer;
    if let Some(bytes) = udp.socket_buffer.filter(|bytes| *bytes < asked as u64) {
        advice.push(format!(
            "UDP socket buffers end at {bytes} bytes, a fast link needs {asked}: \
             sysctl -w net.core.rmem_max={asked} net.core.wmem_max={asked}"
        ));
    }
    if udp.gso == Some(false) {
        advice.push("this kernel has no UDP segmentation offload, Linux 4.18 or later has".to_owned());
    }
    advice
}

/// The report for humans.
fn text(report: &Report) -> String {
    let rate = |rate: Option<f64>| rate.map_or("-".to_owned(), |rate| format!("{rate:.1} GB/s"));
    let known = |flag: Option<bool>| flag.map_or("unknown", |flag| if flag { "yes" } else { "no" });
    let mut lines = vec![format!("{} adapter(s)", report.adapters.len())];
    for adapter in &report.adapters {
        lines.push(format!("  {}", adapter.name));
        lines.push(format!("    {}, {}, {}", adapter.backend, adapter.r#type, adapter.driver));
        lines.push(format!(
            "    {}, encode {}, copy {}",
            if adapter.exact { "exact" } else { "NOT exact" },
            rate(adapter.encode_gb_per_s),
            rate(adapter.copy_gb_per_s)
        ));
        let (buffer, binding) = (adapter.limits.buffer_bytes >> 20, adapter.limits.binding_bytes >> 20);
        lines.push(format!("    buffer {buffer} MiB, binding {binding} MiB"));
    }
    let Report { cpu, udp, .. } = report;
    lines.push(format!("cpu, one core: {}", cpu.simd));
    let (encode, copy) = (rate(Some(cpu.encode_gb_per_s)), rate(Some(cpu.copy_gb_per_s)));
    lines.push(format!("    encode {encode}, copy {copy}"));
    let buffer = udp.socket_buffer.map_or("unknown".to_owned(), |bytes| format!("{} KiB", bytes >> 10));
    lines.push(format!("udp: socket buffer {buffer}, gso {}, gro {}", known(udp.gso), known(udp.gro)));
    lines.extend(report.advice.iter().map(|advice| format!("advice: {advice}")));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_releases_are_compared_by_number() {
        assert_eq!(kernel_version("6.1.0-28-amd64\n"), Some((6, 1)));
        assert_eq!(kernel_version("4.18.0"), Some((4, 18)));
        assert!(kernel_version("4.9.0") < Some((4, 18)));
        assert_eq!(kernel_version("none"), None);
    }

    #[test]
    fn advice_names_an_adapter_that_is_not_exact_and_small_socket_buffers() {
        let limits = AdapterLimits {
            buffer_bytes: 1,
            binding_bytes: 1,
            workgroups_per_dimension: 1,
            workgroup_invocations: 1,
        };
        let adapter = Adapter {
            name: "a".into(),
            backend: "vulkan".into(),
            driver: String::new(),
            r#type: "discrete".into(),
            exact: false,
            problem: Some("mean[3] differs".into()),
            encode_gb_per_s: None,
            copy_gb_per_s: None,
            limits,
        };
        let cpu = Cpu { encode_gb_per_s: 1.0, copy_gb_per_s: 1.0, simd: "avx2" };
        let udp = Udp { socket_buffer: Some(212_992), gso: Some(true), gro: Some(true) };
        let advice = advice(&[], &[adapter], &cpu, &udp);
        assert!(advice.iter().any(|line| line.contains("mesa-vulkan-drivers")), "{advice:?}");
        assert!(
            advice.iter().any(|line| line.contains("do not use adapter a (vulkan): mean[3]")),
            "{advice:?}"
        );
        assert!(advice.iter().any(|line| line.contains("212992 bytes")), "{advice:?}");
    }
}

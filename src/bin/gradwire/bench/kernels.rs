//! `gradwire bench kernels`: encode, average and copy, for every codec and backend.

use std::fmt;
use std::time::Instant;

use clap::ValueEnum;
use gradwire::codec::{Codec, CodecId, Input, ParseCodecError};
use gradwire::gpu::throughput::{self, RANKS, REPEATS, Rate};
use gradwire::gpu::{AdapterChoice, AdapterInfo, DeviceType, Gpu, GpuError, adapters};
use gradwire::sync::{Scheme, powersgd};
use serde::Serialize;

use super::cpu::{self, Values};
use super::size;
use crate::args::CODEC;
use crate::failure::Failure;
use crate::say::note;

/// Elements per run where `--elements` does not say: beyond any cache, and all codecs are done in about a minute.
const ON_HARDWARE: usize = 64 << 20;
const ON_CPU: usize = 8 << 20;
const IN_SOFTWARE: usize = 1 << 20;

/// Encode, average of 4 ranks, and copy: GB/s of each codec on each backend, and its share of the copy.
///
/// Kernels are measured on data that are on the device, the CPU functions on one core. Bytes are those that a function
/// reads and writes: gradient, packet and twice the state for encode; 4 packets, mean and twice the state (if any) for
/// average. The copy moves as many as encode. Without options it takes about a minute on 2 cores.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Elements of a gradient, as in 1000, 16M or 64Mi; at most 1Gi, and on an adapter what one dispatch takes
    /// [default: 64Mi on a GPU, 8Mi on the CPU, 1Mi on a software adapter].
    #[arg(long, value_name = "COUNT", value_parser = elements)]
    elements: Option<usize>,
    /// Codec to measure, or one with parameters as in `loco:decay=0`; repeatable [default: every codec].
    #[arg(long, value_name = CODEC, value_parser = parse_codec)]
    codec: Vec<Codec>,
    /// Element type of the gradient.
    #[arg(long, value_enum, default_value_t = InputName::F32)]
    input: InputName,
    /// Who is measured: `auto` = the CPU and a hardware adapter if there is one, `cpu`, `gpu` = the best adapter (fails
    /// if there is none), `all` = the CPU and every adapter.
    #[arg(long, value_enum, default_value_t = Backend::Auto)]
    backend: Backend,
    /// Use only adapters with this in their name, in any case; software adapters then count as hardware for `auto`.
    #[arg(long, value_name = "SUBSTRING")]
    adapter: Option<String>,
    /// Print one JSON object on stdout instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum InputName {
    F32,
    F16,
    Bf16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Backend {
    Auto,
    Cpu,
    Gpu,
    All,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Report {
    /// Element type of the gradients.
    input: &'static str,
    /// Of the average.
    ranks: usize,
    rows: Vec<Row>,
}

/// One function of one codec on one backend.
#[derive(Debug, Serialize)]
struct Row {
    /// `cpu` (one core) or `gpu`.
    backend: &'static str,
    adapter: Option<String>,
    /// As `--codec` takes it; without parameters that are the defaults.
    codec: String,
    /// `encode`, `average` or `copy`.
    kernel: &'static str,
    elements: usize,
    /// Read and written by one run.
    bytes: u64,
    /// How many times it was measured.
    repeats: usize,
    /// Of one run, the median.
    seconds: f64,
    /// The fastest repeat, in seconds.
    min: f64,
    /// The slowest.
    max: f64,
    /// At the median.
    gb_per_s: f64,
    share_of_copy: f64,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let codecs = match args.codec.as_slice() {
        [] => CodecId::ALL.map(Codec::new).to_vec(),
        some => some.to_vec(),
    };
    let input = match args.input {
        InputName::F32 => Input::F32,
        InputName::F16 => Input::F16,
        InputName::Bf16 => Input::Bf16,
    };
    let chosen = choose(args)?;
    let mut rows = Vec::new();
    if args.backend != Backend::Gpu {
        let values = Values::new(input, args.elements.unwrap_or(ON_CPU));
        for codec in &codecs {
            let watch = Watch::new("cpu", codec);
            let measured = cpu::measure(&cpu::scaled(*codec), values.gradient())
                .map_err(|error| Failure::Work(format!("cpu: {error}")))?;
            let rates = [measured.encode, measured.average, measured.copy];
            rows.extend(three_rows("cpu", None, codec, values.gradient().len(), rates));
            watch.tell();
        }
    }
    for info in chosen {
        let failed = |error: GpuError| Failure::Work(format!("{}: {error}", info.label()));
        let gpu = Gpu::open(&AdapterChoice { name: Some(info.label()) }).map_err(failed)?;
        let software = info.device_type == DeviceType::Software;
        let elements = args.elements.unwrap_or(if software { IN_SOFTWARE } else { ON_HARDWARE });
        let values = Values::new(input, elements);
        for codec in &codecs {
            let watch = Watch::new(&info.name, codec);
            let measured =
                throughput::measure(&gpu, &cpu::scaled(*codec), values.gradient()).map_err(failed)?;
            let rates = [measured.encode, measured.average, measured.copy];
            rows.extend(three_rows("gpu", Some(&info.name), codec, measured.elements, rates));
            watch.tell();
        }
    }
    let report = Report { input: input.name(), ranks: RANKS, rows };
    if args.json {
        crate::say::print(serde_json::to_string(&report).map_err(Failure::work)?)
    } else {
        crate::say::print(report)
    }
}

/// More would be terabytes by a slip of the hand.
fn elements(text: &str) -> Result<usize, String> {
    const MOST: usize = 1 << 30;
    let count = size::parse(text)?;
    if count > MOST { Err(format!("{count} elements, must be at most 1Gi")) } else { Ok(count) }
}

fn parse_codec(text: &str) -> Result<Codec, String> {
    let scheme = Scheme::from(powersgd::Config::default()).id();
    if text.split(':').next() == Some(scheme.name()) {
        return Err(format!("{scheme} is a scheme of exchange without kernels"));
    }
    text.parse().map_err(|error: ParseCodecError| error.to_string())
}

/// The adapters to measure.
fn choose(args: &Args) -> Result<Vec<AdapterInfo>, Failure> {
    if args.backend == Backend::Cpu {
        return Ok(Vec::new());
    }
    let wanted = args.adapter.as_ref().map(|part| part.to_lowercase());
    let all = adapters();
    let seen = all.iter().map(AdapterInfo::label).collect();
    let mut found = all;
    found.retain(|info| wanted.as_ref().is_none_or(|part| info.label().to_lowercase().contains(part)));
    if args.backend == Backend::Auto && args.adapter.is_none() {
        found.retain(|info| info.device_type != DeviceType::Software);
    }
    if found.is_empty() && (args.backend == Backend::Gpu || args.adapter.is_some()) {
        return Err(Failure::work(GpuError::NoAdapter { wanted: args.adapter.clone(), seen }));
    }
    if args.backend != Backend::All {
        found.truncate(1);
    }
    Ok(found)
}

fn three_rows(
    backend: &'static str,
    adapter: Option<&str>,
    codec: &Codec,
    elements: usize,
    rates: [Rate; 3],
) -> impl Iterator<Item = Row> {
    let codec = name(codec);
    let adapter = adapter.map(str::to_owned);
    let copy = rates[2].gb_per_s();
    ["encode", "average", "copy"].into_iter().zip(rates).map(move |(kernel, rate)| Row {
        backend,
        adapter: adapter.clone(),
        codec: codec.clone(),
        kernel,
        elements,
        bytes: rate.bytes,
        repeats: REPEATS,
        seconds: rate.seconds,
        min: rate.min,
        max: rate.max,
        gb_per_s: rate.gb_per_s(),
        share_of_copy: rate.gb_per_s() / copy,
    })
}

/// The shortest text that [`Codec`] is parsed from.
fn name(codec: &Codec) -> String {
    if *codec == Codec::new(codec.id()) { codec.id().to_string() } else { codec.to_string() }
}

/// Says what is done on stderr, so that a minute of work shows where it is.
struct Watch {
    what: String,
    start: Instant,
}

impl Watch {
    fn new(who: &str, codec: &Codec) -> Self {
        Self { what: format!("{who}: {}", name(codec)), start: Instant::now() }
    }

    fn tell(self) {
        note!("{} measured in {:.1} s", self.what, self.start.elapsed().as_secs_f64());
    }
}

impl fmt::Display for Report {
    /// A table for each backend.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { input, ranks, rows } = self;
        write!(
            f,
            "{input} gradients, average of {ranks} ranks, median of {REPEATS} repeats (fastest to slowest)"
        )?;
        let width = rows.iter().map(|row| row.codec.len()).max().unwrap_or(0).max(5);
        let mut before = None;
        for row in rows {
            let who = (row.backend, row.adapter.as_deref());
            if before != Some(who) {
                before = Some(who);
                match who.1 {
                    Some(adapter) => write!(f, "\n\n{adapter}")?,
                    None => write!(f, "\n\ncpu, one core")?,
                }
                write!(
                    f,
                    "\n  {:width$}  {:7}  {:>10}  {:>8}  {:>6}  seconds",
                    "codec", "kernel", "elements", "GB/s", "share"
                )?;
            }
            let Row { codec, kernel, elements, seconds, min, max, gb_per_s, share_of_copy, .. } = row;
            write!(
                f,
                "\n  {codec:width$}  {kernel:7}  {elements:>10}  {gb_per_s:>8.2}  {share_of_copy:>6.3}  {seconds:.3e} ({min:.3e} to {max:.3e})"
            )?;
        }
        Ok(())
    }
}

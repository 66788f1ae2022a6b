//! `gradwire verify`: do these vectors come out, bit for bit, here?

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;

use clap::ValueEnum;
use gradwire::codec::{Codec, CodecId, Gradient, Input, Stats, Step, loco};
use gradwire::gpu::{AdapterChoice, Average, Encode, Gpu, GpuError};
use gradwire::transport::file::read_bounded;
use serde::Serialize;

use crate::failure::Failure;
use crate::vectors::{Comparison, Cpu, Difference, Implementation, VectorFile, compare};

/// The longest file of vectors: 600 times the project's own.
const MAX_BYTES: u64 = 256 << 20;

/// What the tests of the library are held to: one file for each codec.
const BUILT_IN: [&str; CodecId::ALL.len()] = [
    include_str!("../../../tests/golden/f32.json"),
    include_str!("../../../tests/golden/loco.json"),
    include_str!("../../../tests/golden/f16.json"),
    include_str!("../../../tests/golden/bf16.json"),
    include_str!("../../../tests/golden/fp8.json"),
    include_str!("../../../tests/golden/ef.json"),
    include_str!("../../../tests/golden/loco_block.json"),
    include_str!("../../../tests/golden/block8.json"),
    include_str!("../../../tests/golden/block4.json"),
    include_str!("../../../tests/golden/ef21.json"),
    include_str!("../../../tests/golden/sign.json"),
    include_str!("../../../tests/golden/topk.json"),
    include_str!("../../../tests/golden/intsgd.json"),
];

/// Compare golden vectors with what this machine computes, bit for bit.
///
/// Without a file, the vectors are those that gradwire itself is tested with, of every codec. Prints one line per
/// codec and implementation.
/// Exit status 1 if any number differs or an adapter that was asked for is not there.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Vector file (JSON; format in tests/golden/README.md) [default: gradwire's own vectors, built in].
    #[arg(value_name = "FILE.json")]
    file: Option<PathBuf>,
    /// Who computes: `cpu` = each CPU variant, `gpu` = one adapter (fails if there is none), `all` = both.
    #[arg(long, value_enum, default_value_t = Backend::Cpu)]
    backend: Backend,
    /// Part of the adapter's name, in any case [default: the best adapter: discrete, integrated, software].
    #[arg(long, value_name = "SUBSTRING")]
    adapter: Option<String>,
    /// Print one JSON object on stdout and nothing else there.
    #[arg(long)]
    json: bool,
}

/// The default is `cpu`, because every option's default works on a machine without a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Backend {
    Cpu,
    Gpu,
    All,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Report {
    /// The path, or `built in`.
    file: String,
    results: Vec<Row>,
}

/// One implementation's outcome.
#[derive(Debug, Serialize)]
struct Row {
    backend: &'static str,
    codec: &'static str,
    /// The adapter's name; null on the CPU.
    adapter: Option<String>,
    /// The CPU variant; null on an adapter.
    variant: Option<&'static str>,
    #[serde(flatten)]
    comparison: Comparison,
}

/// Runs the verb.
///
/// # Errors
///
/// [`Failure::Usage`] for an adapter named with `--backend cpu`; [`Failure::Work`] for a file that cannot be
/// read or lies, an adapter that is not there or fails, and numbers that differ (after they were printed).
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if args.backend == Backend::Cpu && args.adapter.is_some() {
        return Err(Failure::Usage(
            "--adapter names a GPU adapter, but --backend is cpu; use gpu or all".into(),
        ));
    }
    let (name, texts) = match &args.file {
        None => ("built in".to_owned(), BUILT_IN.map(Cow::Borrowed).to_vec()),
        Some(path) => {
            let refuse =
                |error: &dyn fmt::Display| Failure::Work(format!("vector file {}: {error}", path.display()));
            let bytes = read_bounded(path, MAX_BYTES).map_err(|error| refuse(&error))?;
            let text = String::from_utf8(bytes).map_err(|_| refuse(&"not a text file (no UTF-8)"))?;
            (path.display().to_string(), vec![Cow::Owned(text)])
        }
    };
    let parse = |text: &Cow<str>| {
        VectorFile::parse(text).map_err(|error| Failure::Work(format!("vector file {name}: {error}")))
    };
    let files = texts.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
    let mut results = Vec::new();
    if args.backend != Backend::Gpu {
        for file in &files {
            results.extend(on_cpu(file)?);
        }
    }
    if args.backend != Backend::Cpu {
        let gpu = Gpu::open(&AdapterChoice { name: args.adapter.clone() })
            .map_err(|error| Failure::Work(error.to_string()))?;
        for file in &files {
            results.push(on_adapter(file, &gpu)?);
        }
    }
    let report = Report { file: name, results };
    if args.json {
        crate::say::print(serde_json::to_string(&report).map_err(Failure::work)?)?;
    } else {
        crate::say::print(in_words(&report))?;
    }
    match report.results.iter().find(|row| row.comparison.different > 0) {
        None => Ok(()),
        Some(row) => {
            let Comparison { cases, different, .. } = row.comparison;
            Err(Failure::Work(format!("{row} differs in {different} of {cases} cases")))
        }
    }
}

fn on_cpu(file: &VectorFile) -> Result<Vec<Row>, Failure> {
    let codec = file.codec().name();
    let row = |variant, comparison| Row { backend: "cpu", codec, adapter: None, variant, comparison };
    if file.codec() != CodecId::Loco {
        let comparison =
            compare(file, &mut Cpu::default()).map_err(|error| Failure::Work(format!("cpu: {error}")))?;
        return Ok(vec![row(None, comparison)]);
    }
    let mut rows = Vec::new();
    for mut variant in loco::variants() {
        let comparison = compare(file, &mut variant)
            .map_err(|error| Failure::Work(format!("cpu {}: {error}", variant.name)))?;
        rows.push(row(Some(variant.name), comparison));
    }
    Ok(rows)
}

fn on_adapter(file: &VectorFile, gpu: &Gpu) -> Result<Row, Failure> {
    let adapter = gpu.info().name.clone();
    let mut kernels = OnAdapter { gpu: gpu.clone(), encode: None, average: None };
    let comparison = compare(file, &mut kernels)
        .map_err(|error| Failure::Work(format!("adapter {adapter}, {}: {error}", file.codec())))?;
    let codec = file.codec().name();
    Ok(Row { backend: "gpu", codec, adapter: Some(adapter), variant: None, comparison })
}

/// The kernels of one adapter. They are kept for as long as codec and length stay, so that reuse is tested too.
struct OnAdapter {
    gpu: Gpu,
    encode: Option<(Codec, usize, Encode)>,
    average: Option<(Codec, usize, Average)>,
}

/// The kernel for `elements`: the one that is kept, or a new one.
fn state_for<'a, T>(
    kept: &'a mut Option<(Codec, usize, T)>,
    codec: &Codec,
    elements: usize,
    new: impl FnOnce() -> Result<T, GpuError>,
) -> Result<&'a mut T, GpuError> {
    let state = match kept.take() {
        Some((kept, length, state)) if kept == *codec && length == elements => state,
        _ => new()?,
    };
    Ok(&mut kept.insert((*codec, elements, state)).2)
}

impl Implementation for OnAdapter {
    type Error = GpuError;

    fn begin(&mut self) {
        // A codec whose means have a state begins anew.
        self.average = self.average.take_if(|(codec, _, _)| codec.mean_state_words(1, 1) == 0);
    }

    fn encode(
        &mut self,
        codec: &Codec,
        step: Step,
        gradient: Gradient<'_>,
        state: &mut [u32],
        packet: &mut [u32],
    ) -> Result<Stats, GpuError> {
        let elements = gradient.len();
        let new = || Encode::new(&self.gpu, codec, Input::F32, elements);
        let encode = state_for(&mut self.encode, codec, elements, new)?;
        // The ranks of a case take turns on one state, so each brings its own.
        encode.set_state(state)?;
        let stats = encode.encode(codec, step, gradient, packet)?;
        state.copy_from_slice(&encode.state()?);
        Ok(stats)
    }

    fn average(
        &mut self,
        codec: &Codec,
        packets: &[&[u32]],
        weights: &[u32],
        mean: &mut [f32],
    ) -> Result<(), GpuError> {
        let elements = mean.len();
        let new = || Average::new(&self.gpu, codec, elements);
        state_for(&mut self.average, codec, elements, new)?.average(codec, packets, weights, mean)
    }
}

fn in_words(report: &Report) -> String {
    let mut lines = Vec::new();
    for row in &report.results {
        let Comparison { cases, different, first_difference } = &row.comparison;
        lines.push(format!("{row}: {cases} cases, {different} different"));
        lines.extend(first_difference.iter().map(|difference| format!("  first: {}", Place(difference))));
    }
    lines.join("\n")
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.codec, self.backend)?;
        self.adapter.as_deref().or(self.variant).map_or(Ok(()), |name| write!(f, " {name}"))
    }
}

/// A difference in words.
struct Place<'a>(&'a Difference);

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference { case, rank, step, field, index, expected, got } = self.0;
        write!(f, "case {case}, ")?;
        if let Some(rank) = rank {
            write!(f, "rank {rank}, ")?;
        }
        write!(f, "step {step}, {field}[{index}]: expected {expected}, got {got}")
    }
}

//! `gradwire train`: a whole fleet on one machine, with one codec and then with another.

mod fleet;
mod folder;
mod processes;
mod progress;
mod threads;
mod verdict;

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use gradwire::codec::Codec;
use gradwire::sync::Scheme;
use gradwire::sync::scheme::ParseSchemeError;
use gradwire::transport::WIRE_VERSION;

use crate::args::{BackendName, CODEC, Job, ScaleArg, TrainingArgs, name_of};
use crate::backend;
use crate::event::Event;
use crate::failure::Failure;
use crate::interrupt;
use crate::report::tally::Tally;
use crate::report::write::Output;
use crate::report::{Report, Run, html, summary};
use crate::say::note;
use progress::Progress;

/// The most nodes on one machine: each is a process with a connection to every other one.
const MAX_NODES: u32 = 256;

/// Train a model with N nodes on this machine, then again with another codec, and compare.
///
/// Each node is a process of its own; they exchange gradients and parameters over mutually authenticated QUIC on
/// loopback. Writes report.html, report.json, steps.jsonl and model.safetensors.
#[derive(clap::Args)]
#[command(after_long_help = crate::args::codecs_help())]
pub(crate) struct Args {
    #[command(flatten)]
    training: TrainingArgs,
    /// Number of nodes, 1 to 256.
    #[arg(long, value_name = "NODES", default_value_t = 4)]
    nodes: u32,
    /// What gradients travel as: a codec, or one with parameters as in `loco:decay=0,reset_every=100`.
    #[arg(long, value_name = CODEC, default_value = "loco")]
    codec: Scheme,
    /// Codec of the second run, another one than --codec, or `none` [default: f32; none with --codec f32].
    #[arg(long, value_name = CODEC, value_parser = parse_compare)]
    compare: Option<Compare>,
    /// What computes the codec: one of auto, cpu, gpu for all nodes, or one for each, separated by commas.
    #[arg(long, value_enum, value_name = "auto|cpu|gpu", value_delimiter = ',', default_value = "auto")]
    backend: Vec<BackendName>,
    /// How nodes reach each other: `quic` = processes over loopback, `memory` = threads of one process.
    #[arg(long, value_enum, default_value_t = MeshName::Quic)]
    mesh: MeshName,
    /// Folder to write into, made if missing; refused if a run is in it [default: runs/UTC-TIME].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the content of report.json on stdout and nothing else there: one object with an entry of `runs` for each
    /// codec.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compare {
    With(Scheme),
    /// No second run.
    None,
}

fn parse_compare(text: &str) -> Result<Compare, ParseSchemeError> {
    if text == "none" { Ok(Compare::None) } else { text.parse().map(Compare::With) }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MeshName {
    Quic,
    Memory,
}

/// What stays the same in both runs.
pub(crate) struct Plan {
    job: Job,
    nodes: u32,
    /// One per rank.
    backends: Vec<BackendName>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let mut plan = plan(args)?;
    let codecs = codecs(args)?;
    args.training.check_scale(&codecs)?;
    plan.job.sites.check(&codecs, plan.nodes)?;
    plan.job.shares.check(plan.nodes, plan.job.sites.sizes().len(), plan.job.steps, None)?;
    // Before the data are read, and for certain again when the folder is made.
    args.out.as_deref().map_or(Ok(()), Output::check)?;
    // Loaded here too, so that what is wrong with the data is said once, and before anything starts.
    let params = plan.job.load(plan.nodes)?.layout().elements();
    backend::check(&plan.backends, plan.job.adapter.as_deref())?;
    let note = plan.settle(&codecs);
    let job = &plan.job;
    interrupt::watch(|| {})?;
    let mut output = Output::create(&folder::choose(args.out.as_deref())?)?;

    let each = if plan.nodes == 1 { "node" } else { "nodes" };
    note!(
        "gradwire {}: {}, {} parameters, {} {each} ({}), {} steps of {} x {} samples",
        env!("CARGO_PKG_VERSION"),
        name_of(job.task),
        summary::grouped(params as u64),
        plan.nodes,
        name_of(args.mesh),
        summary::grouped(job.steps),
        plan.nodes,
        job.batch
    );
    if let Some(note) = note {
        note!("{note}");
    }

    let mut runs = Vec::new();
    for codec in &codecs {
        let name = codec.short();
        let model = runs.is_empty().then(|| output.path("model.safetensors"));
        runs.push(run_codec(&plan, args.mesh, *codec, &name, model.as_deref(), &mut output)?);
    }
    output.flush()?;

    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        wire_version: WIRE_VERSION,
        task: name_of(job.task),
        params,
        steps: job.steps,
        seed: job.seed,
        runs,
        settings: settings(args, &plan),
    };
    let json = serde_json::to_string_pretty(&report).map_err(Failure::work)?;
    output.file("report.json", format!("{json}\n").as_bytes())?;
    output.file("report.html", html::page(&report).as_bytes())?;
    let page = output.path("report.html");
    if args.json {
        note!("wrote {}", page.display());
        return crate::say::print(json);
    }
    crate::say::print(format_args!("{}{}", summary::table(&report), page.display()))
}

/// Checks the options; `auto` is left for [`Plan::settle`].
fn plan(args: &Args) -> Result<Plan, Failure> {
    let nodes = args.nodes;
    if !(1..=MAX_NODES).contains(&nodes) {
        return Err(Failure::Usage(format!("--nodes is {nodes}, must be 1 to {MAX_NODES}")));
    }
    let mut backends = args.backend.clone();
    if let [one] = backends[..] {
        backends = vec![one; nodes as usize];
    }
    if backends.len() != nodes as usize {
        return Err(Failure::Usage(format!(
            "--backend has {} values for {nodes} nodes, must have 1 or {nodes}",
            backends.len()
        )));
    }
    Ok(Plan { job: args.training.job(nodes, &[])?, nodes, backends })
}

impl Plan {
    /// Settles what `auto` means, once for all ranks; returns a line to say where that is the CPU.
    fn settle(&mut self, schemes: &[Scheme]) -> Option<String> {
        if !self.backends.contains(&BackendName::Auto) {
            return None;
        }
        let (settled, note) = backend::settle(BackendName::Auto, self.job.adapter.as_deref(), schemes);
        let ranks: Vec<String> = (0..self.backends.len())
            .filter(|rank| self.backends[*rank] == BackendName::Auto)
            .map(|rank| rank.to_string())
            .collect();
        let note = note.map(|note| match ranks.len() {
            all if all == self.backends.len() => note,
            1 => format!("rank {}: {note}", ranks[0]),
            _ => format!("ranks {}: {note}", ranks.join(", ")),
        });
        self.backends
            .iter_mut()
            .filter(|asked| **asked == BackendName::Auto)
            .for_each(|asked| *asked = settled);
        note
    }
}

/// One run, or two if there is another codec to compare with.
fn codecs(args: &Args) -> Result<Vec<Scheme>, Failure> {
    let first = args.codec;
    let other = match args.compare {
        // Only what was asked for can be wrong.
        None => Some(Scheme::Codec(Codec::F32)).filter(|other| *other != first),
        Some(Compare::None) => None,
        Some(Compare::With(other)) => Some(other),
    };
    if other == Some(first) {
        return Err(Failure::Usage(format!(
            "--compare {first} with --codec {first}: both runs would be the same; use another codec, or --compare none"
        )));
    }
    Ok(std::iter::once(first).chain(other).collect())
}

fn run_codec(
    plan: &Plan,
    mesh: MeshName,
    codec: Scheme,
    name: &str,
    model: Option<&Path>,
    output: &mut Output,
) -> Result<Run, Failure> {
    let mut tally = Tally::new(codec, name, plan.job.scale == ScaleArg::Auto, plan.nodes);
    let progress = Progress::new(name, plan.job.steps);
    let mut announced = None;
    let mut take = |event: Event| -> Result<(), Failure> {
        tally.add(&event);
        // Once: a scale that follows the gradient changes often, and every step of steps.jsonl has it.
        if announced.is_none() {
            announced = tally.scale_log2();
            let source = if matches!(plan.job.scale, ScaleArg::Auto) { "auto, " } else { "" };
            if let Some(log2) = announced {
                progress.say(&format!("{name}: scale 2^{log2} codes per gradient unit ({source}every rank)"));
            }
        }
        if let Event::Step { step } = &event {
            progress.step(step);
            output.step(name, step)?;
        }
        Ok(())
    };
    match mesh {
        MeshName::Quic => processes::run(plan, codec, model, &progress, &mut take)?,
        MeshName::Memory => threads::run(plan, codec, model, &mut take)?,
    }
    progress.finish();
    tally.finish()
}

/// What repeats the runs.
fn settings(args: &Args, plan: &Plan) -> crate::report::Settings {
    let job = &plan.job;
    let data = job.data.as_deref().map(|path| crate::report::DataFile {
        file: path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned(),
        bytes: std::fs::metadata(path).ok().map(|metadata| metadata.len()),
    });
    crate::report::Settings {
        batch: job.batch,
        learning_rate: job.learning_rate,
        optimizer: name_of(job.optimizer_name),
        warmup: job.warmup.map(std::num::NonZeroU32::get),
        weight_decay: job.weight_decay,
        scale: job.scale,
        mesh: name_of(args.mesh),
        nodes: plan.nodes,
        sites: job.sites.sizes(),
        inner_codec: job.sites.inner().map(|codec| codec.to_string()),
        shares: job.shares.to_string(),
        deadline_seconds: job.silence.as_secs_f64(),
        data,
    }
}

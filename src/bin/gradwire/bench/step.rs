//! `gradwire bench step`: how long does one synchronised step take, by stage?

mod table;

use std::time::Instant;

use gradwire::sync::Scheme;
use gradwire::transport::sim::LinkConfig;
use serde::Serialize;

use super::fleet::link::Link;
use super::fleet::order::{Turn, Work};
use super::fleet::way::{LinkRate, Way};
use super::fleet::{Done, Plan, limit, parse_link};
use super::size;
use crate::event::{Bytes, Seconds};
use crate::failure::Failure;
use crate::report::tally::median;
use crate::say::note;

/// One synchronised step between processes over QUIC, by stage, with a codec and with f32: AdamW on the CPU.
///
/// Parameters travel as f32 with either. Stages are those of the slowest rank; encoding and averaging overlap with the
/// exchange, of which the rest is counted. Every run has one step first that is not measured.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Ranks, each a process of its own.
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    nodes: u32,
    /// Parameters, each an f32 on every rank, as in 1000, 25M or 64Mi; at most 1Gi.
    #[arg(long, value_name = "COUNT", default_value = "25M", value_parser = params)]
    params: usize,
    /// What gradients travel as, as `gradwire train --codec` takes it; measured against f32.
    #[arg(long, value_name = crate::args::CODEC, default_value = "loco", value_parser = codec)]
    codec: Scheme,
    /// Emulate a line of this rate (per node, each way), round-trip time and loss, as in 1Gbit,80ms,0.1%, and
    /// optionally queue=BYTES, jitter=TIME, burst=PACKETS, reorder=SHARE, duplicate=SHARE [default: plain loopback].
    #[arg(long, value_name = "RATE,RTT,LOSS", value_parser = parse_link)]
    link: Option<LinkConfig>,
    /// Rate of a node's line that its mesh is told, as in 1.2Gbit, the `declared` one of --link, or none: `estimated`.
    #[arg(long, value_name = "declared|estimated|RATE", default_value = "declared")]
    link_rate: LinkRate,
    /// Steps that are measured.
    #[arg(long, value_name = "COUNT", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: u32,
    /// Print one JSON object on stdout instead of a table.
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Report {
    rows: Vec<Row>,
    missing: Vec<Missing>,
}

/// A codec that could not be measured.
#[derive(Debug, Serialize)]
struct Missing {
    codec: String,
    why: String,
}

/// One codec.
#[derive(Debug, Serialize)]
struct Row {
    nodes: u32,
    params: usize,
    codec: String,
    parameter_codec: &'static str,
    link: Option<Link>,
    repeats: u32,
    seconds: Stages,
    /// All ranks together, in one step.
    bytes: Bytes,
    /// The whole step over its longest stage: 1 if all others were hidden behind that one.
    overlap: f64,
    /// Median; of all ranks.
    cpu_s: Option<f64>,
    /// The largest of all ranks: the whole process, from its start to its end.
    peak_rss_bytes: Option<u64>,
}

/// Medians, of each stage for itself.
#[derive(Debug, Serialize)]
struct Stages {
    encode: f64,
    exchange: f64,
    average: f64,
    optimizer: f64,
    gather: f64,
    /// Of the whole step.
    total: f64,
    /// Of whole steps, the fastest.
    min: f64,
    /// The slowest.
    max: f64,
}

impl Stages {
    fn new(done: &Done) -> Self {
        // Of one step, the rank that takes longest in that stage.
        let slowest =
            |stage: &dyn Fn(&Turn) -> f64| done.each(|turn| turn.iter().map(stage).fold(0.0, f64::max));
        let stage = |stage: &dyn Fn(&Seconds) -> f64| median(&mut slowest(&|turn| stage(&turn.stages)));
        let mut times = slowest(&|turn| turn.seconds);
        let total = median(&mut times);
        Self {
            encode: stage(&|seconds| seconds.encode),
            exchange: stage(&|seconds| seconds.exchange),
            average: stage(&|seconds| seconds.average),
            optimizer: stage(&|seconds| seconds.optimizer),
            gather: stage(&|seconds| seconds.gather),
            total,
            // Sorted by the median.
            min: times.first().copied().unwrap_or(total),
            max: times.last().copied().unwrap_or(total),
        }
    }

    fn longest(&self) -> f64 {
        [self.encode, self.exchange, self.average, self.optimizer, self.gather]
            .into_iter()
            .fold(0.0, f64::max)
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let baseline: Scheme = gradwire::codec::Codec::F32.into();
    let (mut rows, mut missing) = (Vec::new(), Vec::new());
    for codec in [Some(args.codec), (args.codec != baseline).then_some(baseline)].into_iter().flatten() {
        let (watch, codec) = (Instant::now(), codec.short());
        match plan(args, &codec).run()? {
            Ok(done) => rows.push(row(args, codec.clone(), done)),
            Err(why) => missing.push(Missing { codec: codec.clone(), why }),
        }
        note!("{codec}: measured in {:.1} s", watch.elapsed().as_secs_f64());
    }
    let report = Report { rows, missing };
    if args.json {
        crate::say::print(serde_json::to_string(&report).map_err(Failure::work)?)
    } else {
        crate::say::print(report)
    }
}

fn plan<'a>(args: &'a Args, codec: &str) -> Plan<'a> {
    let link = args.link.as_ref();
    Plan {
        nodes: args.nodes,
        repeats: args.repeats,
        work: Work::Step { params: args.params, codec: codec.to_owned() },
        way: Way::Paced,
        link,
        link_rate: args.link_rate.told(Way::Paced, link),
        windows: args.link_rate.windows(Way::Paced, link),
        // At most f32 out and in.
        limit: limit(link, 8.0 * args.params as f64),
    }
}

fn row(args: &Args, codec: String, done: Done) -> Row {
    let seconds = Stages::new(&done);
    let cpu: Option<Vec<f64>> =
        done.turns.iter().map(|turn| turn.iter().map(|rank| rank.cpu_seconds).sum()).collect();
    let mut bytes = Bytes::default();
    // The last one: all are alike, but for what is at the socket.
    for rank in done.turns.last().into_iter().flatten() {
        bytes += rank.bytes;
    }
    Row {
        nodes: args.nodes,
        params: args.params,
        codec,
        parameter_codec: "f32",
        link: done.link,
        repeats: args.repeats,
        overlap: seconds.total / seconds.longest(),
        seconds,
        bytes,
        cpu_s: cpu.map(|mut cpu| median(&mut cpu)),
        peak_rss_bytes: done.peak_rss_bytes,
    }
}

fn params(text: &str) -> Result<usize, String> {
    const MOST: usize = 1 << 30;
    let params = size::parse(text)?;
    if params > MOST { Err(format!("{params} parameters, must be at most {MOST}")) } else { Ok(params) }
}

fn codec(text: &str) -> Result<Scheme, String> {
    let scheme: Scheme = text.parse().map_err(|error| format!("{error}"))?;
    match scheme {
        Scheme::Codec(_) => Ok(scheme),
        _ => Err(format!("{} needs matrices, and here are none", scheme.id())),
    }
}

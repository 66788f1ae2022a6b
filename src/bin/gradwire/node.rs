//! `gradwire node`: one rank of a fleet.

mod course;
mod line;
mod metrics;
pub(crate) mod parent;
mod place;
mod teller;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use gradwire::sync::Scheme;
use gradwire::sync::shares::Speed;
use gradwire::transport::quic::congestion::Link;
use gradwire::transport::quic::{Agreement, Config, QuicMesh, Waiting};
use gradwire::transport::{Communicator, Limits, Rank, Stats};

use crate::args::{BackendName, CODEC, Job, ScaleArg, TrainingArgs, name_of};
use crate::event::{Event, Fault, Step};
use crate::failure::Failure;
use crate::rank::{INTERRUPTED, Listener};
use crate::say::note;
use crate::task::Task;
use crate::{backend, interrupt, rank};
use course::Course;
use line::Line;
use metrics::Metrics;
use place::Place;
use teller::Teller;

/// Run one rank of a fleet: one process on each machine, all started with the same training options.
///
/// Every rank trains on its own part of the data and ends with the same parameters. Identities come from
/// `gradwire keygen`. Rank, world size and rank 0's address come from the options, else from torchrun (RANK,
/// WORLD_SIZE, MASTER_ADDR, MASTER_PORT), SLURM, Open MPI, or a Kubernetes indexed job, in this order; then the rank
/// from the identity and the world size from the peers file. What was used is printed.
#[derive(clap::Args)]
#[command(after_long_help = crate::args::codecs_help())]
pub(crate) struct Args {
    #[command(flatten)]
    training: TrainingArgs,
    /// What gradients travel as: a codec, or one with parameters as in `loco:decay=0,reset_every=100`.
    #[arg(long, value_name = CODEC, default_value = "loco")]
    codec: Scheme,
    /// What computes the codec.
    #[arg(long, value_enum, default_value_t = BackendName::Auto)]
    backend: BackendName,
    /// This rank's identity, rank-R.pem of `gradwire keygen`; `-` reads it from stdin.
    #[arg(long, value_name = "PEM")]
    identity: PathBuf,
    /// Which rank this is, 0 to world size - 1 [default: what the launcher says, else the identity's].
    #[arg(long, value_name = "RANK")]
    rank: Option<u32>,
    /// Number of ranks, 1 to 4096 [default: what the launcher says, else the number of entries in --peers].
    #[arg(long, value_name = "RANKS")]
    world_size: Option<u32>,
    /// Where rank 0 can be reached [default: what the launcher says].
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "peers")]
    rendezvous: Option<String>,
    /// TOML file with every rank's address, and its site if there are several; three or four lines for each rank:
    ///   [[peer]]
    ///   rank = 0
    ///   address = "node-a.example:7000"
    ///   site = "paris"
    #[arg(long, value_name = "FILE", verbatim_doc_comment)]
    peers: Option<PathBuf>,
    /// UDP address to listen on; port 0 lets the system choose [default: all addresses of the
    /// rendezvous' family and, on rank 0 or with --peers, the port that the others are told].
    #[arg(long, value_name = "ADDRESS:PORT")]
    bind: Option<SocketAddr>,
    /// What this node's line carries out, as in 1Gbit, 200Mbit or 1500kbit (per second), shared by its busy peers (no limit for a
    /// faster line: 16 KiB may be under way to each peer at any rate, which near ones answer at once), and the
    /// longest round trip to a peer, as in 1Gbit,150ms: above 85 ms at 1 Gbit/s, or as much more at another rate, lost packets
    /// hold a faster line up without it. It costs up to 1.5 MiB of memory for each MiB that is under way in 2.2 round trips.
    /// `estimated` finds the rate by itself.
    #[arg(long, value_name = "estimated|RATE[,ROUND_TRIP]", default_value = "estimated")]
    link: Line,
    /// What this node's line carries in, for --shares declared [default: as --link].
    #[arg(long, value_name = "RATE", requires = "link")]
    downlink: Option<Link>,
    /// Seconds to wait until all ranks are connected, 1 to 86400: ranks may start in any order. Rank 0 then takes up to
    /// 2 s more to tell the others who was missing.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    join_timeout: u64,
    /// Folder for this rank's steps.jsonl and model.safetensors, made if missing, one for each rank [default: nothing is written].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print a line every so many steps: loss, time per step, bytes, losses [default: ten lines in all].
    #[arg(long, value_name = "STEPS", value_parser = clap::value_parser!(u64).range(1..))]
    every: Option<u64>,
    /// Serve Prometheus metrics over plain HTTP at this address, for whoever can reach it: progress, seconds by stage,
    /// bytes, and per peer bytes, losses, queue, deadline and round-trip time [default: none].
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
    /// Print one JSON object on stdout and nothing else there: rank, world_size, and the fields of an entry of `runs`
    /// in train's report.json, with losses, bytes and seconds of this rank alone.
    #[arg(long)]
    json: bool,
    /// A child of `train`: events as JSON lines on stdout, empty lines as a sign of life, end when stdin closes.
    #[arg(long, hide = true)]
    report_to_parent: bool,
    /// Where a child of `train` writes the final parameters.
    #[arg(long, hide = true, value_name = "PATH", requires = "report_to_parent")]
    model: Option<PathBuf>,
}

impl Args {
    /// Whether this is a child of `train`.
    pub(crate) fn has_parent(&self) -> bool {
        self.report_to_parent
    }

    /// What is declared of this node's line, if it is.
    fn speed(&self) -> Option<Speed> {
        let bytes = |link| match link {
            Link::Declared(bits) => Some(bits.get() / 8),
            Link::Estimated => None,
        };
        let up = bytes(self.link.rate())?;
        Some(Speed { up, down: self.downlink.and_then(bytes).unwrap_or(up), owner: 0 })
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if args.report_to_parent {
        parent::show_life(args.training.deadline)?;
    }
    let mut teller = Teller::new(args);
    match work(args, &mut teller) {
        Err(Stop::Fault(fault)) if args.report_to_parent => {
            teller.tell(Event::Failed { fault });
            std::process::exit(1);
        }
        Err(Stop::Early(failure)) if args.report_to_parent => {
            let rank = args.rank.unwrap_or_default();
            let message = format!("rank {rank}: {failure}");
            teller.tell(Event::Failed { fault: Fault { rank, message, culprit: Some(rank) } });
            std::process::exit(failure.status().into());
        }
        Err(Stop::Fault(fault)) => Err(Failure::Work(fault.message)),
        Err(Stop::Early(failure)) => Err(failure),
        Ok(()) => teller.finish(),
    }
}

/// Where it stopped: before there was a fleet, or inside one.
enum Stop {
    Early(Failure),
    Fault(Fault),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Early(failure)
    }
}

fn work(args: &Args, teller: &mut Teller) -> Result<(), Stop> {
    // All that the arguments and files can be wrong about, before a device is opened.
    let place = Place::find(args)?;
    if args.report_to_parent {
        parent::end_with_it()?;
    }
    let world = place.world;
    let mut job = args.training.job(world.size(), place.sites())?;
    job.line = args.speed();
    job.shares.check(world.size(), job.sites.sizes().len(), job.steps, job.line)?;
    job.sites.check(&[args.codec], world.size())?;
    if !args.report_to_parent {
        // A child of `train` has its parent's options also where its own run has no use for one.
        args.training.check_scale(&[args.codec])?;
        backend::check(&[args.backend], job.adapter.as_deref())?;
    }
    let mut task = job.load(world.size())?;
    let config = mesh_config(args, &job, &place, task.as_ref());
    let metrics = args.metrics.map(|address| Metrics::serve(address, world.rank())).transpose()?;
    teller.check(args)?;
    let (settled, note) = backend::settle(args.backend, job.adapter.as_deref(), &[args.codec]);
    if let Some(note) = note {
        note!("{note}");
    }
    let opened = backend::open(settled, job.adapter.as_deref(), &args.codec)?;

    let pending = QuicMesh::bind(config).map_err(Failure::work)?;
    let own = world.rank().0;
    if args.report_to_parent {
        if world.rank() == Rank(0) {
            teller.tell(Event::Listening { address: pending.local_addr().to_string() });
        }
    } else {
        note!(
            "rank {own} of {} ({}), rank 0 at {}: {} with {}, codec on {}, listening on {}",
            world.size(),
            place.source,
            place.rendezvous_name(),
            name_of(job.task),
            args.codec.id(),
            opened.adapter.as_deref().unwrap_or(opened.kind),
            pending.local_addr()
        );
    }
    let mesh = pending.join().map_err(|error| {
        let culprit = error.culprit().map(|rank| rank.0);
        Stop::Fault(Fault { rank: own, message: error.to_string(), culprit })
    })?;
    // Only now: until here, Ctrl-C simply ends the process.
    let quitter = mesh.quitter();
    interrupt::watch(move || quitter.quit(INTERRUPTED))?;
    // Not before: a node that did not get in can be started again with the same folder.
    teller.begin(args, &job, world)?;
    if !args.report_to_parent {
        note!("rank {own}: connected to all {} ranks", world.size());
    }
    let communicator = Communicator::new(Box::new(mesh), Limits::default());
    // Of the children of one parent, rank 0 evaluates for all; a user of a node wants to see it there.
    let evaluates = own == 0 || !args.report_to_parent;
    // A parent sees the course of all ranks.
    let course = (!args.report_to_parent).then(|| Course::new(args.every, job.steps));
    let mut watcher = Watcher { teller, course, metrics, rank: own, owned: None };
    let parameters =
        rank::train(communicator, task.as_mut(), &job, args.codec, opened, evaluates, &mut watcher)
            .map_err(Stop::Fault)?;
    let model = args.out.as_ref().map(|folder| folder.join("model.safetensors")).or(args.model.clone());
    if let Some(path) = model {
        rank::save(task.as_ref(), &parameters, &path)?;
    }
    Ok(())
}

/// Tells the teller, whoever reads stderr, and Prometheus.
struct Watcher<'a> {
    teller: &'a mut Teller,
    course: Option<Course>,
    metrics: Option<Metrics>,
    rank: u32,
    /// Parameters of the shard in the step before.
    owned: Option<u64>,
}

impl Listener for Watcher<'_> {
    fn tell(&mut self, event: Event) {
        self.teller.tell(event);
    }

    fn carried(&mut self, step: &Step, stats: &Stats) {
        let before = self.owned.replace(step.owned);
        if let Some(before) = before.filter(|before| *before != step.owned && self.course.is_some()) {
            let (owned, step) = (step.owned, step.step);
            note!("rank {}: owns {owned} parameters from step {step} on, {before} before", self.rank);
        }
        if let Some(line) = self.course.as_mut().and_then(|course| course.line(step, stats)) {
            note!("rank {}: {line}", self.rank);
        }
        if let Some(metrics) = &mut self.metrics {
            metrics.update(step, stats);
        }
    }
}

fn mesh_config(args: &Args, job: &Job, place: &Place, task: &dyn Task) -> Config {
    let mut config = Config::new(place.identity.clone(), place.world, place.rendezvous.clone());
    config.bind = args.bind;
    args.link.apply(&mut config);
    config.silence = job.silence;
    config.join = Duration::from_secs(args.join_timeout);
    config.agreements = agreements(job, &args.codec, task);
    // A child's parent sees for itself who is missing.
    if !args.report_to_parent {
        config.waiting = Some(Waiting::new(|missing, waited| {
            let each: Vec<String> = missing.iter().map(ToString::to_string).collect();
            let ranks = if each.len() == 1 { "rank" } else { "ranks" };
            note!("waiting for {ranks} {} ({waited:.0?})", each.join(", "));
        }));
    }
    config
}

/// What makes runs different: if two ranks differ in one of these, neither trains what its user asked for. Constants
/// (the optimizer's moments, the order of the data) are the version's. The first difference is
/// reported: what explains others comes first.
fn agreements(job: &Job, codec: &Scheme, task: &dyn Task) -> Vec<Agreement> {
    let (id, parameters) = (codec.id(), codec.parameters());
    let scale = match (codec.scale_log2(), job.scale) {
        // A codec without a scale does not look at the option, so ranks may differ in it.
        (None, _) => "none".to_owned(),
        (Some(_), ScaleArg::Auto) => "auto".to_owned(),
        (Some(_), ScaleArg::Log2(log2)) => format!("2^{log2}"),
    };
    let parameters = parameters.into_iter().map(|parameter| {
        Agreement::new(format!("{id} parameter {}", parameter.name), parameter.value.to_string())
    });
    let warmup = job.warmup.map_or_else(String::new, |steps| format!(", warm-up of {steps} steps"));
    let optimizer = format!("{}, weight decay {}{warmup}", name_of(job.optimizer_name), job.weight_decay);
    let mut agreements = vec![
        Agreement::new("gradwire version", env!("CARGO_PKG_VERSION")),
        Agreement::new("task", name_of(job.task)),
        Agreement::new("model layout", blake3::Hash::from(task.layout().hash()).to_hex().as_str()),
        Agreement::new("data", task.data()),
        Agreement::new("codec", id.to_string()),
        Agreement::new("scale", scale),
        Agreement::new("sites", job.sites.to_text().unwrap_or_else(|| "none".to_owned())),
        Agreement::new("shares", job.shares.to_text()),
        Agreement::new("optimizer", optimizer),
        Agreement::new("peak learning rate", job.learning_rate.to_string()),
        Agreement::new("number of steps", job.steps.to_string()),
        // Each rank finds its part of the data by the others' sizes.
        Agreement::new("samples per rank and step", job.batch.to_string()),
        Agreement::new("seed", job.seed.to_string()),
        // Who gives up first has all others give up.
        Agreement::new("deadline", format!("{:?}", job.silence)),
    ];
    agreements.extend(parameters);
    agreements
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use clap::Parser;
    use gradwire::codec::{Codec, CodecId};
    use gradwire::sync::powersgd;
    use gradwire::transport::quic::MAX_AGREEMENTS;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        training: TrainingArgs,
    }

    #[test]
    fn what_is_agreed_on_fits_a_hello_for_every_codec_and_has_each_parameter_by_name() {
        let job = Line::parse_from(["x"]).training.job(2, &[]).unwrap();
        let task = job.load(2).unwrap();
        let codecs = CodecId::ALL.map(|id| Scheme::Codec(Codec::new(id)));
        for scheme in codecs.into_iter().chain([powersgd::Config::default().into()]) {
            let agreements = agreements(&job, &scheme, task.as_ref());
            assert!(agreements.len() <= MAX_AGREEMENTS, "{scheme}: {} of them", agreements.len());
            for parameter in scheme.parameters() {
                let name = format!("{} parameter {}", scheme.id(), parameter.name);
                assert!(agreements.contains(&Agreement::new(name, parameter.value.to_string())), "{scheme}");
            }
        }
    }
}

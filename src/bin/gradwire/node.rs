//! `gradwire node`: one rank of a fleet.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use gradwire::transport::launch::{Known, Launch};
use gradwire::transport::quic::{Agreement, Config, Identity, Peers, QuicMesh, Rendezvous};
use gradwire::transport::{Communicator, Limits, Rank, World};

use crate::args::{BackendName, CodecName, Job, TrainingArgs, name_of};
use crate::event::{Event, Fault, Step};
use crate::failure::Failure;
use crate::report::summary;
use crate::report::write::Output;
use crate::task::Task;
use crate::{backend, interrupt, rank};

/// Run one rank of a fleet: one process on each machine, all started with the same training options.
///
/// Every rank trains on its own part of the data and ends with the same parameters. Identities come from
/// `gradwire keygen`. Rank, world size and rank 0's address come from the options, else from torchrun (RANK,
/// WORLD_SIZE, MASTER_ADDR, MASTER_PORT), SLURM, Open MPI, or a Kubernetes indexed job, in this order.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    training: TrainingArgs,
    /// What gradients travel as.
    #[arg(long, value_enum, default_value_t = CodecName::Loco)]
    codec: CodecName,
    /// What computes the codec.
    #[arg(long, value_enum, default_value_t = BackendName::Auto)]
    backend: BackendName,
    /// This rank's identity, rank-R.pem of `gradwire keygen`.
    #[arg(long, value_name = "PEM")]
    identity: PathBuf,
    /// Which rank this is, 0 to world size - 1 [default: what the launcher says].
    #[arg(long, value_name = "RANK")]
    rank: Option<u32>,
    /// Number of ranks, 1 to 4096 [default: what the launcher says].
    #[arg(long, value_name = "RANKS")]
    world_size: Option<u32>,
    /// Where rank 0 can be reached [default: what the launcher says].
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "peers")]
    rendezvous: Option<String>,
    /// TOML file with every rank's address: [[peer]] entries with rank and address.
    #[arg(long, value_name = "FILE")]
    peers: Option<PathBuf>,
    /// UDP address to listen on; port 0 lets the system choose [default: all addresses of the
    /// rendezvous' family and, on rank 0 or with --peers, the port that the others are told].
    #[arg(long, value_name = "ADDRESS:PORT")]
    bind: Option<SocketAddr>,
    /// Seconds to wait until all ranks are connected, 1 to 86400: ranks may start in any order.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    join: u64,
    /// Folder for this rank's steps.jsonl and model.safetensors, made if missing [default: nothing is written].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print one JSON object on stdout and nothing else there.
    #[arg(long)]
    json: bool,
    /// A child of `train`: events as JSON lines on stdout, end when stdin closes.
    #[arg(long, hide = true)]
    report_to_parent: bool,
    /// Where a child of `train` writes the final parameters.
    #[arg(long, hide = true, value_name = "PATH")]
    model: Option<PathBuf>,
}

impl Args {
    /// Whether this is a child of `train`.
    pub(crate) fn has_parent(&self) -> bool {
        self.report_to_parent
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if args.report_to_parent {
        end_with_parent()?;
    }
    let mut teller = Teller::new(args)?;
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
    let Place { world, rendezvous, source } = place(args)?;
    let job = args.training.job(world.size())?;
    let mut task = job.load(world.size())?;
    let (settled, note) = backend::settle(args.backend, job.adapter.as_deref());
    if let Some(note) = note {
        eprintln!("{note}");
    }
    let opened = backend::open(settled, job.adapter.as_deref())?;

    let pending = QuicMesh::bind(mesh_config(args, &job, world, rendezvous.as_deref(), task.as_ref())?)
        .map_err(Failure::work)?;
    if args.report_to_parent {
        if world.rank() == Rank(0) {
            teller.tell(Event::Listening { address: pending.local_addr().to_string() });
        }
    } else {
        eprintln!(
            "rank {} of {} ({source}), rank 0 at {}: {} with {}, codec on {}, listening on {}",
            world.rank(),
            world.size(),
            rendezvous.as_deref().unwrap_or("the address in the peers file"),
            name_of(job.task),
            name_of(args.codec),
            opened.adapter.as_deref().unwrap_or(opened.kind),
            pending.local_addr()
        );
    }
    let own = world.rank().0;
    let mesh = pending.join().map_err(|error| {
        let culprit = error.culprit().map(|rank| rank.0);
        Stop::Fault(Fault { rank: own, message: error.to_string(), culprit })
    })?;
    if !args.report_to_parent {
        // Only now: until here, Ctrl-C simply ends the process.
        interrupt::watch()?;
        eprintln!("rank {own}: connected to all {} ranks", world.size());
    }
    let communicator = Communicator::new(Box::new(mesh), Limits::default());
    let mut tell = |event| teller.tell(event);
    let parameters =
        rank::train(communicator, task.as_mut(), &job, args.codec, opened, &mut tell).map_err(Stop::Fault)?;
    let model = args.out.as_ref().map(|folder| folder.join("model.safetensors")).or(args.model.clone());
    if let Some(path) = model {
        rank::save(task.as_ref(), &parameters, &path)?;
    }
    Ok(())
}

/// Which rank of which world this is, and who said so.
struct Place {
    world: World,
    rendezvous: Option<String>,
    source: String,
}

/// From the options, and from the launcher's environment what they leave open.
fn place(args: &Args) -> Result<Place, Failure> {
    let complete = args.rank.is_some()
        && args.world_size.is_some()
        && (args.rendezvous.is_some() || args.peers.is_some() || args.world_size == Some(1));
    let launch = if complete {
        None
    } else {
        let known = Known {
            rank: args.rank,
            world_size: args.world_size,
            rendezvous: args.rendezvous.is_some() || args.peers.is_some(),
        };
        Launch::from_environment(known, |name| std::env::var(name).ok())
            .map_err(|error| Failure::Usage(error.to_string()))?
    };
    let missing = |option: &str| {
        Failure::Usage(format!(
            "--{option} is not given, and no launcher says it (torchrun, SLURM, Open MPI, Kubernetes)"
        ))
    };
    let said = |of: fn(&Launch) -> u32| launch.as_ref().map(of);
    let rank = args.rank.or(said(|launch| launch.rank)).ok_or_else(|| missing("rank"))?;
    let size = args.world_size.or(said(|launch| launch.world_size)).ok_or_else(|| missing("world-size"))?;
    let world = World::new(rank, size, 0).map_err(|error| Failure::Usage(error.to_string()))?;
    let source = match &launch {
        Some(launch) if args.rank.is_none() || args.world_size.is_none() => format!("from {}", launch.source),
        _ => "from the options".into(),
    };
    let rendezvous = args.rendezvous.clone().or_else(|| match &args.peers {
        Some(_) => None,
        None => launch.and_then(|launch| launch.rendezvous),
    });
    Ok(Place { world, rendezvous, source })
}

fn mesh_config(
    args: &Args,
    job: &Job,
    world: World,
    rendezvous: Option<&str>,
    task: &dyn Task,
) -> Result<Config, Failure> {
    let identity = Identity::load(&args.identity).map_err(Failure::work)?;
    let rendezvous = match (rendezvous, &args.peers) {
        (_, Some(path)) => Rendezvous::Peers(Peers::load(path, world.size()).map_err(Failure::work)?),
        (Some(address), None) => Rendezvous::Address(address.to_owned()),
        (None, None) if world.size() == 1 => Rendezvous::Address(String::new()),
        (None, None) => {
            return Err(Failure::Usage(format!(
                "no way to find the other {} ranks: --rendezvous HOST:PORT or --peers FILE is needed",
                world.size() - 1
            )));
        }
    };
    let mut config = Config::new(identity, world, rendezvous);
    config.bind = args.bind;
    config.silence = job.silence;
    config.join = Duration::from_secs(args.join);
    let layout = task.layout();
    let optimizer = format!("{:?}", job.optimizer);
    config.agreements = vec![
        Agreement::new("task", name_of(job.task)),
        Agreement::new("model layout", blake3::Hash::from(layout.hash()).to_hex().as_str()),
        Agreement::new("codec", format!("{} at scale {:?}", name_of(args.codec), job.scale)),
        Agreement::new("optimizer", optimizer),
        Agreement::new("peak learning rate", job.learning_rate.to_string()),
        Agreement::new("number of steps", job.steps.to_string()),
        Agreement::new("seed", job.seed.to_string()),
    ];
    Ok(config)
}

/// Ends this process when its parent does, however that ends: the pipe then closes.
fn end_with_parent() -> Result<(), Failure> {
    let body = || {
        let mut ignored = [0; 64];
        while std::io::stdin().read(&mut ignored).is_ok_and(|count| count > 0) {}
        std::process::exit(1);
    };
    std::thread::Builder::new().name("parent".into()).spawn(body).map(drop).map_err(Failure::work)
}

/// Where events go: to the parent, or into this rank's files and a summary.
struct Teller {
    to_parent: bool,
    json: bool,
    output: Option<Output>,
    trouble: Option<Failure>,
    codec: String,
    last: Option<Step>,
    done: Option<crate::event::Done>,
    announced: bool,
}

impl Teller {
    fn new(args: &Args) -> Result<Self, Failure> {
        let output = args.out.as_deref().map(|folder| Output::create(Some(folder))).transpose()?;
        Ok(Self {
            to_parent: args.report_to_parent,
            json: args.json,
            output,
            trouble: None,
            codec: name_of(args.codec),
            last: None,
            done: None,
            announced: false,
        })
    }

    fn tell(&mut self, event: Event) {
        if self.to_parent {
            let line = serde_json::to_string(&event).unwrap_or_default() + "\n";
            // A parent that is gone shows on stdin too, which ends this process.
            let _ = std::io::stdout().write_all(line.as_bytes());
            return;
        }
        match event {
            Event::Step { step } => {
                if let Some(output) = &mut self.output
                    && let Err(failure) = output.step(&self.codec, &step)
                {
                    self.trouble.get_or_insert(failure);
                }
                if let (false, Some(log2)) = (self.announced, step.scale_log2) {
                    self.announced = true;
                    eprintln!("rank {}: scale 2^{log2} codes per gradient unit", step.rank);
                }
                self.last = Some(step);
            }
            Event::Done { done } => self.done = Some(done),
            Event::Listening { .. } | Event::Joined { .. } | Event::Failed { .. } => {}
        }
    }

    /// The result on stdout, the story on stderr.
    fn finish(mut self) -> Result<(), Failure> {
        if let Some(output) = &mut self.output {
            output.flush()?;
        }
        if let Some(trouble) = self.trouble {
            return Err(trouble);
        }
        let (Some(done), Some(last)) = (self.done, self.last) else { return Ok(()) };
        if self.to_parent {
            return Ok(());
        }
        if self.json {
            let report = serde_json::json!({
                "rank": done.rank,
                "steps": last.step,
                "codec": self.codec,
                "scale_log2": last.scale_log2,
                "loss": last.loss,
                "evaluation": done.evaluation,
                "bytes": done.bytes,
                "total_seconds": done.total_seconds,
                "parameters_blake3": done.parameters_blake3,
            });
            crate::print(report)
        } else {
            eprintln!(
                "rank {}: {} steps in {}, own loss {:.4}, sent {} of gradients and {} by UDP",
                done.rank,
                last.step,
                summary::seconds(done.total_seconds),
                last.loss,
                summary::bytes(done.bytes.gradient_packets),
                summary::bytes(done.bytes.udp)
            );
            crate::print(done.parameters_blake3)
        }
    }
}

//! Every rank a process of its own, over QUIC on loopback.

use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use gradwire::sync::Scheme;
use gradwire::transport::quic::Authority;

use super::fleet::{Fleet, From, Message};
use super::progress::Progress;
use super::{Plan, verdict};
use crate::args::name_of;
use crate::event::{Event, Fault};
use crate::failure::Failure;
use crate::{interrupt, life};

/// Time beyond the deadline for silence that the other ranks have to say whom they lost.
const GRACE: Duration = Duration::from_secs(2);

/// Time for a process that is about to end to say why.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// How long rank 0 may take until it can be reached: it loads its data and opens its adapter before.
const START: Duration = Duration::from_secs(60);

/// The longest deadline where no exchange is due: before all ranks have joined, and after the last step.
const IDLE: Duration = Duration::from_secs(10);

/// How often the processes are looked at.
const LOOK: Duration = Duration::from_millis(20);

/// Runs the plan with `codec`; rank 0 writes the final parameters to `model`.
pub(super) fn run(
    plan: &Plan,
    codec: Scheme,
    model: Option<&Path>,
    progress: &Progress,
    take: &mut dyn FnMut(Event) -> Result<(), Failure>,
) -> Result<(), Failure> {
    // Lives in this process alone: keys go to the nodes through their stdin, and never into a file.
    let authority = Authority::new("train").map_err(Failure::work)?;
    let start = |fleet: &mut Fleet, rank: u32, rendezvous: &str, to: &Sender<From>| {
        let command = command(plan, codec, rank, rendezvous, model.filter(|_| rank == 0))?;
        let identity = authority.issue_pem(rank, plan.nodes).map_err(Failure::work)?;
        fleet.start(rank, command, &identity, to)
    };

    let (sender, inbox) = mpsc::channel();
    let mut fleet = Fleet::default();
    start(&mut fleet, 0, "127.0.0.1:0", &sender)?;
    // Held until all processes are started; the inbox ends when the last process has closed its output.
    let mut starter = Some(sender);
    let mut course = Course::new(plan);
    let mut looked = Instant::now();
    loop {
        match inbox.recv_timeout(LOOK) {
            Ok((rank, message)) => {
                fleet.heard(rank);
                match message {
                    Message::Alive => {}
                    Message::Line(line) => progress.say(&format!("rank {rank}: {line}")),
                    Message::Event(event) => {
                        if let Event::Listening { address } = &event
                            && let Some(sender) = starter.take()
                        {
                            (1..plan.nodes).try_for_each(|rank| start(&mut fleet, rank, address, &sender))?;
                        }
                        course.note(&event);
                        take(event)?;
                    }
                }
            }
            Err(RecvTimeoutError::Disconnected) if fleet.all_ended() => break,
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(Duration::from_millis(5)),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if interrupt::asked() {
            return Err(Failure::Work("interrupted, all nodes ended".into()));
        }
        let gap = looked.elapsed();
        if gap < LOOK {
            continue;
        }
        looked = Instant::now();
        if gap > 10 * LOOK {
            // This process was stopped itself, or busy: its nodes were not silent, only unheard.
            fleet.excuse(gap);
        }
        if starter.is_some() && course.started.elapsed() > START {
            return Err(Failure::Work(format!(
                "rank 0 was not reachable after {:.0?}, deadline {START:.0?}",
                course.started.elapsed()
            )));
        }
        // Whoever is left after that, the drop of `fleet` ends.
        if course.is_over(&mut fleet) {
            break;
        }
    }
    let ends = if course.is_done() { Vec::new() } else { fleet.ends(life::suspicious(course.deadline())) };
    // What was said and not heard yet; ends with the last process.
    drop((starter, fleet));
    while let Ok((rank, message)) = inbox.recv_timeout(LAST_WORDS) {
        match message {
            Message::Event(event) => course.note(&event),
            Message::Line(line) => progress.say(&format!("rank {rank}: {line}")),
            Message::Alive => {}
        }
    }
    match verdict::of(&course.faults(), &ends) {
        Some(message) => Err(Failure::Work(message)),
        None => Ok(()),
    }
}

/// How far the fleet has come, and whether there is anything left to wait for.
struct Course {
    nodes: u32,
    silence: Duration,
    started: Instant,
    joined: u32,
    done: u32,
    /// What ranks said.
    faults: Vec<Fault>,
    /// What this process noticed by itself: the last resort, because ranks know more.
    noticed: Option<Fault>,
    until: Option<Instant>,
}

impl Course {
    fn new(plan: &Plan) -> Self {
        Self {
            nodes: plan.nodes,
            silence: plan.job.silence,
            started: Instant::now(),
            joined: 0,
            done: 0,
            faults: Vec::new(),
            noticed: None,
            until: None,
        }
    }

    fn note(&mut self, event: &Event) {
        match event {
            Event::Joined { .. } => self.joined += 1,
            Event::Done { .. } => self.done += 1,
            Event::Failed { fault } => self.faults.push(fault.clone()),
            Event::Listening { .. } | Event::Step { .. } => {}
        }
    }

    fn is_done(&self) -> bool {
        self.done == self.nodes
    }

    fn is_training(&self) -> bool {
        self.joined == self.nodes && self.done == 0
    }

    /// How long a rank may be silent now.
    fn deadline(&self) -> Duration {
        if self.is_training() { self.silence } else { self.silence.min(IDLE) }
    }

    /// Whether the rest of the processes would only wait for each other.
    fn is_over(&mut self, fleet: &mut Fleet) -> bool {
        let suspects = fleet.silent(life::suspicious(self.deadline()));
        if self.noticed.is_none() && !fleet.silent(life::limit(self.deadline())).is_empty() {
            self.noticed = Some(silence(&suspects, self.deadline()));
        }
        let trouble = !self.faults.is_empty() || self.noticed.is_some() || fleet.any_failed();
        if !trouble && !self.is_done() {
            return false;
        }
        let mut until = self.until.unwrap_or_else(|| Instant::now() + self.deadline() + GRACE);
        let hopeless = |rank: &u32| {
            self.faults.iter().any(|fault| fault.culprit == Some(*rank))
                || suspects.iter().any(|(suspect, _)| suspect == rank)
        };
        let alive = fleet.alive();
        // Before all have joined nobody knows more than the one that failed, and of a process that was killed nobody
        // knows more than this one. Not at once: whoever is blamed may be about to say more itself.
        let settled = self.joined < self.nodes || fleet.any_killed() || alive.iter().all(hopeless);
        if trouble && settled {
            until = until.min(Instant::now() + LAST_WORDS);
        }
        self.until = Some(until);
        Instant::now() > until
    }

    /// What ranks said or, if they said nothing, what was noticed here.
    fn faults(&self) -> Vec<Fault> {
        if self.faults.is_empty() { self.noticed.iter().cloned().collect() } else { self.faults.clone() }
    }
}

/// What this process has to say about ranks that were silent.
fn silence(of: &[(u32, Duration)], deadline: Duration) -> Fault {
    let ranks: Vec<u32> = of.iter().map(|(rank, _)| *rank).collect();
    let longest = of.iter().map(|(_, time)| *time).max().unwrap_or_default();
    let message =
        format!("{} gave no sign of life for {longest:.1?}, deadline {deadline:.1?}", verdict::ranks(&ranks));
    let culprit = if let [one] = ranks[..] { Some(one) } else { None };
    Fault { rank: ranks.first().copied().unwrap_or_default(), message, culprit }
}

/// This program as one node of the run.
fn command(
    plan: &Plan,
    codec: Scheme,
    rank: u32,
    rendezvous: &str,
    model: Option<&Path>,
) -> Result<Command, Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::Work(format!("cannot find this program to start it as a node: {error}")))?;
    let mut command = Command::new(program);
    command.arg("node").args(plan.job.to_flags());
    // As bytes, not as text: a path need not be UTF-8.
    if let Some(data) = &plan.job.data {
        command.arg("--data").arg(data);
    }
    if let Some(model) = model {
        command.arg("--model").arg(model);
    }
    command
        .arg(format!("--codec={codec}"))
        .arg(format!("--backend={}", name_of(plan.backends[rank as usize])))
        .arg(format!("--rank={rank}"))
        .arg(format!("--world-size={}", plan.nodes))
        .arg(format!("--rendezvous={rendezvous}"))
        .args(["--bind=127.0.0.1:0", "--report-to-parent", "--identity=-"]);
    // The nodes share the cores. The bits do not depend on the number of threads (tested with 1, 2 and 4).
    if std::env::var_os("RAYON_NUM_THREADS").is_none() {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
        command.env("RAYON_NUM_THREADS", (cores / plan.nodes as usize).max(1).to_string());
    }
    Ok(command)
}

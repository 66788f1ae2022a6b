//! What a node tells: its parent everything, its user the course and the result.

use std::io::Write;

use gradwire::transport::World;
use serde::Serialize;

use super::Args;
use crate::args::{Job, ScaleArg};
use crate::event::Event;
use crate::failure::Failure;
use crate::report::tally::Tally;
use crate::report::write::Output;
use crate::report::{Run, summary};
use crate::say::note;

/// Where events go: to the parent, or into this rank's files and a summary.
pub(super) struct Teller {
    to_parent: bool,
    json: bool,
    trouble: Option<Failure>,
    story: Option<Story>,
}

/// A run of this rank alone, as its user sees it.
struct Story {
    rank: u32,
    world_size: u32,
    codec: String,
    steps: u64,
    output: Option<Output>,
    tally: Tally,
    resets: u64,
    announced: bool,
    /// Whether there are some.
    sites: bool,
}

/// What `node --json` prints: one entry of `runs` in report.json, as far as this rank took part in it.
#[derive(Serialize)]
struct NodeRun<'a> {
    rank: u32,
    world_size: u32,
    #[serde(flatten)]
    run: &'a Run,
}

impl Teller {
    pub(super) fn new(args: &Args) -> Self {
        Self { to_parent: args.report_to_parent, json: args.json, trouble: None, story: None }
    }

    /// Refuses an `--out` that could not be written into.
    pub(super) fn check(&self, args: &Args) -> Result<(), Failure> {
        args.out.as_deref().filter(|_| !self.to_parent).map_or(Ok(()), Output::try_out)
    }

    /// From here on there is a run to tell about; makes the folder `--out`.
    pub(super) fn begin(&mut self, args: &Args, job: &Job, world: World) -> Result<(), Failure> {
        if self.to_parent {
            return Ok(());
        }
        self.story = Some(Story {
            rank: world.rank().0,
            world_size: world.size(),
            codec: args.codec.id().to_string(),
            steps: job.steps,
            output: args.out.as_deref().map(Output::create).transpose()?,
            // The other ranks tell their own users.
            tally: Tally::new(args.codec, &args.codec.short(), job.scale == ScaleArg::Auto, 1),
            resets: 0,
            announced: false,
            sites: job.sites.inner().is_some(),
        });
        Ok(())
    }

    pub(super) fn tell(&mut self, event: Event) {
        if self.to_parent {
            let line = serde_json::to_string(&event).unwrap_or_default() + "\n";
            // A parent that is gone shows on stdin too, which ends this process.
            let _ = std::io::stdout().write_all(line.as_bytes());
        } else if let Some(story) = &mut self.story
            && let Err(failure) = story.take(&event)
            && self.trouble.is_none()
        {
            // At once: the run goes on, and someone may make room for its model.
            note!("rank {}: {failure}; the run goes on, but will end as failed", story.rank);
            self.trouble = Some(failure);
        }
    }

    /// The result on stdout.
    pub(super) fn finish(self) -> Result<(), Failure> {
        if let Some(trouble) = self.trouble {
            return Err(trouble);
        }
        let Some(story) = self.story else { return Ok(()) };
        story.finish(self.json)
    }
}

impl Story {
    fn take(&mut self, event: &Event) -> Result<(), Failure> {
        self.tally.add(event);
        let Event::Step { step } = event else { return Ok(()) };
        self.resets += u64::from(step.reset);
        if let (false, Some(log2)) = (self.announced, step.scale_log2) {
            self.announced = true;
            note!("rank {}: scale 2^{log2} codes per gradient unit", self.rank);
        }
        match &mut self.output {
            Some(output) => output.step(&self.codec, step),
            None => Ok(()),
        }
    }

    fn finish(mut self, json: bool) -> Result<(), Failure> {
        if let Some(output) = &mut self.output {
            output.flush()?;
        }
        let mut run = self.tally.finish()?;
        // A tally counts the resets of rank 0, for all.
        run.residual.resets = self.resets;
        if json {
            let node = NodeRun { rank: self.rank, world_size: self.world_size, run: &run };
            return crate::say::print(serde_json::to_string(&node).map_err(Failure::work)?);
        }
        let (score, value) = run.score.show();
        let between = if self.sites {
            format!(", {} between sites", summary::bytes(run.bytes.wan_packets))
        } else {
            String::new()
        };
        let owned = run.nodes.first().map_or(0, |node| node.owned);
        crate::say::print(format_args!(
            "rank: {} of {}, owns {} parameters\nsteps: {}, {} in all, {} each\nloss: {} in the first step, {} in the last \
             (batches of this rank)\nevaluation: loss {}, {score} {value}\nsent: {} of gradients, {} of parameters{between}, \
             {} by UDP\nparameters_blake3: {}",
            self.rank,
            self.world_size,
            summary::grouped(owned),
            summary::grouped(self.steps),
            summary::seconds(run.seconds.total),
            summary::seconds(run.seconds.step_median),
            summary::loss(run.loss.first),
            summary::loss(run.loss.last),
            summary::loss(run.loss.eval),
            summary::bytes(run.bytes.gradient_packets),
            summary::bytes(run.bytes.parameter_packets),
            summary::bytes(run.bytes.udp),
            run.parameters_blake3
        ))
    }
}

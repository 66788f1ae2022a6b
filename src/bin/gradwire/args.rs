//! Options that `train` and `node` share, and what they come to.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use gradwire::codec::{Codec, CodecId, WEIGHTED_SUM_LIMIT, loco};
use gradwire::optim;
use gradwire::sync::shares::Speed;
use gradwire::sync::{Backend, Config, Scale, Scheme, powersgd};
use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::shares::ShareArg;
use crate::sites::{SiteArgs, Sites};
use crate::task::{Layout, Task, digits::Digits, text::Text};

/// How a codec is shown in `--help`.
pub(crate) const CODEC: &str = "CODEC[:PARAMETER=NUMBER,..]";

/// Every codec with its parameters, for the end of `--help`.
pub(crate) fn codecs_help() -> String {
    let codecs = CodecId::ALL.map(|id| Scheme::Codec(Codec::new(id)));
    let all = codecs.into_iter().chain([powersgd::Config::default().into()]);
    let lines: Vec<String> = all.map(|scheme| format!("  {scheme}")).collect();
    format!(
        "Codecs, with all their parameters as by default (weights in 1/256, _log2: powers of two):\n{}",
        lines.join("\n")
    )
}

/// What is trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TaskName {
    /// UCI optical digits (built in), a perceptron of 50,826 parameters.
    Digits,
    /// Next byte of the file `--data`, a transformer of 276,960 parameters.
    Text,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OptimizerName {
    /// Adam with decoupled weight decay.
    Adamw,
    /// Momentum 0.9.
    Sgd,
    /// AdamW for --warmup steps on f32 gradients, then momenta in the codec under a frozen variance (arXiv 2102.02888).
    OnebitAdam,
    /// The same with a trust ratio per tensor (arXiv 2104.06069).
    OnebitLamb,
    /// AdamW that measures its variance at steps farther and farther apart (arXiv 2202.06009).
    ZeroOneAdam,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BackendName {
    /// A hardware GPU if there is one and it gives the bits of the CPU, else the CPU.
    Auto,
    /// The CPU functions, which define every bit.
    Cpu,
    /// An adapter, a software one if there is no other.
    Gpu,
}

/// Options of one training, the same on every rank.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct TrainingArgs {
    /// What to train.
    #[arg(long, value_enum, default_value_t = TaskName::Digits)]
    pub(crate) task: TaskName,
    /// File to train `text` on, at most 1 GiB; its last tenth is for evaluation.
    #[arg(long, value_name = "PATH")]
    pub(crate) data: Option<PathBuf>,
    /// Optimizer steps [default: 600 for digits, 300 for text].
    #[arg(long, value_name = "STEPS", allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) steps: Option<u64>,
    /// Samples per rank and step: images, or windows of 64 bytes [default: 64 for digits, 8 for text].
    #[arg(long, value_name = "SAMPLES", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) batch: Option<u32>,
    /// What turns the mean gradient into parameters.
    #[arg(long, value_enum, default_value_t = OptimizerName::Adamw)]
    pub(crate) optimizer: OptimizerName,
    /// Steps before onebit-adam and onebit-lamb freeze their variance [default: a fifth of the steps].
    #[arg(long, value_name = "STEPS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) warmup: Option<u32>,
    /// Peak learning rate, no unit: reached after the first twentieth of the steps, then falls to 0
    /// [default: 0.1 for sgd, 0.02 for onebit-lamb, else 0.004].
    #[arg(long, value_name = "RATE", allow_negative_numbers = true)]
    pub(crate) lr: Option<f32>,
    /// Weight decay per step and unit of learning rate, no unit.
    #[arg(long, value_name = "RATE", default_value_t = 0.01, allow_negative_numbers = true)]
    pub(crate) weight_decay: f32,
    /// Codes per gradient unit of a codec with one scale for the whole gradient, as a power of two from -64 to 64, or
    /// `auto`: about 2 codes for the root mean square of the first gradient over all ranks.
    #[arg(long, value_name = "auto|LOG2", default_value = "auto", value_parser = parse_scale, allow_hyphen_values = true)]
    pub(crate) scale: ScaleArg,
    /// Whole number that fixes initial parameters, data split and batches.
    #[arg(long, value_name = "NUMBER", default_value_t = 0, allow_negative_numbers = true)]
    pub(crate) seed: u64,
    /// Use only adapters with this in their name, a software one too; that there is none is an error.
    #[arg(long, value_name = "SUBSTRING")]
    pub(crate) adapter: Option<String>,
    /// Seconds without a byte after which a rank is lost, 0.1 to 3600; counts only after all ranks have joined.
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, allow_negative_numbers = true)]
    pub(crate) deadline: f64,
    /// How much of the parameters each rank owns, averages and sends to the others: `equal`; a weight per rank as in `2,1,1`;
    /// `learned`, by what 10 steps (`learned:STEPS`) show of lines and processors; `declared`, by the --link and --downlink
    /// of every node.
    #[arg(long, value_name = "SHARES", default_value = "equal")]
    pub(crate) shares: ShareArg,
    #[command(flatten)]
    pub(crate) sites: SiteArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScaleArg {
    Auto,
    Log2(i8),
}

/// [`TrainingArgs`] with every default filled in and every range checked.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) task: TaskName,
    pub(crate) data: Option<PathBuf>,
    pub(crate) steps: u64,
    pub(crate) batch: u32,
    pub(crate) optimizer_name: OptimizerName,
    pub(crate) optimizer: optim::Config,
    /// Of an optimizer that has one.
    pub(crate) warmup: Option<NonZeroU32>,
    pub(crate) learning_rate: f32,
    pub(crate) weight_decay: f32,
    pub(crate) scale: ScaleArg,
    pub(crate) seed: u64,
    pub(crate) adapter: Option<String>,
    pub(crate) silence: Duration,
    pub(crate) shares: ShareArg,
    /// What is declared of this rank's line.
    pub(crate) line: Option<Speed>,
    pub(crate) sites: Sites,
}

impl TrainingArgs {
    /// Refuses a scale that none of `schemes` would use.
    pub(crate) fn check_scale(&self, schemes: &[Scheme]) -> Result<(), Failure> {
        let used = schemes.iter().any(|scheme| scheme.scale_log2().is_some());
        if matches!(self.scale, ScaleArg::Log2(_)) && !used {
            let names: Vec<String> = schemes.iter().map(|scheme| scheme.id().to_string()).collect();
            return Err(Failure::Usage(format!(
                "--scale belongs to a codec with one scale for the whole gradient, which {} has not",
                names.join(" or ")
            )));
        }
        Ok(())
    }

    /// Checks what a type can't, for `world_size` ranks, in these sites if a peers file has some.
    pub(crate) fn job(&self, world_size: u32, peers: &[u32]) -> Result<Job, Failure> {
        let Self { task, optimizer: optimizer_name, weight_decay, .. } = *self;
        match (task, &self.data) {
            (TaskName::Text, None) => {
                return Err(Failure::Usage("--task text needs a file to train on: --data PATH".into()));
            }
            (TaskName::Digits, Some(_)) => {
                return Err(Failure::Usage("--data belongs to --task text; the digits are built in".into()));
            }
            _ => {}
        }
        let (steps, batch) = match task {
            TaskName::Digits => (600, 64),
            TaskName::Text => (300, 8),
        };
        let steps = self.steps.unwrap_or(steps);
        let has_warmup = matches!(optimizer_name, OptimizerName::OnebitAdam | OptimizerName::OnebitLamb);
        if self.warmup.is_some() && !has_warmup {
            return Err(Failure::Usage(format!(
                "--warmup belongs to onebit-adam and onebit-lamb; --optimizer is {}",
                name_of(optimizer_name)
            )));
        }
        let fifth = u32::try_from(steps / 5).unwrap_or(u32::MAX);
        let warmup = NonZeroU32::new(self.warmup.unwrap_or(fifth)).unwrap_or(NonZeroU32::MIN);
        if has_warmup && u64::from(warmup.get()) >= steps {
            return Err(Failure::Usage(format!(
                "a warm-up of {warmup} steps leaves none of {steps} for {}",
                name_of(optimizer_name)
            )));
        }
        let adam = optim::AdamW { weight_decay, ..optim::AdamW::default() };
        let optimizer = match optimizer_name {
            OptimizerName::Adamw => optim::Config::AdamW(adam),
            OptimizerName::Sgd => optim::Config::Sgd(optim::Sgd { weight_decay, ..optim::Sgd::default() }),
            OptimizerName::OnebitAdam => optim::Config::OneBitAdam(optim::OneBitAdam { adam, warmup }),
            OptimizerName::OnebitLamb => {
                optim::Config::OneBitLamb(optim::OneBitLamb { adam, warmup, ..optim::OneBitLamb::default() })
            }
            OptimizerName::ZeroOneAdam => {
                optim::Config::ZeroOneAdam(optim::ZeroOneAdam { adam, ..optim::ZeroOneAdam::default() })
            }
        };
        optimizer.validate().map_err(|error| Failure::Usage(error.to_string()))?;
        let learning_rate = self.lr.unwrap_or(match optimizer_name {
            OptimizerName::Sgd => 0.1,
            OptimizerName::OnebitLamb => 0.02,
            OptimizerName::Adamw | OptimizerName::OnebitAdam | OptimizerName::ZeroOneAdam => 0.004,
        });
        if !(learning_rate.is_finite() && learning_rate >= 0.0) {
            return Err(Failure::Usage(format!("--lr is {learning_rate}, must be finite and at least 0")));
        }
        if !(0.1..=3600.0).contains(&self.deadline) {
            return Err(Failure::Usage(format!("--deadline is {} s, must be 0.1 to 3600 s", self.deadline)));
        }
        let batch = self.batch.unwrap_or(batch);
        // What the codec's weights allow: their sum is exact in f32.
        let (samples, most) = (u64::from(batch) * u64::from(world_size), WEIGHTED_SUM_LIMIT / 8);
        if samples >= most {
            return Err(Failure::Usage(format!(
                "--batch {batch} on {world_size} nodes makes {samples} samples per step, must be below {most}"
            )));
        }
        Ok(Job {
            task,
            data: self.data.clone(),
            steps,
            warmup: has_warmup.then_some(warmup),
            batch,
            optimizer_name,
            optimizer,
            learning_rate,
            weight_decay,
            scale: self.scale,
            seed: self.seed,
            adapter: self.adapter.clone(),
            silence: Duration::from_secs_f64(self.deadline),
            shares: self.shares.clone(),
            line: None,
            sites: self.sites.sites(world_size, peers)?,
        })
    }
}

impl Job {
    /// The model and its data.
    pub(crate) fn load(&self, world_size: u32) -> Result<Box<dyn Task>, Failure> {
        Ok(match (&self.data, self.task) {
            (Some(path), TaskName::Text) => Box::new(Text::new(path, self.seed, world_size, self.batch)?),
            _ => Box::new(Digits::new(self.seed)),
        })
    }

    /// How to synchronise the parameters of `layout` with `scheme`.
    pub(crate) fn sync(&self, mut scheme: Scheme, backend: Backend, layout: &Layout) -> Config {
        let scale = match (self.scale, &mut scheme) {
            (ScaleArg::Log2(scale_log2), Scheme::Codec(codec)) => {
                codec.set_scale_log2(scale_log2);
                Scale::Fixed
            }
            _ => Scale::Auto,
        };
        let mut config = Config {
            shapes: layout.shapes(),
            tensors: layout.sizes(),
            scale,
            backend,
            ..Config::new(scheme, self.optimizer)
        };
        self.sites.apply(&mut config);
        config.shares = self.shares.shares(self.line);
        config
    }

    /// The learning rate of `step` (counted from 0): rises over the first twentieth of the steps, then falls to 0.
    ///
    /// Straight lines and not a cosine: f32 divisions give the same bits on every platform.
    pub(crate) fn learning_rate_at(&self, step: u64) -> f32 {
        let warm = (self.steps / 20).max(1);
        let share = if step < warm {
            (step + 1) as f32 / warm as f32
        } else {
            (self.steps - step) as f32 / (self.steps - warm).max(1) as f32
        };
        self.learning_rate * share
    }

    /// The options that make another process arrive at this job.
    pub(crate) fn to_flags(&self) -> Vec<String> {
        let scale = match self.scale {
            ScaleArg::Auto => "auto".to_owned(),
            ScaleArg::Log2(scale) => scale.to_string(),
        };
        let mut flags = vec![
            format!("--task={}", name_of(self.task)),
            format!("--steps={}", self.steps),
            format!("--batch={}", self.batch),
            format!("--optimizer={}", name_of(self.optimizer_name)),
            format!("--lr={}", self.learning_rate),
            format!("--weight-decay={}", self.weight_decay),
            format!("--scale={scale}"),
            format!("--seed={}", self.seed),
            format!("--deadline={}", self.silence.as_secs_f64()),
        ];
        flags.extend(self.warmup.iter().map(|steps| format!("--warmup={steps}")));
        flags.push(format!("--shares={}", self.shares));
        flags.extend(self.sites.to_flags());
        flags.extend(self.adapter.iter().map(|name| format!("--adapter={name}")));
        flags
    }
}

/// The word that stands for `value` on the command line.
pub(crate) fn name_of<T: ValueEnum>(value: T) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

fn parse_scale(text: &str) -> Result<ScaleArg, String> {
    if text == "auto" {
        return Ok(ScaleArg::Auto);
    }
    match text.parse() {
        Ok(log2) if loco::Config::SCALE_LOG2.contains(&log2) => Ok(ScaleArg::Log2(log2)),
        _ => Err("neither `auto` nor a whole number from -64 to 64".into()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use clap::Parser;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        training: TrainingArgs,
    }

    #[test]
    fn another_process_arrives_at_the_same_job() {
        let given = [
            "x",
            "--seed=9",
            "--scale=-3",
            "--lr=0.1",
            "--optimizer=sgd",
            "--steps=7",
            "--deadline=1.5",
            "--sites=1,1",
            "--shares=3,1",
        ];
        let job = Line::parse_from(given).training.job(2, &[]).unwrap();
        let flags = [vec!["x".to_owned()], job.to_flags()].concat();
        let again = Line::parse_from(flags).training.job(2, &[]).unwrap();
        assert_eq!(format!("{job:?}"), format!("{again:?}"));
    }

    #[test]
    fn the_learning_rate_rises_to_its_peak_and_falls_to_nearly_nothing() {
        for steps in [1, 2, 19, 20, 600] {
            let job = Line::parse_from(["x", &format!("--steps={steps}")]).training.job(1, &[]).unwrap();
            let rates: Vec<f32> = (0..steps).map(|step| job.learning_rate_at(step)).collect();
            assert!(rates.iter().all(|rate| *rate > 0.0 && *rate <= job.learning_rate), "{rates:?}");
            assert!(rates.contains(&job.learning_rate), "{rates:?}");
        }
    }
}

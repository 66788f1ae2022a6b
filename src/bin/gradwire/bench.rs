//! `gradwire bench`: how fast is it here?

pub(crate) mod cpu;
mod exchange;
mod fleet;
mod kernels;
mod size;
mod step;

use crate::failure::Failure;

/// Measure how fast this machine is.
///
/// Every row is a median over repeats, with the fastest and the slowest beside it, and goes to stdout.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand, Debug)]
enum What {
    Kernels(kernels::Args),
    Exchange(exchange::Args),
    Step(step::Args),
    /// One rank of `exchange` or `step`, told by its parent what to do.
    #[command(hide = true)]
    Rank,
}

impl Args {
    /// Whether another process of this program started this one.
    pub(crate) fn has_parent(&self) -> bool {
        matches!(self.what, What::Rank)
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    match &args.what {
        What::Kernels(args) => kernels::run(args),
        What::Exchange(args) => exchange::run(args),
        What::Step(args) => step::run(args),
        What::Rank => fleet::rank(),
    }
}

//! `gradwire bench`: how fast is it here?

pub(crate) mod cpu;
mod kernels;
mod size;

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
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    match &args.what {
        What::Kernels(args) => kernels::run(args),
    }
}

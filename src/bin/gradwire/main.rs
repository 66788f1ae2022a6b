//! `gradwire`: train over a fleet, and look at what a machine can do.
//!
//! Human output goes to stderr, results to stdout. Exit status: 0 done, 1 the work failed, 2 wrong usage.

#![deny(clippy::print_stdout, clippy::print_stderr)]

mod args;
mod backend;
mod bench;
mod doctor;
mod event;
mod failure;
mod interrupt;
mod keygen;
mod life;
mod mesa;
mod milestone;
mod node;
mod rank;
mod report;
mod say;
mod shares;
mod sites;
mod task;
mod train;
mod vectors;
mod verify;

use std::process::ExitCode;

use clap::Parser;
use clap::error::{ContextKind, ErrorKind};

/// Low-bit gradient exchange for mixed GPU fleets.
///
/// Messages and progress go to stderr, results to stdout. Exit status: 0 done, 1 the work failed, 2 wrong usage.
/// RUST_LOG sets the log level (default warn); with gradwire=debug every step says how long it took.
#[derive(Parser)]
#[command(name = "gradwire", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    Train(train::Args),
    Node(Box<node::Args>),
    Keygen(keygen::Args),
    Verify(verify::Args),
    Doctor(doctor::Args),
    Bench(bench::Args),
}

fn main() -> ExitCode {
    let verb = match Cli::try_parse() {
        Ok(cli) => cli.verb,
        Err(mut error) => {
            // Of three values, the one that looks most like `cuda` is `cpu`: that helps nobody. All are listed.
            error.remove(ContextKind::SuggestedValue);
            if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
                error.exit()
            }
            say::note!("gradwire: {}", in_one_line(&error.to_string()));
            say::note!("for all options, try '--help'");
            return ExitCode::from(2);
        }
    };
    mesa::silence();
    log_to_stderr(match &verb {
        Verb::Node(args) => args.has_parent(),
        Verb::Bench(args) => args.has_parent(),
        _ => false,
    });
    let result = match verb {
        Verb::Train(args) => train::run(&args),
        Verb::Node(args) => node::run(&args),
        Verb::Keygen(args) => keygen::run(&args),
        Verb::Verify(args) => verify::run(&args),
        Verb::Doctor(args) => doctor::run(&args),
        Verb::Bench(args) => bench::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            say::note!("gradwire: {failure}");
            ExitCode::from(failure.status())
        }
    }
}

/// What is wrong, of a text that goes on with the usage of a verb and where to read more.
fn in_one_line(text: &str) -> String {
    let what = text.strip_prefix("error: ").unwrap_or(text).lines().map(str::trim);
    let what =
        what.take_while(|line| !line.starts_with("Usage: ") && !line.starts_with("For more information"));
    what.filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

/// Warnings and worse, unless `RUST_LOG` says otherwise; children leave warnings to their parent, who would
/// otherwise show each of them once per rank.
fn log_to_stderr(is_child: bool) {
    use tracing_subscriber::EnvFilter;
    use tracing_subscriber::fmt::format::FmtSpan;

    // What ends a run, the communicator warns of and the verb then reports: once is enough.
    let default = if is_child { "error" } else { "warn,gradwire_transport::mesh=error" };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_span_events(FmtSpan::CLOSE)
        .log_internal_errors(false)
        .init();
}

//! `gradwire keygen`: who belongs to a run.

use std::path::PathBuf;

use gradwire::transport::quic;

use crate::failure::Failure;
use crate::say::note;

/// Make the certificate authority of one run and an identity for each rank.
///
/// Copy rank-R.pem (and nothing else) to the machine of rank R. The key of the authority, ca-key.pem, is not needed
/// at run time: whoever has it can add members.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder to write ca.pem, ca-key.pem and rank-R.pem into; existing files are never overwritten.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Ranks of the run, 1 to 4096.
    #[arg(long, value_name = "RANKS", value_parser = clap::value_parser!(u32).range(1..=4096))]
    world_size: u32,
    /// Print one JSON object on stdout and nothing else there.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let names = || (0..args.world_size).map(|rank| format!("rank-{rank}.pem"));
    quic::keygen(&args.out, args.world_size).map_err(Failure::work)?;
    let path = |name: String| args.out.join(name).display().to_string();
    if args.json {
        let identities: Vec<String> = names().map(path).collect();
        let report = serde_json::json!({
            "authority": path("ca.pem".into()),
            "authority_key": path("ca-key.pem".into()),
            "identities": identities,
        });
        crate::say::print(report)
    } else {
        note!(
            "{} identities, rank-0.pem to rank-{}.pem; ca-key.pem is not needed at run time, keep it apart",
            args.world_size,
            args.world_size - 1
        );
        crate::say::print(args.out.display())
    }
}

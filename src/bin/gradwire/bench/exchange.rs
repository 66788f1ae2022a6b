//! `gradwire bench exchange`: how fast do ranks exchange, over loopback or an emulated link?

mod measure;
mod table;
mod tcp;

use std::num::NonZeroU64;

use clap::ValueEnum;
use gradwire::transport::sim::LinkConfig;
use serde::Serialize;

use super::fleet::link::Link;
use super::fleet::parse_link;
use super::fleet::way::{LinkRate, Way};
use super::size;
use crate::failure::Failure;

/// All-to-all between processes over QUIC: GB/s, CPU seconds per GB, and the share of an emulated link that is used.
///
/// GB/s counts what all ranks send to each other, over the time of the slowest; CPU time counts all ranks. `of link` is
/// that time's share of the link's rate; `2nd half` and `steady` are those of the second and the middle half of the bytes as
/// they arrive at the slowest rank: the former is without the start, the latter without the last losses too. `again` is the
/// share of the bytes that were taken for lost. Every exchange follows a barrier, and one that is not measured.
///
/// Windows are those of a node that is told its line's rate and round trip.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Ranks, each a process of its own.
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..=64))]
    nodes: u32,
    /// Bytes that every rank sends to every other rank, as in 1000, 16MB or 64MiB; at most 4GiB.
    #[arg(long, value_name = "BYTES", default_value = "64MiB", value_parser = bytes)]
    bytes: usize,
    /// Emulate a line of this rate (per node, each way), round-trip time and loss, as in 1Gbit,80ms,0.1%, and
    /// optionally queue=BYTES, jitter=TIME, burst=PACKETS, reorder=SHARE, duplicate=SHARE [default: plain loopback].
    #[arg(long, value_name = "RATE,RTT,LOSS", value_parser = parse_link)]
    link: Option<LinkConfig>,
    /// Congestion control to measure; repeatable [default: every one with --link, else the mesh's own].
    #[arg(long, value_enum)]
    congestion: Vec<Way>,
    /// Rate of a node's line that `paced` is told, as in 1.2Gbit, the `declared` one of --link, or none: `estimated`.
    #[arg(long, value_name = "declared|estimated|RATE", default_value = "declared")]
    link_rate: LinkRate,
    /// Measure the system's TCP (Cubic) too, on the link of --link; Linux, with the rights to make network namespaces.
    #[arg(long, requires = "link")]
    tcp: bool,
    /// Exchanges that are measured.
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
    #[serde(skip_serializing_if = "Option::is_none")]
    tcp: Option<tcp::Tcp>,
}

/// A way that could not be measured.
#[derive(Debug, Serialize)]
struct Missing {
    congestion: Way,
    why: String,
}

/// One way.
#[derive(Debug, Serialize)]
struct Row {
    congestion: Way,
    /// Bits per second that its ranks were told of their lines; null if they found out for themselves.
    link_rate: Option<NonZeroU64>,
    nodes: u32,
    /// From every rank to every other rank.
    bytes_per_pair: u64,
    link: Option<Link>,
    repeats: u32,
    /// Of one exchange, the median.
    seconds: f64,
    /// The fastest, in seconds.
    min: f64,
    /// The slowest.
    max: f64,
    /// All ranks together, at the median.
    gb_per_s: f64,
    /// Median; of all ranks.
    cpu_s_per_gb: Option<f64>,
    /// Bits of messages that a rank sends per second, over the rate of its line.
    goodput_over_link: Option<f64>,
    /// What a rank received, over the rate of its line: the median of the slowest ranks, from the first quarter of its bytes
    /// to the third, that is without the start and the last losses. Null where these arrived all at once.
    steady_over_link: Option<f64>,
    /// The same of the second half of its bytes.
    second_half_over_link: Option<f64>,
    /// Median share of the UDP bytes that were taken for lost.
    retransmitted_share: f64,
    /// The largest of all ranks: the whole process, from its start to its end.
    peak_rss_bytes: Option<u64>,
    /// Of these, what a rank sends (one message, shared by all peers) and what it has received.
    message_bytes: u64,
    received_bytes: u64,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let ways = match args.congestion.as_slice() {
        [] if args.link.is_some() => Way::value_variants().to_vec(),
        [] => vec![Way::Paced],
        some => some.to_vec(),
    };
    let (mut rows, mut missing) = (Vec::new(), Vec::new());
    for congestion in ways {
        match measure::run(args, congestion)? {
            Ok(row) => rows.push(row),
            Err(why) => missing.push(Missing { congestion, why }),
        }
    }
    let report = Report { rows, missing, tcp: args.tcp.then(|| tcp::run(args)) };
    if args.json {
        crate::say::print(serde_json::to_string(&report).map_err(Failure::work)?)
    } else {
        crate::say::print(report)
    }
}

fn bytes(text: &str) -> Result<usize, String> {
    const MOST: u64 = 4 << 30;
    let bytes = size::parse_bytes(text)?;
    if bytes as u64 > MOST { Err(format!("{bytes} bytes, must be at most {MOST}")) } else { Ok(bytes) }
}

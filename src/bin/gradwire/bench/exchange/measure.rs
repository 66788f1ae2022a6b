//! One way: what comes of the figures of its ranks.

use std::time::Instant;

use super::super::fleet::order::{Turn, Work};
use super::super::fleet::way::Way;
use super::super::fleet::{Done, Plan, limit};
use super::{Args, Row};
use crate::args::name_of;
use crate::failure::Failure;
use crate::report::tally::median;
use crate::say::note;

/// A row or, inside, why there is none although nothing failed.
pub(super) fn run(args: &Args, way: Way) -> Result<Result<Row, String>, Failure> {
    let watch = Instant::now();
    let link = args.link.as_ref();
    let plan = Plan {
        nodes: args.nodes,
        repeats: args.repeats,
        work: Work::Exchange { bytes: args.bytes },
        way,
        link,
        link_rate: args.link_rate.told(way, link),
        windows: args.link_rate.windows(way, link),
        limit: limit(link, args.bytes as f64 * f64::from(args.nodes - 1)),
    };
    let row = plan.run()?.map(|done| row(args, way, done));
    note!("{}: measured in {:.1} s", name_of(way), watch.elapsed().as_secs_f64());
    Ok(row)
}

fn row(args: &Args, congestion: Way, done: Done) -> Row {
    let peers = f64::from(args.nodes - 1);
    let bytes = args.bytes as f64 * peers * f64::from(args.nodes);
    let mut times = done.each(|turn| turn.iter().map(|rank| rank.seconds).fold(0.0, f64::max));
    let mut again = done.each(|turn: &[Turn]| {
        let (sent, lost) = turn
            .iter()
            .fold((0, 0), |(sent, lost), rank| (sent + rank.udp_bytes_sent, lost + rank.udp_bytes_lost));
        lost as f64 / sent.max(1) as f64
    });
    let cpu: Option<Vec<f64>> =
        done.turns.iter().map(|turn| turn.iter().map(|rank| rank.cpu_seconds).sum()).collect();
    let rate = args.link.and_then(|link| link.rate);
    let slowest = |pace: fn(&Turn) -> Option<f64>| {
        let of_turn = |turn: &Vec<Turn>| {
            turn.iter().map(pace).try_fold(f64::INFINITY, |least, pace| Some(least.min(pace?)))
        };
        let mut all: Vec<f64> = done.turns.iter().map(of_turn).collect::<Option<_>>()?;
        Some(8.0 * median(&mut all) / rate? as f64)
    };
    let seconds = median(&mut times);
    Row {
        congestion,
        link_rate: args.link_rate.told(congestion, args.link.as_ref()),
        nodes: args.nodes,
        bytes_per_pair: args.bytes as u64,
        link: done.link,
        repeats: args.repeats,
        seconds,
        // Sorted by the median.
        min: times.first().copied().unwrap_or(0.0),
        max: times.last().copied().unwrap_or(0.0),
        gb_per_s: bytes / seconds / 1e9,
        cpu_s_per_gb: cpu.map(|mut cpu| median(&mut cpu) / bytes * 1e9),
        goodput_over_link: rate.map(|rate| 8.0 * args.bytes as f64 * peers / seconds / rate as f64),
        steady_over_link: slowest(|rank| rank.received.steady),
        second_half_over_link: slowest(|rank| rank.received.second_half),
        retransmitted_share: median(&mut again),
        peak_rss_bytes: done.peak_rss_bytes,
        message_bytes: args.bytes as u64,
        received_bytes: args.bytes as u64 * u64::from(args.nodes - 1),
    }
}

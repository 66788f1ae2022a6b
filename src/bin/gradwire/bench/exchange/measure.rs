//! One way: its processes from start to end, and what comes of their figures.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use gradwire::transport::quic::Authority;
use gradwire::transport::sim::LinkConfig;

use super::link::{Emulator, Link, Measured};
use super::order::{Meet, Order, Said, Turn};
use super::ranks::Ranks;
use super::way::Way;
use super::{Args, Row};
use crate::args::name_of;
use crate::failure::Failure;
use crate::report::tally::median;
use crate::say::note;

/// How long ranks may take to join, which they know better themselves.
const JOIN: Duration = Duration::from_secs(120);

/// A row or, inside, why there is none although nothing failed.
pub(super) fn run(args: &Args, way: Way) -> Result<Result<Row, String>, Failure> {
    let watch = Instant::now();
    let emulator = args.link.as_ref().map(|link| Emulator::start(args.nodes, link)).transpose()?;
    let ranks = start(args, way, emulator.as_ref())?;
    let row = exchange(args, way, emulator.as_ref(), ranks)?;
    note!("{}: measured in {:.1} s", name_of(way), watch.elapsed().as_secs_f64());
    Ok(row)
}

/// All ranks, joined.
fn start(args: &Args, way: Way, emulator: Option<&Emulator>) -> Result<Ranks, Failure> {
    // Lives in this process alone: keys go to the ranks through their stdin, and never into a file.
    let authority = Authority::new("bench").map_err(Failure::work)?;
    let until = Instant::now() + JOIN;
    let late = || Failure::Work(format!("not all of {} ranks joined within {JOIN:?}", args.nodes));
    let mut ranks = Ranks::new();
    let mut rendezvous = String::new();
    for rank in 0..args.nodes {
        let meet = match emulator {
            Some(emulator) => Meet::Peers(peers(rank, args.nodes, |peer| emulator.address(rank, peer))),
            None => Meet::Address(rendezvous.clone()),
        };
        let identity = authority.issue_pem(rank, args.nodes).map_err(Failure::work)?;
        let (nodes, bytes, turns) = (args.nodes, args.bytes, args.repeats + 1);
        let link_rate = args.link_rate.told(way, args.link.as_ref());
        ranks.start(&identity, &Order { rank, nodes, bytes, turns, way, link_rate, meet })?;
        // Each listens before the next one is started: rank 0's address is the meeting point.
        let Some(Said::Listening { address }) = ranks.next(rank, until)? else { return Err(late()) };
        if rank == 0 {
            rendezvous = address.to_string();
        }
        if let Some(emulator) = emulator {
            emulator.place(rank, address);
        }
    }
    ranks.each(until, |said| matches!(said, Said::Joined).then_some(()))?.ok_or_else(late)?;
    Ok(ranks)
}

/// The peers file of `rank`, with the addresses at which the emulator stands for its peers.
fn peers(rank: u32, nodes: u32, address: impl Fn(u32) -> Option<SocketAddr>) -> String {
    let entry = |peer| {
        // Its own is not looked at: it is told where to bind.
        let address = address(peer).unwrap_or(SocketAddr::from(([127, 0, 0, 1], 1)));
        format!("[[peer]]\nrank = {peer}\naddress = \"{address}\"\n")
    };
    debug_assert!(rank < nodes, "rank {rank} of {nodes}");
    (0..nodes).map(entry).collect()
}

fn exchange(
    args: &Args,
    way: Way,
    emulator: Option<&Emulator>,
    mut ranks: Ranks,
) -> Result<Result<Row, String>, Failure> {
    let limit = limit(args);
    let mut turns: Vec<Vec<Turn>> = Vec::new();
    for number in 0..=args.repeats {
        if number <= 1
            && let Some(emulator) = emulator
        {
            // What passed until the warm-up was over is not measured.
            emulator.take_measured();
        }
        ranks.turn();
        let until = Instant::now() + limit;
        let turn = |said: &Said| if let Said::Turn(turn) = said { Some(*turn) } else { None };
        let Some(all) = ranks.each(until, turn)? else {
            let carried = emulator.map(|emulator| emulator.take_measured().rate_bit_s);
            return Ok(Err(unfinished(limit, carried)));
        };
        turns.push(all);
    }
    let measured = emulator.map(Emulator::take_measured).unwrap_or_default();
    let left =
        |said: &Said| if let Said::Left { peak_rss_bytes } = said { Some(*peak_rss_bytes) } else { None };
    let peaks = ranks.each(Instant::now() + JOIN, left)?;
    let peaks = peaks.ok_or_else(|| Failure::Work(format!("not all ranks left within {JOIN:?}")))?;
    let link = args.link.as_ref().map(|link| (link, measured));
    Ok(Ok(row(args, way, link, &turns[1..], peaks.into_iter().max().flatten())))
}

/// Ten times as long as the link needs, and a few seconds for a start without knowledge of it.
pub(super) fn limit(args: &Args) -> Duration {
    let rate = args.link.and_then(|link| link.rate).unwrap_or(0);
    if rate == 0 {
        return Duration::from_secs(600);
    }
    let bits = 8.0 * args.bytes as f64 * f64::from(args.nodes - 1);
    Duration::from_secs(10) + Duration::from_secs_f64(10.0 * bits / rate as f64)
}

fn unfinished(limit: Duration, carried: Option<f64>) -> String {
    let carried = carried.map_or_else(String::new, |rate| {
        format!("; no node received more than {:.1} Mbit/s in any 0.1 s", rate / 1e6)
    });
    format!("one exchange took longer than {:.0} s{carried}", limit.as_secs_f64())
}

fn row(
    args: &Args,
    congestion: Way,
    link: Option<(&LinkConfig, Measured)>,
    turns: &[Vec<Turn>],
    peak_rss_bytes: Option<u64>,
) -> Row {
    let peers = f64::from(args.nodes - 1);
    let bytes = args.bytes as f64 * peers * f64::from(args.nodes);
    let of = |figure: &dyn Fn(&[Turn]) -> f64| turns.iter().map(|turn| figure(turn)).collect::<Vec<f64>>();
    let mut times = of(&|turn| turn.iter().map(|rank| rank.seconds).fold(0.0, f64::max));
    let mut again = of(&|turn| {
        let (sent, lost) = turn
            .iter()
            .fold((0, 0), |(sent, lost), rank| (sent + rank.udp_bytes_sent, lost + rank.udp_bytes_lost));
        lost as f64 / sent.max(1) as f64
    });
    let cpu: Option<Vec<f64>> =
        turns.iter().map(|turn| turn.iter().map(|rank| rank.cpu_seconds).sum()).collect();
    let seconds = median(&mut times);
    let rate = link.and_then(|(link, _)| link.rate);
    Row {
        congestion,
        link_rate: args.link_rate.told(congestion, args.link.as_ref()),
        nodes: args.nodes,
        bytes_per_pair: args.bytes as u64,
        link: link.map(|(link, measured)| Link::new(link, measured)),
        repeats: args.repeats,
        seconds,
        // Sorted by the median.
        min: times.first().copied().unwrap_or(0.0),
        max: times.last().copied().unwrap_or(0.0),
        gb_per_s: bytes / seconds / 1e9,
        cpu_s_per_gb: cpu.map(|mut cpu| median(&mut cpu) / bytes * 1e9),
        goodput_over_link: rate.map(|rate| 8.0 * args.bytes as f64 * peers / seconds / rate as f64),
        retransmitted_share: median(&mut again),
        peak_rss_bytes,
        message_bytes: args.bytes as u64,
        received_bytes: args.bytes as u64 * u64::from(args.nodes - 1),
    }
}

//! Congestion control on a virtual clock: goodput, loss and fairness by the emulator's own time.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/path.rs"]
mod path;

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use gradwire_transport::quic::congestion::{Link, Paced};
use gradwire_transport::sim::LinkConfig;
use path::{Carried, Path};
use quinn_proto::congestion::{ControllerFactory, CubicConfig};

type Factory = Arc<dyn ControllerFactory + Send + Sync>;

fn declared(bits: u64) -> Factory {
    Arc::new(Paced::new(Link::Declared(NonZeroU64::new(bits).unwrap())))
}

fn estimated() -> Factory {
    Arc::new(Paced::new(Link::Estimated))
}

fn cubic() -> Factory {
    Arc::new(CubicConfig::default())
}

fn link(text: &str) -> LinkConfig {
    text.parse().unwrap()
}

/// Over `pairs` of two nodes; the worst of them.
fn exchange(text: &str, make: impl Fn() -> Factory, bytes: usize, pairs: &[(u32, u32)]) -> (Carried, f64) {
    let link = link(text);
    let mut path = Path::new(link, vec![make(), make()], 1);
    let carried = path.carry(pairs, bytes, Duration::from_secs(600));
    let worst = carried.into_iter().min_by(|one, other| one.steady.total_cmp(&other.steady)).unwrap();
    let share = worst.steady / link.rate.unwrap() as f64;
    println!("{text}, {pairs:?}: {:.1} % of the link, {:.2} % sent again", 100.0 * share, 100.0 * worst.lost);
    (worst, share)
}

const BOTH: [(u32, u32); 2] = [(0, 1), (1, 0)];
const ONE: [(u32, u32); 1] = [(0, 1)];

/// Of the middle half of the bytes, so that neither the start nor the last retransmission counts.
fn carries(
    text: &str,
    make: impl Fn() -> Factory,
    bytes: usize,
    pairs: &[(u32, u32)],
    least: f64,
    lost: f64,
) {
    let (carried, share) = exchange(text, make, bytes, pairs);
    assert!(share >= least, "{text}: {share} of the link");
    assert!(carried.lost <= lost, "{text}: {} sent again", carried.lost);
}

const MB: usize = 1 << 20;

#[test]
fn a_declared_rate_fills_a_long_link_that_loses_packets() {
    carries("1Gbit,80ms,0.1%", || declared(1_000_000_000), 64 * MB, &BOTH, 0.88, 0.03);
    carries("1Gbit,150ms,1%", || declared(1_000_000_000), 96 * MB, &ONE, 0.85, 0.03);
    carries("100Mbit,80ms,1%", || declared(100_000_000), 24 * MB, &BOTH, 0.85, 0.03);
    carries("100Mbit,150ms,1%", || declared(100_000_000), 24 * MB, &BOTH, 0.85, 0.03);
    carries("100Mbit,80ms,1%,burst=8", || declared(100_000_000), 24 * MB, &BOTH, 0.85, 0.04);
    carries("100Mbit,80ms,0.1%,jitter=10ms", || declared(100_000_000), 24 * MB, &BOTH, 0.85, 0.03);
    carries("100Mbit,80ms,0.1%,reorder=1%", || declared(100_000_000), 24 * MB, &BOTH, 0.85, 0.04);
}

#[test]
fn an_estimated_rate_fills_it_too() {
    carries("200Mbit,80ms,0.1%", estimated, 64 * MB, &ONE, 0.85, 0.03);
    carries("100Mbit,80ms,1%", estimated, 48 * MB, &ONE, 0.85, 0.03);
    carries("100Mbit,40ms,0%", estimated, 48 * MB, &ONE, 0.85, 0.03);
    // Two that face each other see the sum of their queues in their round trips, and one may keep back for the other's.
    carries("200Mbit,80ms,0.1%", estimated, 64 * MB, &BOTH, 0.7, 0.03);
}

#[test]
fn a_rate_that_is_declared_too_high_is_found_out() {
    carries("200Mbit,80ms,0.1%", || declared(240_000_000), 48 * MB, &BOTH, 0.80, 0.06);
    carries("100Mbit,40ms,0%", || declared(120_000_000), 24 * MB, &BOTH, 0.80, 0.06);
    carries("50Mbit,40ms,0%", || declared(500_000_000), 48 * MB, &BOTH, 0.80, 0.2);
}

#[test]
fn four_nodes_share_their_lines_whatever_is_lost() {
    for (loss, limit) in [("0%", 2.4), ("0.1%", 2.45), ("1%", 2.6)] {
        let text = format!("200Mbit,60ms,{loss}");
        let factories = (0..4).map(|_| declared(200_000_000)).collect();
        let mut path = Path::new(link(&text), factories, 1);
        let pairs: Vec<(u32, u32)> = all_pairs(4).collect();
        let carried = path.carry(&pairs, 16 * MB, Duration::from_secs(60));
        let slowest = carried.iter().map(|carried| carried.seconds).fold(0.0, f64::max);
        println!("{text}: {slowest:.3} s, ideal 2.013 s and 0.03 s");
        assert!(slowest <= limit, "{text}: {slowest} s");
    }
}

#[test]
fn beside_a_flow_of_cubic_each_gets_about_half() {
    for (name, make) in [("estimated", estimated as fn() -> Factory), ("declared", || declared(100_000_000))]
    {
        // Nodes 0 and 1 send to node 2, whose line they share.
        let mut path = Path::new(link("100Mbit,40ms,0%"), vec![make(), cubic(), cubic()], 1);
        path.start(&[(0, 2), (1, 2)], 1 << 30);
        path.pass(Duration::from_secs(5));
        let before = [path.received(0, 2), path.received(1, 2)];
        path.pass(Duration::from_secs(25));
        let [ours, theirs] = [path.received(0, 2) - before[0], path.received(1, 2) - before[1]];
        let share = ours as f64 / (ours + theirs) as f64;
        let used = 8.0 * (ours + theirs) as f64 / 25.0 / 100e6;
        println!("{name}: {:.1} % beside Cubic, together {:.1} % of the link", 100.0 * share, 100.0 * used);
        assert!((0.35..=0.65).contains(&share), "{name}: {share}");
        assert!(used > 0.85, "{name}: {used} of the link");
    }
}

#[test]
fn a_rate_that_halves_and_comes_back_is_followed() {
    for (name, make) in [("estimated", estimated as fn() -> Factory), ("declared", || declared(100_000_000))]
    {
        let mut path = Path::new(link("100Mbit,40ms,0.1%"), vec![make(), make()], 1);
        path.start(&[(0, 1)], 1 << 30);
        let during = |rate: u64, path: &mut Path| {
            for node in [0, 1] {
                path.network.set_rate(node, Some(rate));
            }
            path.pass(Duration::from_secs(4));
            let before = path.received(0, 1);
            path.pass(Duration::from_secs(4));
            8.0 * (path.received(0, 1) - before) as f64 / 4.0 / rate as f64
        };
        for rate in [100_000_000, 50_000_000, 100_000_000] {
            let share = during(rate, &mut path);
            println!("{name}: {:.1} % of {rate} bit/s", 100.0 * share);
            assert!(share > 0.8, "{name}: {share} of {rate} bit/s");
        }
    }
}

#[test]
fn a_link_that_is_cut_for_two_seconds_is_filled_again() {
    let mut path = Path::new(link("100Mbit,40ms,0.1%"), vec![estimated(), estimated()], 1);
    path.start(&[(0, 1)], 1 << 30);
    path.pass(Duration::from_secs(4));
    for cut in [true, false] {
        path.network.cut(0, 1, cut);
        path.network.cut(1, 0, cut);
        path.pass(Duration::from_secs(2));
    }
    let before = path.received(0, 1);
    path.pass(Duration::from_secs(2));
    let share = 8.0 * (path.received(0, 1) - before) as f64 / 2.0 / 100e6;
    assert!(share > 0.85, "{share} of the link, 2 to 4 s after it was mended");
}

#[test]
fn a_queue_does_not_grow_for_as_long_as_a_flow_runs() {
    let mut path = Path::new(link("50Mbit,40ms,0%"), vec![estimated(), estimated()], 1);
    path.start(&[(0, 1)], 1 << 30);
    path.pass(Duration::from_secs(60));
    let (round_trip, before) = (path.round_trip(0, 1), path.received(0, 1));
    path.pass(Duration::from_secs(5));
    let share = 8.0 * (path.received(0, 1) - before) as f64 / 5.0 / 50e6;
    println!("after a minute: {round_trip:?}, {:.1} % of the link", 100.0 * share);
    assert!(round_trip < Duration::from_millis(60), "40 ms have become {round_trip:?}");
    assert!(share > 0.85, "{share} of the link");
}

#[test]
fn a_transfer_of_16_mib_starts_without_a_stall() {
    let text = "1Gbit,80ms,0%";
    for (name, make, limit) in
        [("declared", (|| declared(1_000_000_000)) as fn() -> Factory, 0.30), ("estimated", estimated, 0.90)]
    {
        let mut path = Path::new(link(text), vec![make(), make()], 1);
        let carried = path.carry(&[(0, 1)], 16 * MB, Duration::from_secs(60));
        println!("{name}: {:.3} s", carried[0].seconds);
        assert!(carried[0].seconds < limit, "{name}: {} s", carried[0].seconds);
    }
}

/// A last packet of a transfer that is lost is a large share of a small round, and says nothing about the line.
#[test]
fn short_transfers_with_pauses_between_them_keep_the_rate() {
    for (name, make) in [("estimated", estimated as fn() -> Factory), ("declared", || declared(200_000_000))]
    {
        // Jitter, as a busy machine has it.
        let mut path = Path::new(link("200Mbit,60ms,1%,jitter=6ms"), (0..4).map(|_| make()).collect(), 1);
        let pairs: Vec<(u32, u32)> = all_pairs(4).collect();
        let slowest = |path: &mut Path, bytes| {
            let carried = path.carry(&pairs, bytes, Duration::from_secs(60));
            carried.iter().map(|carried| carried.seconds).fold(0.0, f64::max)
        };
        // As messages of a barrier are.
        let mut times: Vec<f64> = (0..40)
            .map(|_| {
                slowest(&mut path, 100);
                slowest(&mut path, 2 * MB)
            })
            .collect();
        times.sort_by(f64::total_cmp);
        let (median, most) = (times[times.len() / 2], times[times.len() - 1]);
        println!("{name}: median {median:.3} s, at most {most:.3} s");
        assert!(most < 5.0 * median, "{name}: {median} s, and {most} s once");
    }
}

fn all_pairs(nodes: u32) -> impl Iterator<Item = (u32, u32)> {
    (0..nodes).flat_map(move |from| (0..nodes).filter(move |to| *to != from).map(move |to| (from, to)))
}

/// What the harness can tell apart: the same link under quinn's Cubic.
#[test]
fn cubic_does_not_fill_such_a_link() {
    let (_, share) = exchange("100Mbit,80ms,1%", cubic, 2 * MB, &BOTH);
    assert!(share < 0.2, "{share} of the link");
}

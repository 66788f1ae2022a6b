//! The emulator does what its configuration says: measured before anything is measured with it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::{Duration, Instant};

use gradwire_transport::sim::{Arrival, LinkConfig, Network, WireConfig};

const PACKET: u64 = 1500;

fn link(text: &str) -> LinkConfig {
    text.parse().unwrap()
}

/// Sends `packets` packets from node 0 to node 1, one per `every`, and returns all arrivals.
fn carry(network: &mut Network<u32>, packets: u32, every: Duration) -> Vec<Arrival<u32>> {
    let start = Instant::now();
    let mut arrivals = Vec::new();
    for number in 0..packets {
        let now = start + every * number;
        arrivals.extend(std::iter::from_fn(|| network.poll(now)));
        network.send(now, 0, 1, PACKET, number);
    }
    while let Some(next) = network.next() {
        arrivals.extend(std::iter::from_fn(|| network.poll(next)));
    }
    arrivals
}

fn near(found: f64, expected: f64, tolerance: f64) -> bool {
    (found - expected).abs() <= tolerance * expected
}

#[test]
fn a_line_carries_its_rate_and_drops_what_does_not_fit_its_queue() {
    let mut network = Network::new(2, link("100Mbit,40ms,0%"), 1);
    // Twice the rate: 1500 bytes take 120 us at 100 Mbit/s.
    let arrivals = carry(&mut network, 100_000, Duration::from_micros(60));
    let (first, last) = (arrivals[0].at, arrivals.last().unwrap().at);
    let bits = (arrivals.len() as u64 - 1) * PACKET * 8;
    let rate = bits as f64 / last.duration_since(first).as_secs_f64();
    assert!(near(rate, 100e6, 0.001), "{rate} bit/s");
    let traffic = network.traffic();
    assert_eq!(traffic.delivered + traffic.overflowed, 100_000, "{traffic:?}");
    // A full queue of one bandwidth-delay product (40 ms) after the 20 ms of the wire.
    assert!(near(traffic.longest.as_secs_f64(), 0.060, 0.01), "{:?}", traffic.longest);
    assert!(arrivals.is_sorted_by_key(|arrival| arrival.packet), "first in, first out");
}

#[test]
fn a_packet_that_does_not_wait_takes_the_delay() {
    let mut network = Network::new(2, link("1Gbit,80ms,0%"), 1);
    let arrivals = carry(&mut network, 1000, Duration::from_millis(1));
    assert_eq!(arrivals.len(), 1000);
    // 12 us on each of the two lines.
    let expected = Duration::from_micros(40_024);
    assert_eq!((network.traffic().mean_delay(), network.traffic().longest), (expected, expected));
}

#[test]
fn losses_have_their_share_and_their_length() {
    for (text, loss, burst) in [
        ("1Gbit,80ms,0.1%", 0.001, 1.001),
        ("1Gbit,80ms,1%", 0.01, 1.01),
        ("1Gbit,80ms,1%,burst=8", 0.01, 8.0),
        ("1Gbit,80ms,30%,burst=3", 0.3, 3.0),
    ] {
        let mut network = Network::new(2, link(text), 7);
        let packets = 500_000;
        let arrivals = carry(&mut network, packets, Duration::from_micros(13));
        assert!(near(network.traffic().loss(), loss, 0.12), "{text}: {}", network.traffic().loss());
        // Gaps between the numbers that arrived are the runs of lost ones.
        let gaps = arrivals.windows(2).map(|pair| pair[1].packet - pair[0].packet - 1).filter(|gap| *gap > 0);
        let (runs, lost) = gaps.fold((0u32, 0), |(runs, lost), gap| (runs + 1, lost + gap));
        let mean = f64::from(lost) / f64::from(runs);
        assert!(near(mean, burst, 0.12), "{text}: {mean} lost in a row");
    }
}

#[test]
fn jitter_spreads_and_keeps_the_order_and_only_held_back_packets_are_overtaken() {
    let mut network = Network::new(2, link("1Gbit,80ms,0%,jitter=10ms"), 3);
    let arrivals = carry(&mut network, 20_000, Duration::from_millis(15));
    assert!(arrivals.is_sorted_by_key(|arrival| arrival.packet), "jitter keeps the order");
    let mean = network.traffic().mean_delay().as_secs_f64();
    assert!(near(mean, 0.045, 0.01), "{mean} s");

    let mut network = Network::new(2, link("1Gbit,80ms,0%,reorder=2%,duplicate=3%"), 3);
    let arrivals = carry(&mut network, 100_000, Duration::from_micros(100));
    let traffic = network.traffic();
    assert!(near(traffic.held_back as f64, 2000.0, 0.1), "{traffic:?}");
    assert!(near(traffic.duplicated as f64, 3000.0, 0.1), "{traffic:?}");
    assert_eq!(traffic.delivered, 100_000, "{traffic:?}");
    let overtaken = arrivals.windows(2).filter(|pair| pair[1].packet < pair[0].packet).count();
    assert!(overtaken > 1500, "{overtaken} packets came after later ones");
}

#[test]
fn nodes_share_their_line_and_ways_are_set_and_cut_one_by_one() {
    let mut network = Network::new(3, link("8Mbit,0ms,0%,queue=1MB"), 1);
    let start = Instant::now();
    network.cut(1, 0, true);
    network.set_wire(0, 2, WireConfig::new(Duration::from_millis(5)));
    for (from, to, number) in [(0, 1, 0), (0, 2, 1), (1, 0, 2), (0, 9, 3), (9, 0, 4), (1, 2, 5)] {
        network.send(start, from, to, 1000, number);
    }
    let later = start + Duration::from_secs(1);
    let arrivals: Vec<_> = std::iter::from_fn(|| network.poll(later)).collect();
    let seen: Vec<_> = arrivals
        .iter()
        .map(|arrival| (arrival.packet, arrival.at.duration_since(start).as_millis()))
        .collect();
    // 1 ms on the sender's line, 1 ms on the receiver's; the second packet of node 0 waits for the first.
    assert_eq!(seen, [(0, 2), (5, 2), (1, 8)]);
    assert_eq!(network.traffic().cut, 3, "{:?}", network.traffic());
    network.cut(1, 0, false);
    network.send(later, 1, 0, 1000, 6);
    assert_eq!(network.poll(later + Duration::from_secs(1)).map(|arrival| arrival.packet), Some(6));
    network.set_rate(1, Some(16_000_000));
    network.send(later + Duration::from_secs(2), 1, 0, 1000, 7);
    let at = network.poll(later + Duration::from_secs(3)).unwrap().at;
    assert_eq!(at, later + Duration::from_micros(2_001_500), "twice as fast out, as before in");
}

#[test]
fn a_seed_gives_the_same_arrivals_again() {
    let run = |seed| {
        let text = "100Mbit,40ms,2%,burst=3,jitter=3ms,reorder=1%,duplicate=1%";
        let arrivals = carry(&mut Network::new(2, link(text), seed), 10_000, Duration::from_micros(100));
        let start = arrivals[0].at;
        arrivals.iter().map(|arrival| (arrival.packet, arrival.at - start)).collect::<Vec<_>>()
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6), "another seed, other faults");
}

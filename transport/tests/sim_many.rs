//! One all-to-all and an all-gather of many ranks on one thread. `GRADWIRE_SIM_RANKS=4096` for that many, in release.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Instant;

use bytes::Bytes;
use gradwire_transport::collective::{self, Exchange};
use gradwire_transport::sim::Network;
use gradwire_transport::{Frame, Limits, Operation, Rank, Tag, World};

/// Bytes of one block: the payload of a rank is one block per rank, its own included.
const BLOCK: usize = 4;

fn operation(step: u64) -> Operation {
    Operation { step, tag: Tag(0) }
}

/// What `from` sends to `to`: no two pairs of up to 65,536 ranks alike.
fn block(from: Rank, to: Rank) -> [u8; BLOCK] {
    ((from.0 << 16) | to.0).to_le_bytes()
}

/// Drives all ranks to the end, each sending one frame in turn; payload bytes sent, by rank, and all frames.
fn drive(exchanges: &mut [Exchange]) -> (Vec<u64>, u64) {
    let mut network: Network<Frame> = Network::new(
        u32::try_from(exchanges.len()).unwrap(),
        "1Gbit,80ms,0%,queue=1000MB".parse().unwrap(),
        1,
    );
    let (mut now, mut bytes, mut frames) = (Instant::now(), vec![0; exchanges.len()], 0);
    loop {
        let mut sent = false;
        for (from, exchange) in (0..).zip(exchanges.iter_mut()) {
            if let Some((to, frame)) = exchange.poll_transmit() {
                bytes[from as usize] += frame.payload.len() as u64;
                (sent, frames) = (true, frames + 1);
                network.send(now, from, to.0, frame.wire_bytes(), frame);
            }
        }
        while let Some(next) = network.next() {
            now = now.max(next);
            while let Some(arrival) = network.poll(now) {
                exchanges[arrival.to as usize].handle_frame(now, Rank(arrival.from), arrival.packet).unwrap();
            }
        }
        if !sent {
            assert_eq!(network.traffic().delivered, frames, "every frame arrives");
            return (bytes, frames);
        }
    }
}

#[test]
fn many_ranks_exchange_and_gather_every_block() {
    let size: u32 = std::env::var("GRADWIRE_SIM_RANKS").map_or(256, |ranks| ranks.parse().unwrap());
    let (start, count) = (Instant::now(), u64::from(size));
    let worlds: Vec<World> = (0..size).map(|rank| World::new(rank, size, 0).unwrap()).collect();
    let (limits, expected) = (
        Limits { stall: std::time::Duration::from_secs(1 << 20), ..Limits::default() },
        vec![BLOCK as u64; size as usize],
    );
    let mut exchanges: Vec<Exchange> = worlds
        .iter()
        .map(|world| {
            // One buffer per rank, of which every message is a slice.
            let payload: Bytes =
                world.ranks().flat_map(|to| block(world.rank(), to)).collect::<Vec<u8>>().into();
            let outgoing =
                world.ranks().map(|to| payload.slice(to.index() * BLOCK..(to.index() + 1) * BLOCK)).collect();
            collective::all_to_all(start, *world, operation(1), outgoing, &expected, &limits).unwrap()
        })
        .collect();
    let (bytes, frames) = drive(&mut exchanges);
    let payload = count * BLOCK as u64;
    assert!(
        bytes.iter().all(|sent| sent * count == payload * (count - 1)),
        "(N-1)/N of {payload} bytes: {bytes:?}"
    );
    assert_eq!(frames, count * (count - 1), "one frame per pair");
    // Checks what came, and gives the own block as the result that is gathered.
    let result = |mut exchange: Exchange, world: &World| {
        let blocks = exchange.poll().unwrap();
        for (from, got) in world.ranks().zip(&blocks) {
            assert_eq!(got[..], block(from, world.rank()), "from {from} to {}", world.rank());
        }
        Bytes::copy_from_slice(&block(world.rank(), world.rank()))
    };
    let results: Vec<Bytes> =
        exchanges.into_iter().zip(&worlds).map(|(exchange, world)| result(exchange, world)).collect();
    let mut exchanges: Vec<Exchange> = worlds
        .iter()
        .map(|world| {
            let own = results[world.rank().index()].clone();
            collective::all_gather(start, *world, operation(2), own, &expected, &limits).unwrap()
        })
        .collect();
    let (_, more) = drive(&mut exchanges);
    for exchange in &mut exchanges {
        assert_eq!(exchange.poll().unwrap(), results, "the gathered result");
    }
    println!("{size} ranks: {} frames, {:.1?}, peak memory {}", frames + more, start.elapsed(), peak());
}

/// Peak resident memory of this process, where the system says it.
fn peak() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.map_or("unknown".to_owned(), |text| text.trim().to_owned())
}

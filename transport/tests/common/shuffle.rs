//! A world without mesh, thread or clock: exchanges, and a seeded scheduler that decides what happens next.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "shared by several test files, none of which uses all of it")]

use std::time::Instant;

use bytes::Bytes;
use gradwire_transport::collective::Exchange;
use gradwire_transport::sim::Random;
use gradwire_transport::{Frame, Rank};

/// A number below `bound`.
pub(crate) fn below(random: &mut Random, bound: usize) -> usize {
    usize::try_from(random.bits() % bound as u64).unwrap()
}

/// Drives `exchanges`, one for every rank, to their end: a random rank sends, or a random frame under way
/// arrives, until nothing is left. Returns what each rank got.
pub(crate) fn shuffled(seed: u64, exchanges: &mut [Exchange]) -> Vec<Vec<Bytes>> {
    let now = Instant::now();
    let mut random = Random::new(seed);
    let mut sending: Vec<usize> = (0..exchanges.len()).collect();
    let mut under_way: Vec<(usize, Rank, Frame)> = Vec::new();
    let mut results: Vec<Option<Vec<Bytes>>> = exchanges.iter_mut().map(Exchange::poll).collect();
    while !sending.is_empty() || !under_way.is_empty() {
        let choice = below(&mut random, sending.len() + under_way.len());
        if choice < sending.len() {
            let from = sending[choice];
            match exchanges[from].poll_transmit() {
                Some((to, frame)) => under_way.push((from, to, frame)),
                None => drop(sending.swap_remove(choice)),
            }
            results[from] = results[from].take().or_else(|| exchanges[from].poll());
        } else {
            let (from, to, frame) = under_way.swap_remove(choice - sending.len());
            let from = Rank(u32::try_from(from).unwrap());
            exchanges[to.index()].handle_frame(now, from, frame).unwrap();
            let result = exchanges[to.index()].poll();
            assert!(result.is_none() || results[to.index()].is_none(), "seed {seed}: rank {to} ended twice");
            results[to.index()] = results[to.index()].take().or(result);
        }
    }
    results.into_iter().map(Option::unwrap).collect()
}

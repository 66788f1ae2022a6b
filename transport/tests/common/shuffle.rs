//! A world without mesh, thread or clock: exchanges, and a seeded scheduler that decides what happens next.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "shared by several test files, none of which uses all of it")]

use std::time::Instant;

use bytes::Bytes;
use gradwire_transport::collective::Exchange;
use gradwire_transport::{Frame, Rank};

/// SplitMix64: small, seedable, the same everywhere.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % bound as u64).unwrap()
    }
}

/// Drives `exchanges`, one for every rank, to their end: a random rank sends, or a random frame under way
/// arrives, until nothing is left. Returns what each rank got.
pub(crate) fn shuffled(seed: u64, exchanges: &mut [Exchange]) -> Vec<Vec<Bytes>> {
    let now = Instant::now();
    let mut random = Random(seed);
    let mut sending: Vec<usize> = (0..exchanges.len()).collect();
    let mut under_way: Vec<(usize, Rank, Frame)> = Vec::new();
    let mut results: Vec<Option<Vec<Bytes>>> = exchanges.iter_mut().map(Exchange::poll).collect();
    while !sending.is_empty() || !under_way.is_empty() {
        let choice = random.below(sending.len() + under_way.len());
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

//! Golden vectors of a codec with state words, in the format of `tests/golden/README.md`, against [`Codec`].

#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "test code")]

use gradwire::codec::{Codec, Stats, Step};
use serde::Deserialize;

#[derive(Debug, Deserialize)]
pub(crate) struct File<Config> {
    pub(crate) codec: String,
    pub(crate) cases: Vec<Case<Config>>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Case<Config> {
    pub(crate) n: usize,
    pub(crate) config: Config,
    pub(crate) weights: Vec<u32>,
    pub(crate) ranks: Vec<Rank>,
    pub(crate) averages: Vec<Average>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Rank {
    pub(crate) steps: Vec<Encoded>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Encoded {
    pub(crate) step: u64,
    pub(crate) gradient_bits: Vec<u32>,
    pub(crate) words: Vec<u32>,
    pub(crate) state: Vec<u32>,
    pub(crate) nonfinite: u64,
    pub(crate) saturated: u64,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Average {
    pub(crate) step: u64,
    pub(crate) mean_bits: Vec<u32>,
    /// What the owner keeps, for a codec that keeps something.
    #[serde(default)]
    pub(crate) state: Vec<u32>,
}

/// What packs and averages: the crate, or a wrong twin of it.
pub(crate) trait Implementation {
    fn encode(
        &self,
        codec: &Codec,
        step: Step,
        gradient: &[f32],
        state: &mut [u32],
        packet: &mut [u32],
    ) -> Stats;
    fn average(
        &self,
        codec: &Codec,
        packets: &[&[u32]],
        weights: &[u32],
        state: &mut [u32],
        mean: &mut [f32],
    );
}

/// The crate.
pub(crate) struct Crate;

impl Implementation for Crate {
    fn encode(
        &self,
        codec: &Codec,
        step: Step,
        gradient: &[f32],
        state: &mut [u32],
        packet: &mut [u32],
    ) -> Stats {
        codec.encode(step, gradient.into(), state, packet)
    }

    fn average(
        &self,
        codec: &Codec,
        packets: &[&[u32]],
        weights: &[u32],
        state: &mut [u32],
        mean: &mut [f32],
    ) {
        codec.average(packets, weights, state, mean).unwrap();
    }
}

/// The first difference between `case` and what `implementation` gives, or nothing.
pub(crate) fn difference<Config>(
    case: &Case<Config>,
    codec: &Codec,
    implementation: &impl Implementation,
) -> Option<String> {
    let (n, ranks) = (case.n, case.ranks.len());
    let mut states = vec![vec![0; codec.state_words(n)]; ranks];
    let mut kept = vec![0; codec.mean_state_words(ranks, n)];
    for (number, average) in case.averages.iter().enumerate() {
        for (rank, (state, steps)) in states.iter_mut().zip(&case.ranks).enumerate() {
            let want = &steps.steps[number];
            assert_eq!(want.step, average.step, "the file's steps go together");
            let gradient: Vec<f32> = want.gradient_bits.iter().map(|bits| f32::from_bits(*bits)).collect();
            // Painted, so that a word that nobody writes shows.
            let mut packet = vec![0x5A5A_5A5A; codec.packet_words(n)];
            let step = Step::new(want.step).unwrap();
            let stats = implementation.encode(codec, step, &gradient, state, &mut packet);
            let place = || format!("{codec:?}, {n} elements, rank {rank}, step {}", want.step);
            if let Some(difference) = first("packet", &packet, &want.words) {
                return Some(format!("{}: {difference}", place()));
            }
            if let Some(difference) = first("state", state, &want.state) {
                return Some(format!("{}: {difference}", place()));
            }
            let expected = Stats { nonfinite: want.nonfinite, saturated: want.saturated };
            if stats != expected {
                return Some(format!("{}: {stats:?}, not {expected:?}", place()));
            }
        }
        let packets: Vec<&[u32]> = case.ranks.iter().map(|rank| &rank.steps[number].words[..]).collect();
        let mut mean = vec![f32::NAN; n];
        implementation.average(codec, &packets, &case.weights, &mut kept, &mut mean);
        let bits: Vec<u32> = mean.iter().map(|value| value.to_bits()).collect();
        let difference =
            first("mean", &bits, &average.mean_bits).or_else(|| first("kept state", &kept, &average.state));
        if let Some(difference) = difference {
            return Some(format!("{codec:?}, {n} elements, mean of step {}: {difference}", average.step));
        }
    }
    None
}

/// The first word that differs, with both values.
pub(crate) fn first(what: &str, got: &[u32], want: &[u32]) -> Option<String> {
    assert_eq!(got.len(), want.len(), "words of {what}");
    let at = (0..want.len()).find(|&at| got[at] != want[at])?;
    Some(format!("{what} word {at} is {:#010x}, not {:#010x}", got[at], want[at]))
}

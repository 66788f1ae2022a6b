//! How large the shard of each rank is.
//!
//! **Why not by speed alone.** With share s of n parameters, in a world of N, at g bytes per parameter of a packet and 4 of a
//! parameter, a step costs a rank
//!
//! | stage | sends | receives |
//! |---|---|---|
//! | gradients to the owners | (1 - s) n g | (N - 1) s n g |
//! | mean and optimizer | s n times its time per element | |
//! | parameters to everyone | (N - 1) s n 4 | (1 - s) n 4 |
//!
//! A line that is as fast both ways is busy for the same time in both columns at s = 1 / N, and for longer at any other
//! share, however slow it is: what a slow rank does not own it must receive. A rank that sends slower than it receives
//! (most lines to homes), or whose processor is slow, gains from a smaller share, and one that owns less leaves more to
//! the others. A bisection finds the shares at which the slowest rank is fastest.
//!
//! **Agreed by all.** Every rank computes the shares from the same numbers, said by all ranks in one all-gather, in
//! operations that IEEE 754 rounds alike everywhere. They are settled before the first step, or once after
//! [`Shares::Learned::steps`]; then what the owners keep moves to the new owners.
//!
//! **The same bits** come of a run whatever the shares are, where everything of an element depends on that element: not
//! with 1-bit LAMB, which adds up norms by shard, an automatic `intsgd`, which adds up squares, and `topk` with `clip=1`, whose
//! norms are those of shards. There a run differs from one with other shares, but never between ranks.

mod arrivals;
mod plan;

use std::num::NonZeroU32;

use bytes::Bytes;
use gradwire_transport::{Communicator, ExchangeError, Operation, World};

use super::{Config, SPEEDS, Scheme};
use crate::shard::ShardLayout;

pub(super) use arrivals::{Arrivals, Timed};
use plan::plan;

/// How large the shard of each rank is. All ranks choose the same kind.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Shares {
    /// All alike, to within one group of the codec. The default.
    #[default]
    Equal,
    /// In proportion to these numbers, one per rank, the same on every rank. A rank with 0 owns nothing; not all are 0.
    Weights(Vec<u32>),
    /// By what each rank says of itself; this is this rank's. One all-gather of 24 bytes before the first step.
    Declared(Speed),
    /// All alike at first, then once by what the first steps showed.
    Learned {
        /// Steps that are watched, at least 1; one that is not taken does not count as the last. [`Self::LEARNED`] is a
        /// good choice.
        steps: NonZeroU32,
    },
}

impl Shares {
    /// Learned in 10 steps.
    pub const LEARNED: Self = Self::Learned { steps: NonZeroU32::new(10).unwrap() };
}

/// What of a rank decides how long it takes. 0 is "no limit".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Speed {
    /// Bytes per second that it can send to all others together.
    pub up: u64,
    /// Bytes per second that it can receive of all others together.
    pub down: u64,
    /// Picoseconds that mean and optimizer take for one element that it owns, of all ranks' packets.
    pub owner: u64,
}

/// Bytes of a parameter on the wire.
const PARAMETER: f64 = 4.0;

/// Bytes of [`Speed`] on the wire: three little-endian u64, in the order of its fields.
const BYTES: usize = 24;

impl Speed {
    fn encode(&self) -> [u8; BYTES] {
        let mut out = [0; BYTES];
        for (bytes, number) in out.as_chunks_mut().0.iter_mut().zip([self.up, self.down, self.owner]) {
            *bytes = number.to_le_bytes();
        }
        out
    }

    /// Of a message whose length is known; any numbers are some speed.
    fn decode(bytes: &[u8]) -> Self {
        let mut numbers = bytes.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
        let mut next = || numbers.next().unwrap_or_default();
        Self { up: next(), down: next(), owner: next() }
    }
}

/// The weights that the speeds of all ranks give packets of `scheme`, this rank's being `own`; `None` where equal shares do.
pub(super) fn agree(
    communicator: &mut Communicator,
    operation: Operation,
    scheme: &Scheme,
    own: Speed,
) -> Result<Option<Vec<u32>>, ExchangeError> {
    let expected = vec![BYTES as u64; communicator.world().size() as usize];
    let all = communicator.all_gather(operation, Bytes::copy_from_slice(&own.encode()), &expected)?;
    let speeds: Vec<Speed> = all.iter().map(|bytes| Speed::decode(bytes)).collect();
    Ok(plan(&speeds, scheme.bytes_per_element(), PARAMETER))
}

/// The weights before the first step; empty for equal shares.
pub(super) fn begin(communicator: &mut Communicator, config: &Config) -> Result<Vec<u32>, ExchangeError> {
    Ok(match &config.shares {
        Shares::Equal | Shares::Learned { .. } => Vec::new(),
        Shares::Weights(weights) => weights.clone(),
        Shares::Declared(own) => {
            let operation = Operation { step: 0, tag: SPEEDS };
            agree(communicator, operation, &config.scheme, *own)?.unwrap_or_default()
        }
    })
}

/// How `elements` are shared by `weights`; equally if there are none.
pub(super) fn layout(elements: usize, world: World, weights: &[u32], group: usize) -> ShardLayout {
    if weights.is_empty() {
        ShardLayout::new(elements, world.size() as usize, group)
    } else {
        ShardLayout::weighted(elements, weights, group)
    }
}

/// How long mean and optimizer take at best.
#[derive(Default)]
pub(super) struct OwnerTime(Option<f64>);

impl OwnerTime {
    /// Takes note of a step in which they took `seconds` for `elements`.
    pub(super) fn note(&mut self, seconds: f64, elements: usize) {
        if elements > 0 {
            let each = seconds / elements as f64;
            self.0 = Some(self.0.map_or(each, |least| least.min(each)));
        }
    }

    /// For one element; 0 for an owner of nothing.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "it saturates, and a fraction of a picosecond is none"
    )]
    pub(super) fn picoseconds(&self) -> u64 {
        self.0.map_or(0, |seconds| (seconds * 1e12) as u64)
    }
}

/// Shares that do not fit the world or the exchange.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SharesError {
    /// Another number of weights than of ranks.
    #[error("{weights} weights for shards of {ranks} ranks")]
    Count {
        /// Weights given.
        weights: usize,
        /// Ranks of the world.
        ranks: usize,
    },
    /// Nobody would own anything.
    #[error("all {weights} weights for shards are 0, at least one must be above")]
    Zero {
        /// Weights given.
        weights: usize,
    },
    /// Between sites a parameter travels once per site, which is another price than that of a rank.
    #[error("shares by speed in {sites} sites: only equal shares or weights can be had there")]
    Sites {
        /// Sites of the configuration.
        sites: usize,
    },
}

impl Shares {
    /// Whether `ranks` ranks in `sites` sites (0: none named) can have such shares.
    pub(super) fn check(&self, ranks: usize, sites: usize) -> Result<(), SharesError> {
        match self {
            Self::Equal => Ok(()),
            Self::Weights(weights) => check_weights(weights, ranks),
            Self::Declared(_) | Self::Learned { .. } if sites > 1 => Err(SharesError::Sites { sites }),
            Self::Declared(_) | Self::Learned { .. } => Ok(()),
        }
    }
}

/// Whether `ranks` ranks can have shards by `weights`.
pub(super) fn check_weights(weights: &[u32], ranks: usize) -> Result<(), SharesError> {
    if weights.len() != ranks {
        return Err(SharesError::Count { weights: weights.len(), ranks });
    }
    if weights.iter().all(|weight| *weight == 0) {
        return Err(SharesError::Zero { weights: weights.len() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_speed_comes_back_as_it_was_sent() {
        let speed = Speed { up: 1, down: u64::MAX, owner: 7 };
        assert_eq!(Speed::decode(&speed.encode()), speed);
    }

    #[test]
    fn shares_that_nobody_can_have_are_refused_with_both_numbers() {
        let say = |shares: Shares, sites| shares.check(3, sites).map_err(|error| error.to_string());
        assert_eq!(say(Shares::Weights(vec![0, 0, 7]), 2), Ok(()));
        assert_eq!(say(Shares::Weights(vec![1, 2]), 0), Err("2 weights for shards of 3 ranks".into()));
        let zero = "all 3 weights for shards are 0, at least one must be above";
        assert_eq!(say(Shares::Weights(vec![0; 3]), 0), Err(zero.into()));
        assert_eq!(say(Shares::LEARNED, 1), Ok(()));
        assert!(say(Shares::LEARNED, 2).is_err() && say(Shares::Declared(Speed::default()), 2).is_err());
    }
}

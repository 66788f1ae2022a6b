//! Shards that change hands between two steps: what their owners keep moves with them.
//!
//! **Wire layout**: one all-to-all, from each old owner to each new one, of the elements that the one had and the other
//! gets, in order: every vector of the optimizer's state as little-endian f32, then of each sender to a mean the words of its
//! state. Parameters do not travel: every rank has all of them.

use std::ops::Range;

use bytes::Bytes;
use gradwire_transport::{Operation, Rank, Tag};

use super::exchange::Exchange;
use super::hierarchy::{Sites, fingerprint};
use super::momentum::Momentum;
use super::optimizer::Optimizer;
use super::packet::read_words;
use super::restore::hexadecimal;
use super::shares::{self, Shares, Speed};
use super::{
    Checkpoint, Config, FIRST_RESHAPE, MOVED, RATES, SPEEDS, Scheme, SyncError, Synchronizer, give_up,
};
use crate::codec::{StateError, Step};
use crate::optim::{Saved, Tensors};
use crate::shard::{ShardLayout, common};

/// What depends on who owns what.
pub(super) struct Parts {
    pub(super) layout: ShardLayout,
    pub(super) exchange: Exchange,
    /// What is kept of gradients where momenta travel.
    pub(super) momentum: Option<Momentum>,
    pub(super) optimizer: Optimizer,
    /// Parameters of the own shard, in f32.
    pub(super) master: Vec<f32>,
    /// Weighted mean gradient of the own shard.
    pub(super) mean: Vec<f32>,
}

impl Parts {
    /// As in the beginning, of the rank `own`, whose shard has the parameters `master`.
    pub(super) fn new(
        config: &Config,
        tensors: &Tensors,
        layout: ShardLayout,
        own: usize,
        master: Vec<f32>,
    ) -> Result<Self, SyncError> {
        Ok(Self {
            exchange: Exchange::new(config, &layout, own)?,
            momentum: Momentum::new(config, &layout, own)?,
            optimizer: Optimizer::new(config, tensors, layout.range(own), &master)?,
            mean: vec![0.0; master.len()],
            master,
            layout,
        })
    }
}

impl Synchronizer {
    /// Once the steps are over in which shares are learned: moves what they move.
    pub(super) fn learn_shares(&mut self, step: Step, parameters: &[f32]) -> Result<(), SyncError> {
        let Shares::Learned { steps } = self.config.shares else { return Ok(()) };
        if self.learned || step.get() < u64::from(steps.get()) {
            return Ok(());
        }
        self.learned = true;
        let speed = self.speed(step)?;
        let operation = Operation { step: step.get(), tag: SPEEDS };
        match shares::agree(&mut self.communicator, operation, &self.config.scheme, speed)? {
            Some(weights) => {
                self.move_shards(Operation { step: step.get(), tag: MOVED }, &weights, parameters)
            }
            None => Ok(()),
        }
    }

    /// Makes the shards of all ranks proportional to `weights` (see [`Shares::Weights`]) before the next step. All ranks call
    /// it, with the same weights, between the same two steps; `parameters` are those that the last step gave back, or the
    /// first ones. The steps that follow give the bits that they would have given (see [`shares`]).
    ///
    /// **Price**: what the optimizer and the codec keep for every element that gets another owner travels once.
    ///
    /// # Errors
    ///
    /// Weights that the world can't have, or that are not another rank's; parameters of another number; a peer whose state
    /// no step leaves; a failed exchange or device. All of them end the exchange on all ranks.
    pub fn reshape(&mut self, weights: &[u32], parameters: &[f32]) -> Result<(), SyncError> {
        let result = self.reshape_inner(weights, parameters);
        if let Err(error) = &result {
            give_up(&mut self.communicator, error);
        }
        result
    }

    fn reshape_inner(&mut self, weights: &[u32], parameters: &[f32]) -> Result<(), SyncError> {
        let (given, expected) = (parameters.len(), self.parts.layout.elements());
        if given != expected {
            return Err(SyncError::Length { what: "parameters", given, expected });
        }
        shares::check_weights(weights, self.parts.layout.world_size())?;
        // Behind all that a step has done, and calls before this one.
        let step = self.next.get() - 1;
        let tag = |offset| Tag(FIRST_RESHAPE.0.saturating_add(2 * self.reshapes).saturating_add(offset));
        let (compare, moved) = (Operation { step, tag: tag(0) }, Operation { step, tag: tag(1) });
        self.reshapes = self.reshapes.saturating_add(1);
        self.compare(compare, &[("fingerprint of weights for shards", fingerprint(weights), hexadecimal)])?;
        self.move_shards(moved, weights, parameters)
    }

    /// What the first steps showed of this rank. Everyone tells everyone how fast its messages came: at the best
    /// receiver no faster than their sender can send, and slower only if nobody can receive faster.
    fn speed(&mut self, step: Step) -> Result<Speed, SyncError> {
        let own = self.world().rank().index();
        let rates = self.arrivals.fastest();
        let outgoing = rates.iter().map(|rate| Bytes::copy_from_slice(&rate.to_le_bytes())).collect();
        let operation = Operation { step: step.get(), tag: RATES };
        let told = self.communicator.all_to_all(operation, outgoing, &vec![8; rates.len()])?;
        let sent = told.iter().enumerate().filter(|(rank, _)| *rank != own).map(|(_, bytes)| number(bytes));
        // All peers have an equal part of a line.
        let line = |best: Option<u64>| best.unwrap_or(0).saturating_mul(rates.len() as u64 - 1);
        Ok(Speed {
            up: line(sent.max()),
            down: line(rates.iter().copied().max()),
            owner: self.owner_time.picoseconds(),
        })
    }

    /// Shards by `weights` from now on, on every rank. `parameters` are all of them.
    fn move_shards(
        &mut self,
        operation: Operation,
        weights: &[u32],
        parameters: &[f32],
    ) -> Result<(), SyncError> {
        tracing::info!(step = operation.step, ?weights, "shards change hands");
        let own = self.world().rank().index();
        let new = ShardLayout::weighted(parameters.len(), weights, self.config.scheme.group());
        let before = self.checkpoint()?;
        let senders = self.sites.as_ref().map_or(self.parts.layout.world_size(), Sites::count);
        let moves = Moves { old: &self.parts.layout, new: &new, scheme: &self.config.scheme, senders };
        let rows = moves.rows(own, &before);
        let vectors = before.optimizer.vectors.len();
        let outgoing = new.ranges().map(|range| moves.cut(own, &range, &rows, vectors)).collect();
        let expected: Vec<u64> =
            self.parts.layout.ranges().map(|range| moves.bytes(&range, &new.range(own), &before)).collect();
        let received = self.communicator.all_to_all(operation, outgoing, &expected)?;
        let (vectors, mean_state) = self.join(operation.step, &moves, &before, &received)?;

        let master = parameters[new.range(own)].to_vec();
        let after = Checkpoint {
            parameters: master.clone(),
            optimizer: Saved { vectors, ..before.optimizer },
            mean_state,
            ..before
        };
        self.parts = Parts::new(&self.config, &self.tensors, new, own, master)?;
        self.weights = weights.to_vec();
        self.take_over(&after)
    }

    /// The state of the new shard: vectors of the optimizer, and for means.
    fn join(
        &self,
        step: u64,
        moves: &Moves<'_>,
        before: &Checkpoint,
        received: &[Bytes],
    ) -> Result<(Vec<Vec<f32>>, Vec<u32>), SyncError> {
        let new = moves.new.range(self.world().rank().index());
        let vectors = before.optimizer.vectors.len();
        let mut rows: Vec<Vec<u32>> = vec![Vec::new(); vectors + moves.states()];
        let mut words = Vec::new();
        for ((rank, old), bytes) in (0..).map(Rank).zip(moves.old.ranges()).zip(received) {
            // Its length is as expected: the transport has compared.
            read_words(bytes, &mut words);
            let range = common(&old, &new);
            let refuse = |source| SyncError::Packet { rank, step, source };
            let mut rest = &words[..];
            let mut part = before.optimizer.clone();
            for (row, joined) in rows.iter_mut().enumerate() {
                let length = if row < vectors { range.len() } else { moves.mean_words(range.len()) };
                let (words, behind) = rest.split_at(length);
                rest = behind;
                joined.extend_from_slice(words);
                if let Some(vector) = part.vectors.get_mut(row) {
                    *vector = words.iter().map(|word| f32::from_bits(*word)).collect();
                } else {
                    moves.check_state(range.len(), words).map_err(|source| refuse(source.into()))?;
                }
            }
            let mut fresh = self.config.optimizer.shard_state(&self.tensors, range);
            fresh.check(&self.config.optimizer, &part).map_err(|source| refuse(source.into()))?;
        }
        let mean_state = rows.split_off(vectors).concat();
        let floats = |row: Vec<u32>| row.into_iter().map(f32::from_bits).collect();
        Ok((rows.into_iter().map(floats).collect(), mean_state))
    }
}

/// From one layout to another.
struct Moves<'a> {
    old: &'a ShardLayout,
    new: &'a ShardLayout,
    scheme: &'a Scheme,
    /// Packets to a mean: of ranks, or of sites.
    senders: usize,
}

impl Moves<'_> {
    /// Words of one rank's state for means of `elements` from the start of a shard.
    fn mean_words(&self, elements: usize) -> usize {
        match self.scheme {
            Scheme::Codec(codec) => codec.mean_state_words(1, elements),
            Scheme::PowerSgd(_) => 0,
        }
    }

    /// How many states an owner keeps for means.
    fn states(&self) -> usize {
        if self.mean_words(1) == 0 { 0 } else { self.senders }
    }

    /// Of one rank.
    fn check_state(&self, elements: usize, words: &[u32]) -> Result<(), StateError> {
        match self.scheme {
            Scheme::Codec(codec) => codec.check_mean_state(1, elements, words),
            Scheme::PowerSgd(_) => Ok(()),
        }
    }

    /// What the rank `own` keeps of its shard, one row per vector and per rank's state.
    fn rows(&self, own: usize, checkpoint: &Checkpoint) -> Vec<Vec<u32>> {
        let vectors = &checkpoint.optimizer.vectors;
        let vectors = vectors.iter().map(|vector| vector.iter().map(|value| value.to_bits()).collect());
        let words = self.mean_words(self.old.range(own).len());
        let states = (0..self.states()).map(|rank| checkpoint.mean_state[rank * words..][..words].to_vec());
        vectors.chain(states).collect()
    }

    /// Of `rows` of the rank `own`, what the new owner of `new` gets.
    fn cut(&self, own: usize, new: &Range<usize>, rows: &[Vec<u32>], vectors: usize) -> Bytes {
        let old = self.old.range(own);
        let moved = common(&old, new);
        let part = moved.start - old.start..moved.end - old.start;
        let state = self.mean_words(part.start)..self.mean_words(part.end);
        let words = rows.iter().enumerate().flat_map(|(row, words)| {
            let range = if row < vectors { part.clone() } else { state.clone() };
            &words[range]
        });
        words.flat_map(|word| word.to_le_bytes()).collect()
    }

    fn bytes(&self, old: &Range<usize>, new: &Range<usize>, checkpoint: &Checkpoint) -> u64 {
        let moved = common(old, new).len();
        let words = checkpoint.optimizer.vectors.len() * moved + self.states() * self.mean_words(moved);
        4 * words as u64
    }
}

/// Of a message whose length is known.
fn number(bytes: &Bytes) -> u64 {
    bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

//! The four rounds of one step.

use std::mem;
use std::ops::Range;

use bytes::Bytes;
use gradwire_transport::{Operation, Rank, Tag};

use super::plan::{Matrix, Plan};
use super::state::warm;
use super::{Config, ELEMENT_LIMIT, FACTOR_LIMIT, GROUP, Shape, ShapeError, State, StateError, factor};
use crate::codec::{CHUNK, Gradient, Stats, cast};
use crate::shard::ShardLayout;
use crate::sync::exchange::Turn;
use crate::sync::headers::headers;
use crate::sync::packet::{Form, Header, PacketError, body, write_words};
use crate::sync::scheme::SchemeId;
use crate::sync::{FIRST_FACTOR, GRADIENT, SECOND_FACTOR, SECOND_SHARES, SyncError, bytes_to_peers};

/// One rank's side.
pub(in crate::sync) struct PowerSgd {
    config: Config,
    plan: Plan,
    own: usize,
    /// Which slice of all P each rank averages.
    first: ShardLayout,
    /// Which slice of all Q.
    second: ShardLayout,
    /// The uncompressed elements of each rank's shard.
    plain: Vec<Vec<Range<usize>>>,
    shard: Range<usize>,
    state: State,
    /// M of the step in progress, then its error.
    compensated: Vec<f32>,
    /// P: the own product, then the mean, then orthonormal.
    p: Vec<f32>,
    /// Q: the own product, then the mean.
    q: Vec<f32>,
    /// What the first round brought.
    received: Vec<Bytes>,
}

impl PowerSgd {
    /// Of the rank `own` of a world whose ranks own parameters by `layout`.
    pub(in crate::sync) fn new(
        config: Config,
        shapes: &[Shape],
        layout: &ShardLayout,
        own: usize,
    ) -> Result<Self, ShapeError> {
        let plan = Plan::new(&config, shapes, layout.elements())?;
        let slices = |elements| ShardLayout::new(elements, layout.world_size(), GROUP);
        Ok(Self {
            config,
            own,
            first: slices(plan.first),
            second: slices(plan.second),
            plain: layout.ranges().map(|shard| plan.plain_in(&shard)).collect(),
            shard: layout.range(own),
            state: State::new(&plan, config.seed),
            compensated: vec![0.0; plan.elements],
            p: vec![0.0; plan.first],
            q: vec![0.0; plan.second],
            received: Vec::new(),
            plan,
        })
    }

    pub(in crate::sync) fn state(&self) -> &State {
        &self.state
    }

    pub(in crate::sync) fn check_state(&self, state: &State) -> Result<(), StateError> {
        state.check(&self.plan)
    }

    /// Goes on from a state that passed [`Self::check_state`].
    pub(in crate::sync) fn set_state(&mut self, state: State) {
        self.state = state;
    }

    /// Round 1. Changes nothing that the next step would see: this one may be refused.
    pub(in crate::sync) fn offer(
        &mut self,
        turn: &mut Turn<'_>,
        gradient: Gradient<'_>,
        samples: u32,
    ) -> Result<Vec<Header>, SyncError> {
        let mut stats = self.compensate(gradient);
        for matrix in &self.plan.matrices {
            let (m, q) = (&self.compensated[matrix.elements()], &self.state.factors[matrix.second()]);
            factor::first(m, matrix.shape.columns, q, &mut self.p[matrix.first()]);
        }
        let messages: Vec<Vec<u32>> = self
            .first
            .ranges()
            .zip(&self.plain)
            .map(|(slice, plain)| {
                let mut words: Vec<u32> = self.p[slice].iter().map(|value| value.to_bits()).collect();
                stats.nonfinite +=
                    plain.iter().map(|range| add_plain(gradient, range, &mut words)).sum::<u64>();
                words
            })
            .collect();
        // Only now: every header has the count of the whole gradient.
        let outgoing: Vec<Bytes> =
            messages.iter().map(|words| form(words.len()).header(samples, stats).packet(words)).collect();
        turn.watch.lap(&mut turn.report.seconds.encode);

        let own = form(messages[self.own].len());
        self.received = self.all_to_all(turn, GRADIENT, outgoing)?;
        headers(turn.step, self.received.iter().enumerate().map(|(rank, packet)| (rank, packet, own)))
    }

    /// M = G + E of every matrix; counts elements that are not finite, which count as 0, and clamped ones.
    fn compensate(&mut self, gradient: Gradient<'_>) -> Stats {
        let mut stats = Stats::default();
        for matrix in &self.plan.matrices {
            let compensated = &mut self.compensated[matrix.elements()];
            let errors = &self.state.errors[matrix.elements()];
            gradient.slice(matrix.source()).for_each_chunk(CHUNK, |start, values| {
                // Of one chunk, so that 32-bit lanes do.
                let (mut nonfinite, mut saturated) = (0_u32, 0_u32);
                let kept = compensated[start..].iter_mut().zip(&errors[start..]);
                for ((out, error), value) in kept.zip(values) {
                    let finite = value.is_finite();
                    let sum = if finite { value + error } else { *error };
                    let clamped = sum.clamp(-ELEMENT_LIMIT, ELEMENT_LIMIT);
                    nonfinite += u32::from(!finite);
                    saturated += u32::from(clamped != sum);
                    *out = clamped;
                }
                stats += Stats { nonfinite: nonfinite.into(), saturated: saturated.into() };
            });
        }
        stats
    }

    /// The rest of the step; `mean` is of the own shard.
    pub(in crate::sync) fn mean(
        &mut self,
        turn: &mut Turn<'_>,
        weights: &[u32],
        mean: &mut [f32],
    ) -> Result<(), SyncError> {
        let slice = self.first.range(self.own);
        let bodies = self.received.iter().map(|packet| body(packet));
        let averaged = average(turn, bodies, weights, slice.len())?;
        let (factor, mut plain) = averaged.split_at(slice.len());
        for range in &self.plain[self.own] {
            let (values, rest) = plain.split_at(range.len());
            mean[range.start - self.shard.start..][..range.len()].copy_from_slice(values);
            plain = rest;
        }
        turn.watch.lap(&mut turn.report.seconds.average);
        self.received.clear();
        if self.plan.matrices.is_empty() {
            return Ok(());
        }

        gather(turn, FIRST_FACTOR, factor, &self.first, &mut self.p)?;
        for matrix in &self.plan.matrices {
            let p = &mut self.p[matrix.first()];
            factor::orthonormalise(p, matrix.shape.rows);
            let m = &self.compensated[matrix.elements()];
            factor::second(m, matrix.shape.columns, p, &mut self.q[matrix.second()]);
        }
        turn.watch.lap(&mut turn.report.seconds.encode);

        let outgoing = self.second.ranges().map(|slice| as_bytes(&self.q[slice])).collect();
        let received = self.all_to_all(turn, SECOND_SHARES, outgoing)?;
        let slice = self.second.range(self.own);
        let averaged = average(turn, received.iter().map(|bytes| &bytes[..]), weights, slice.len())?;
        turn.watch.lap(&mut turn.report.seconds.average);
        gather(turn, SECOND_FACTOR, &averaged, &self.second, &mut self.q)?;

        self.decode(mean);
        if weights[self.own] > 0 {
            mem::swap(&mut self.state.errors, &mut self.compensated);
        }
        mem::swap(&mut self.state.factors, &mut self.q);
        warm(&self.plan, self.config.seed, &mut self.state.factors);
        turn.watch.lap(&mut turn.report.seconds.average);
        Ok(())
    }

    /// Subtracts P Q^T from M, and copies what of it lies in the own shard into `mean`.
    fn decode(&mut self, mean: &mut [f32]) {
        let mut row = Vec::new();
        for matrix in &self.plan.matrices {
            let Matrix { shape, .. } = *matrix;
            row.resize(shape.columns, 0.0);
            let (p, q) = (&self.p[matrix.first()], &self.q[matrix.second()]);
            let rows = self.compensated[matrix.elements()].chunks_exact_mut(shape.columns);
            for (i, compensated) in rows.enumerate() {
                factor::product_row(p, shape.rows, i, q, &mut row);
                for (left, carried) in compensated.iter_mut().zip(&row) {
                    *left -= carried;
                }
                let at = shape.offset + i * shape.columns;
                let (start, end) = (at.max(self.shard.start), (at + shape.columns).min(self.shard.end));
                if start < end {
                    mean[start - self.shard.start..end - self.shard.start]
                        .copy_from_slice(&row[start - at..end - at]);
                }
            }
        }
    }

    /// One message per owner, all of the same length where they come from.
    fn all_to_all(
        &self,
        turn: &mut Turn<'_>,
        tag: Tag,
        outgoing: Vec<Bytes>,
    ) -> Result<Vec<Bytes>, SyncError> {
        let expected = vec![outgoing[self.own].len() as u64; outgoing.len()];
        turn.report.gradient_packet_bytes += bytes_to_peers(&outgoing, self.own);
        let operation = Operation { step: turn.step.get(), tag };
        let received = turn.communicator.all_to_all(operation, outgoing, &expected)?;
        turn.watch.lap(&mut turn.report.seconds.exchange);
        Ok(received)
    }
}

/// A message of the first round.
fn form(words: usize) -> Form {
    Form { codec: SchemeId::PowerSgd, scale_log2: 0, elements: words as u64, words }
}

/// Appends the f32 bits of `range`; returns how many are not finite.
fn add_plain(gradient: Gradient<'_>, range: &Range<usize>, words: &mut Vec<u32>) -> u64 {
    let first = words.len();
    words.resize(first + range.len(), 0);
    cast::encode_f32(gradient.slice(range.clone()), &mut words[first..]).nonfinite
}

fn as_bytes(values: &[f32]) -> Bytes {
    let mut out = vec![0; 4 * values.len()];
    write_words(values.iter().map(|value| value.to_bits()), &mut out);
    out.into()
}

fn as_words(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect()
}

/// The mean of one message per rank, of which the first `factors` words belong to factors.
fn average<'a>(
    turn: &Turn<'_>,
    messages: impl Iterator<Item = &'a [u8]>,
    weights: &[u32],
    factors: usize,
) -> Result<Vec<f32>, SyncError> {
    let messages: Vec<Vec<u32>> = messages.map(as_words).collect();
    for (rank, words) in (0..).map(Rank).zip(&messages) {
        check(turn, rank, words, factors)?;
    }
    let packets: Vec<&[u32]> = messages.iter().map(Vec::as_slice).collect();
    let mut mean = vec![0.0; packets.first().map_or(0, |words| words.len())];
    cast::average_f32(&packets, weights, &mut mean)?;
    Ok(mean)
}

/// Every rank's slice of a mean into `all`; sends the own one.
fn gather(
    turn: &mut Turn<'_>,
    tag: Tag,
    own: &[f32],
    layout: &ShardLayout,
    all: &mut [f32],
) -> Result<(), SyncError> {
    let expected: Vec<u64> = layout.ranges().map(|slice| 4 * slice.len() as u64).collect();
    turn.report.gradient_packet_bytes += 4 * own.len() as u64 * (expected.len() as u64 - 1);
    let operation = Operation { step: turn.step.get(), tag };
    let slices = turn.communicator.all_gather(operation, as_bytes(own), &expected)?;
    turn.watch.lap(&mut turn.report.seconds.exchange);
    for ((rank, slice), bytes) in (0..).map(Rank).zip(layout.ranges()).zip(&slices) {
        let words = as_words(bytes);
        check(turn, rank, &words, words.len())?;
        for (value, word) in all[slice].iter_mut().zip(&words) {
            *value = f32::from_bits(*word);
        }
    }
    Ok(())
}

/// Whether `rank` sent what a rank with a finite gradient sends.
fn check(turn: &Turn<'_>, rank: Rank, words: &[u32], factors: usize) -> Result<(), SyncError> {
    for (index, word) in words.iter().enumerate() {
        let found = f32::from_bits(*word);
        let limit = if index < factors { FACTOR_LIMIT } else { f32::MAX };
        if found.is_nan() || found.abs() > limit {
            let source = PacketError::Magnitude { index, found, limit };
            return Err(SyncError::Packet { rank, step: turn.step.get(), source });
        }
    }
    Ok(())
}

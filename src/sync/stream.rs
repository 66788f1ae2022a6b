//! The packets of one step on their way: encoded piece by piece when there is room, averaged as soon as every rank's are
//! there.
//!
//! Each piece is the words of one [segment](Segments) of a shard. The owner averages a segment when it has all ranks' words
//! of it, in rank order whatever the order in which they came, so that arrival never changes a bit.
//!
//! **Memory.** A piece is encoded when the mesh has room for it, and its words are gone once the segment is averaged. What is
//! kept is what came from faster peers than the slowest: at most [`AHEAD`] pieces of each, then it is held up, and what
//! the mesh stores until its peer notices. Besides, the own packet, where peers take this rank's pieces sooner than they
//! send theirs.
//!
//! A peer that leaves out the piece that all wait for is not held up, since that piece is still to come: until its deadline
//! passes it can make the owner keep the rest of its packet, which is no longer than the owner expects.
//!
//! A mean of whole packets (a device's, and [`Codec::averages_in_parts`] says for which codecs) waits for all of them.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

use bytes::Bytes;
use gradwire_transport::{Pieces, Rank};

use super::SyncError;
use super::engine::Engine;
use super::headers::{Lie, check_finite};
use super::packet::{Form, HEAD_BYTES, Header, decode_tail, nonfinite, read_words, tail, write_words};
use super::segments::Segments;
use crate::codec::{AverageError, Codec, Gradient, Stats, Step};
use crate::shard::ShardLayout;

/// Pieces of a peer that wait for other peers' before it is held up. What a link of long delay needs under way is the
/// mesh's to store, not these.
const AHEAD: usize = 4;

/// What a step is made of.
pub(super) struct Task<'a> {
    pub(super) codec: &'a Codec,
    pub(super) step: Step,
    pub(super) gradient: Gradient<'a>,
    pub(super) samples: u32,
    pub(super) layout: &'a ShardLayout,
    pub(super) own: usize,
    pub(super) segments: Segments,
}

/// Words that are used again and again.
pub(super) type Spare = Vec<Vec<u32>>;

/// Makes and takes the pieces of one step.
pub(super) struct Stream<'a> {
    task: Task<'a>,
    engine: &'a mut Engine,
    spare: &'a mut Spare,
    /// Where means of segments go; `None` if the mean waits for whole packets.
    mean: Option<&'a mut [f32]>,
    /// Segments of each owner's shard that are encoded.
    encoded: Vec<usize>,
    /// Of all that is encoded.
    stats: Stats,
    /// Weights by rank, as their heads come.
    samples: Vec<Option<u32>>,
    /// Counts by rank, as their tails come.
    counts: Vec<Option<Stats>>,
    /// Of the lowest rank that sent one: a float that is not finite, and its word in the packet.
    nonfinite: Option<Lie>,
    /// Segments of the own shard from the one that is averaged next.
    waiting: VecDeque<Segment>,
    averaged: usize,
    /// By rank: its segments in `waiting`.
    ahead: Vec<usize>,
    /// By rank: whether it is held up.
    held: Vec<bool>,
    /// Still to be told.
    holds: VecDeque<(Rank, bool)>,
    /// Seconds in all of this.
    pub(super) encoding: f64,
    pub(super) averaging: f64,
}

/// One segment of the own shard, as long as words of it are missing.
struct Segment {
    /// By rank.
    words: Vec<Option<Vec<u32>>>,
    /// Peers whose words did not come.
    missing: usize,
}

impl<'a> Stream<'a> {
    /// Averages into `mean`, of the own shard, if `engine` does that in parts. `encoded` is what was counted by whoever
    /// has encoded all of the gradient already.
    pub(super) fn new(
        task: Task<'a>,
        engine: &'a mut Engine,
        spare: &'a mut Spare,
        mean: &'a mut [f32],
        encoded: Stats,
    ) -> Self {
        let ranks = task.layout.world_size();
        let mut samples = vec![None; ranks];
        samples[task.own] = Some(task.samples);
        let in_parts = engine.averages_in_parts(task.codec);
        if !in_parts {
            engine.expect(task.codec.packet_words(mean.len()));
        }
        Self {
            mean: in_parts.then_some(mean),
            engine,
            spare,
            encoded: vec![0; ranks],
            stats: encoded,
            samples,
            counts: vec![None; ranks],
            nonfinite: None,
            waiting: VecDeque::new(),
            averaged: 0,
            ahead: vec![0; ranks],
            held: vec![false; ranks],
            holds: VecDeque::new(),
            encoding: 0.0,
            averaging: 0.0,
            task,
        }
    }

    /// After the exchange: what every rank has to say, in rank order.
    pub(super) fn finish(&mut self) -> Result<Vec<Header>, SyncError> {
        self.average()?;
        self.encode_rest();
        self.counts[self.task.own] = Some(self.stats);
        let form = self.form(self.task.own);
        let said = self.samples.iter().zip(&self.counts);
        // Each is there: the exchange is over.
        let headers =
            said.map(|(samples, counts)| form.header(samples.unwrap_or(0), counts.unwrap_or_default()));
        let headers: Vec<Header> = headers.collect();
        check_finite(self.task.step, &headers, || self.nonfinite)?;
        Ok(headers)
    }

    /// Of the packet for the owner of a shard.
    fn form(&self, owner: usize) -> Form {
        Form::of(self.task.codec, self.task.layout.range(owner).len())
    }

    /// The words of the next segment for `owner`.
    fn encode(&mut self, owner: usize) -> Vec<u32> {
        let since = Instant::now();
        let Task { codec, step, gradient, layout, segments, .. } = &self.task;
        let shard = layout.range(owner);
        let part = segments.range(shard.len(), self.encoded[owner]);
        let mut words = self.spare.pop().unwrap_or_default();
        let part = shard.start + part.start..shard.start + part.end;
        self.stats += self.engine.encode_part(codec, *step, *gradient, part, &mut words);
        self.encoded[owner] += 1;
        self.encoding += since.elapsed().as_secs_f64();
        words
    }

    /// Encodes what is left: the own segments, and those of peers that are gone, so that the counts are the gradient's.
    fn encode_rest(&mut self) {
        for owner in 0..self.encoded.len() {
            let count = self.task.segments.count(self.task.layout.range(owner).len());
            for index in self.encoded[owner]..count {
                let words = self.encode(owner);
                if owner == self.task.own { self.keep(owner, index, words) } else { self.spare.push(words) }
            }
        }
    }

    /// Keeps the words that `rank` sent of a segment of the own shard.
    fn keep(&mut self, rank: usize, index: usize, words: Vec<u32>) {
        if self.mean.is_none() {
            let shard = self.task.layout.range(self.task.own).len();
            let before = self.task.segments.range(shard, index).start;
            self.engine.receive(rank, self.task.codec.packet_words(before), &words);
            self.spare.push(words);
            return;
        }
        let ranks = self.encoded.len();
        // Never before the one that is next: those have come from every rank, and none comes twice.
        let at = index.saturating_sub(self.averaged);
        while self.waiting.len() <= at {
            self.waiting.push_back(Segment { words: vec![None; ranks], missing: ranks - 1 });
        }
        let segment = &mut self.waiting[at];
        segment.words[rank] = Some(words);
        if rank != self.task.own {
            segment.missing -= 1;
            self.ahead[rank] += 1;
            self.hold(rank);
        }
    }

    /// Averages every segment whose turn it is and of which all words are there.
    fn average(&mut self) -> Result<(), SyncError> {
        let shard = self.task.layout.range(self.task.own).len();
        let count = self.task.segments.count(shard);
        if self.mean.is_none() {
            return Ok(());
        }
        let ranks = self.encoded.len();
        while self.averaged < count
            && (ranks == 1 || self.waiting.front().is_some_and(|next| next.missing == 0))
        {
            if self.encoded[self.task.own] == self.averaged {
                let words = self.encode(self.task.own);
                self.keep(self.task.own, self.averaged, words);
            }
            let Some(segment) = self.waiting.pop_front() else { break };
            self.average_one(self.task.segments.range(shard, self.averaged), &segment, shard)?;
            self.averaged += 1;
            self.spare.extend(segment.words.into_iter().flatten());
            let own = self.task.own;
            for rank in (0..ranks).filter(|rank| *rank != own) {
                self.ahead[rank] -= 1;
                self.hold(rank);
            }
        }
        Ok(())
    }

    fn average_one(&mut self, part: Range<usize>, segment: &Segment, shard: usize) -> Result<(), SyncError> {
        let since = Instant::now();
        // Heads come with the first segment.
        let weights: Vec<u32> = self.samples.iter().map(|samples| samples.unwrap_or(0)).collect();
        // With what is wrong, every rank finds fault at the end, when all have the same packets.
        if AverageError::check_weights(&weights).is_ok()
            && let Some(mean) = &mut self.mean
        {
            let packets: Vec<&[u32]> =
                segment.words.iter().map(|words| words.as_deref().unwrap_or_default()).collect();
            let mean = &mut mean[part.clone()];
            self.engine.average_part(self.task.codec, &packets, &weights, shard, part, mean)?;
        }
        self.averaging += since.elapsed().as_secs_f64();
        Ok(())
    }

    /// Holds `rank` up if it is too far ahead of others, or no longer if it is not.
    fn hold(&mut self, rank: usize) {
        let waits = self.waiting.front().is_some_and(|next| next.words[rank].is_some());
        let hold = waits && self.ahead[rank] >= AHEAD;
        if hold != self.held[rank] {
            self.held[rank] = hold;
            // A world has at most 4,096 ranks.
            self.holds.push_back((Rank(u32::try_from(rank).unwrap_or(u32::MAX)), hold));
        }
    }
}

impl Pieces for Stream<'_> {
    type Error = SyncError;

    fn make(&mut self, to: Rank, range: Range<u64>) -> Result<Bytes, SyncError> {
        let form = self.form(to.index());
        if range.end == form.bytes() as u64 {
            self.encode_rest();
            return Ok(Bytes::copy_from_slice(&tail(self.stats)));
        }
        let words = self.encode(to.index());
        let head = if range.start == 0 { HEAD_BYTES } else { 0 };
        let mut piece = vec![0; head + 4 * words.len()];
        let (front, body) = piece.split_at_mut(head);
        if head > 0 {
            front.copy_from_slice(&form.head(self.task.samples));
        }
        write_words(words.iter().copied(), body);
        self.spare.push(words);
        Ok(piece.into())
    }

    fn take(&mut self, from: Rank, offset: u64, bytes: Bytes) -> Result<(), SyncError> {
        let form = self.form(self.task.own);
        let at_fault = |source| SyncError::Packet { rank: from, step: self.task.step.get(), source };
        let mut body = &bytes[..];
        if offset + bytes.len() as u64 == form.bytes() as u64 {
            self.counts[from.index()] = body.first_chunk().map(decode_tail);
            return Ok(());
        }
        if offset == 0
            && let Some((head, rest)) = body.split_first_chunk()
        {
            self.samples[from.index()] = Some(form.decode_head(head).map_err(at_fault)?);
            body = rest;
        }
        let index = self.task.segments.index(offset);
        let segment = self.task.segments.range(self.task.layout.range(self.task.own).len(), index);
        if self.nonfinite.is_none_or(|(rank, ..)| from <= rank)
            && let Some((word, found)) = nonfinite(form.codec, segment.len() as u64, body)
        {
            self.nonfinite = Some((from, self.task.codec.packet_words(segment.start) + word, found));
        }
        let mut words = self.spare.pop().unwrap_or_default();
        read_words(body, &mut words);
        self.keep(from.index(), index, words);
        self.average()
    }

    fn poll_hold(&mut self) -> Option<(Rank, bool)> {
        self.holds.pop_front()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]
mod tests {
    use super::*;
    use crate::sync::Backend;

    /// Rank 0 of three with pieces of one unit, whose shard has `SEGMENTS` of them.
    const SEGMENTS: usize = 12;

    fn gradient(elements: usize) -> Vec<f32> {
        (0..elements).map(|i| (i % 97) as f32 - 48.0).collect()
    }

    /// What rank 0 gets when pieces of ranks 1 and 2 come in this order: its mean, and who was held when.
    fn run(order: &[(u32, usize)]) -> (Vec<f32>, Vec<(usize, Rank, bool)>) {
        let codec = Codec::F32;
        let unit = codec.unit().elements;
        let new = || ShardLayout::new(3 * SEGMENTS * unit, 3, unit);
        let layout = new();
        let gradient = gradient(layout.elements());
        let mut engine = Engine::new(&Backend::Cpu, &codec, &new(), 0).unwrap();
        let segments = Segments::new(&codec, 0);
        let task = Task {
            codec: &codec,
            step: Step::FIRST,
            gradient: Gradient::F32(&gradient),
            samples: 1,
            layout: &layout,
            own: 0,
            segments,
        };
        let elements = layout.range(0).len();
        let form = Form::of(&codec, elements);
        let message = |rank: u32| {
            let words: Vec<u32> = (0..elements).map(|i| (rank as f32 * i as f32).to_bits()).collect();
            form.header(rank, Stats::default()).packet(&words)
        };
        let (mut mean, mut spare, mut holds) = (vec![0.0; elements], Spare::new(), Vec::new());
        let mut stream = Stream::new(task, &mut engine, &mut spare, &mut mean, Stats::default());
        for (at, (rank, index)) in order.iter().enumerate() {
            let range = segments.cut().range(form.bytes() as u64, *index as u64);
            let piece = message(*rank).slice(range.start as usize..range.end as usize);
            stream.take(Rank(*rank), range.start, piece).unwrap();
            holds.extend(std::iter::from_fn(|| stream.poll_hold()).map(|(rank, hold)| (at, rank, hold)));
            assert!(stream.ahead.iter().all(|ahead| *ahead <= SEGMENTS), "{:?}", stream.ahead);
        }
        assert_eq!((stream.averaged, stream.waiting.len()), (SEGMENTS, 0), "all are averaged, none is kept");
        let headers = stream.finish().unwrap();
        assert_eq!(headers.iter().map(|header| header.samples).collect::<Vec<_>>(), [1, 1, 2]);
        assert!(spare.len() <= 2 * SEGMENTS + 1, "{} buffers", spare.len());
        (mean, holds)
    }

    /// Index `SEGMENTS` is the tail.
    fn all(rank: u32) -> impl DoubleEndedIterator<Item = (u32, usize)> {
        (0..=SEGMENTS).map(move |index| (rank, index))
    }

    #[test]
    fn whoever_is_ahead_of_another_is_held_up_until_that_one_has_caught_up() {
        let turns: Vec<_> = all(1).zip(all(2)).flat_map(|(one, two)| [one, two]).collect();
        let (mean, holds) = run(&turns);
        assert_eq!(holds, [], "ranks that keep step");

        let one_first: Vec<_> = all(1).chain(all(2)).collect();
        let (again, holds) = run(&one_first);
        assert_eq!(again, mean);
        // With its fourth piece, until of all those less than four wait; what came meanwhile was under way.
        let caught_up = one_first.iter().position(|piece| *piece == (2, SEGMENTS - AHEAD)).unwrap();
        assert_eq!(holds, [(AHEAD - 1, Rank(1), true), (caught_up, Rank(1), false)]);
    }

    #[test]
    fn whoever_is_waited_for_is_never_held_up() {
        // Rank 1's first piece is overtaken by all its others.
        let overtaken = all(1).skip(1).chain([(2, 0)]).chain(all(1).take(1)).chain(all(2).skip(1));
        let overtaken: Vec<_> = overtaken.collect();
        let (_, holds) = run(&overtaken);
        // Then its second segment waits for rank 2, and rank 1 is far ahead.
        let came = overtaken.iter().position(|piece| *piece == (1, 0)).unwrap();
        assert_eq!(holds.first(), Some(&(came, Rank(1), true)), "{holds:?}");
        let backwards: Vec<_> = all(1).rev().chain(all(2).rev()).collect();
        let (mean, _) = run(&backwards);
        assert_eq!(mean, run(&all(1).chain(all(2)).collect::<Vec<_>>()).0);
    }
}

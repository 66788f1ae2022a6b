//! Rounds 1 and 2: from one gradient per rank to the mean of the own shard.

use std::ops::Range;

use bytes::Bytes;
use gradwire_transport::Operation;

use super::Sites;
use super::within::Within;
use crate::codec::{AverageError, Codec, Gradient, Stats};
#[cfg(feature = "gpu")]
use crate::gpu::GpuError;
use crate::shard::{ShardLayout, common};
use crate::sync::engine::{Engine, Sizes};
use crate::sync::exchange::Turn;
use crate::sync::headers::headers;
use crate::sync::packet::{Form, HEAD_BYTES, Header, TAIL_BYTES, body};
use crate::sync::scale::Moment;
use crate::sync::scaling::Scaling;
use crate::sync::{Checkpoint, Config, GRADIENT, RestoreError, SyncError, bytes_to_peers};

/// One rank's side.
pub(in crate::sync) struct Hierarchy {
    sites: Sites,
    own: usize,
    layout: ShardLayout,
    /// Elements on whose multiples slices start.
    group: usize,
    within: Within,
    scaling: Scaling,
    /// Encodes the own slice, and averages the own shard over sites.
    engine: Engine,
    /// The packets of the own shard, by site, of the step in progress.
    received: Vec<Bytes>,
}

impl Hierarchy {
    /// Of the rank `own` of a world whose ranks own parameters by `layout`, in sites that passed [`check`](super::check).
    pub(in crate::sync) fn new(
        codec: Codec,
        config: &Config,
        sites: Sites,
        layout: &ShardLayout,
        own: usize,
    ) -> Result<Self, SyncError> {
        let group = least_common_multiple(codec.unit().elements, config.inner.unit().elements);
        let slices = slices(&sites, layout, group, own);
        let sizes = Sizes {
            encoded: slices.range(sites.member(own)).len(),
            averaged: layout.range(own).len(),
            senders: sites.count(),
        };
        Ok(Self {
            own,
            layout: layout.clone(),
            group,
            within: Within::new(config, &sites, own, slices)?,
            scaling: Scaling::new(codec, config.scale),
            engine: Engine::with_sizes(&config.backend, &codec, sizes)?,
            received: Vec::new(),
            sites,
        })
    }

    pub(in crate::sync) fn scale_log2(&self) -> Option<i8> {
        self.scaling.scale_log2()
    }

    /// The codec's state: the encoder's of the own slice, and the owner's of its shard.
    pub(in crate::sync) fn state(&self) -> Result<[Vec<u32>; 2], SyncError> {
        self.engine.state()
    }

    /// What the next scale is made of.
    pub(in crate::sync) fn moment(&self) -> Option<Moment> {
        self.scaling.moment()
    }

    /// Whether this side can go on from a checkpoint whose lengths fit.
    pub(in crate::sync) fn check(&self, checkpoint: &Checkpoint) -> Result<(), RestoreError> {
        let codec = self.scaling.check(checkpoint)?;
        codec.check_state(self.slice(self.own).len(), &checkpoint.codec_state)?;
        let shard = self.layout.range(self.own).len();
        Ok(codec.check_mean_state(self.sites.count(), shard, &checkpoint.mean_state)?)
    }

    /// Goes on from a checkpoint that passed [`Self::check`].
    pub(in crate::sync) fn restore(&mut self, checkpoint: &Checkpoint) -> Result<(), SyncError> {
        self.scaling.restore(checkpoint);
        self.engine.set_state(&checkpoint.codec_state, &checkpoint.mean_state)
    }

    pub(in crate::sync) fn offer(
        &mut self,
        turn: &mut Turn<'_>,
        gradient: Gradient<'_>,
        samples: u32,
    ) -> Result<Vec<Header>, SyncError> {
        let (slice, counted) = self.within.mean(turn, gradient, samples)?;
        self.scaling.agree(turn, self.sites.count(), slice)?;
        let encoded = self.engine.encode(self.scaling.codec(), turn.step, slice)?;
        let stats = match counted {
            // What of a mean is not finite, was not in some gradient, whose rank has counted it.
            Some(Stats { nonfinite, saturated }) => {
                Stats { nonfinite, saturated: saturated + encoded.saturated }
            }
            None => encoded,
        };
        let outgoing = self.cut(samples, stats);
        turn.watch.lap(&mut turn.report.seconds.encode);

        turn.report.gradient_packet_bytes += bytes_to_peers(&outgoing, self.own);
        turn.report.wan_packet_bytes += bytes_to_others(&self.sites, &outgoing, self.own);
        let forms = self.forms();
        let expected: Vec<u64> = forms.iter().map(|form| form.bytes() as u64).collect();
        let operation = Operation { step: turn.step.get(), tag: GRADIENT };
        let received = turn.communicator.all_to_all(operation, outgoing, &expected)?;
        turn.watch.lap(&mut turn.report.seconds.exchange);
        let packets = received.iter().enumerate();
        let headers =
            headers(turn.step, packets.zip(forms).map(|((rank, packet), form)| (rank, packet, form)))?;
        self.received = self.sites.all().iter().map(|members| join(members, &received)).collect();
        Ok(headers)
    }

    pub(in crate::sync) fn mean(
        &mut self,
        turn: &mut Turn<'_>,
        weights: &[u32],
        mean: &mut [f32],
    ) -> Result<(), SyncError> {
        self.average(weights, mean)?;
        self.scaling.note(mean);
        turn.watch.lap(&mut turn.report.seconds.average);
        Ok(())
    }

    pub(in crate::sync) fn follow(&mut self, weights: &[u32], mean: &mut [f32]) -> Result<(), SyncError> {
        let codec = self.scaling.codec();
        // As of packets of the flat exchange, one per site.
        if codec.mean_state_words(1, codec.unit().elements) > 0 {
            AverageError::check_weights(weights)?;
            self.average(weights, mean)?;
        }
        Ok(())
    }

    /// `weights` are of ranks.
    fn average(&mut self, weights: &[u32], mean: &mut [f32]) -> Result<(), SyncError> {
        let weights = self.sites.sums(weights);
        let result = self.engine.average(self.scaling.codec(), &self.received, &weights, mean);
        result.map_err(|error| name_rank(error, |site, unit| self.encoder(site, unit)))
    }

    /// Which rank of `site` encoded this unit of the own shard.
    fn encoder(&self, site: usize, unit: usize) -> usize {
        let members = &self.sites.all()[site];
        let element = self.layout.range(self.own).start + unit * self.scaling.codec().unit().elements;
        let of = |rank: &&usize| self.slice(**rank).contains(&element);
        members.iter().find(of).copied().unwrap_or(members[0])
    }

    /// What `rank` encodes, in elements of the gradient.
    fn slice(&self, rank: usize) -> Range<usize> {
        slices(&self.sites, &self.layout, self.group, rank).range(self.sites.member(rank))
    }

    /// The packet of the own slice, cut into one per owner.
    fn cut(&self, samples: u32, stats: Stats) -> Vec<Bytes> {
        let (codec, slice) = (self.scaling.codec(), self.slice(self.own));
        let packets = self.layout.ranges().map(|shard| {
            let part = common(&slice, &shard);
            let header = Form::of(codec, part.len()).header(samples, stats);
            header.packet(self.engine.packet(codec, &(part.start - slice.start..part.end - slice.start)))
        });
        packets.collect()
    }

    /// What comes from each rank for the own shard.
    fn forms(&self) -> Vec<Form> {
        let shard = self.layout.range(self.own);
        let part = |rank| common(&self.slice(rank), &shard).len();
        (0..self.sites.ranks()).map(|rank| Form::of(self.scaling.codec(), part(rank))).collect()
    }
}

/// The slices of the members of the site of `rank`.
fn slices(sites: &Sites, layout: &ShardLayout, group: usize, rank: usize) -> ShardLayout {
    ShardLayout::new(layout.elements(), sites.members(rank).len(), group)
}

/// One packet of the parts that `members` sent, in their order: all but the last are whole units.
fn join(members: &[usize], received: &[Bytes]) -> Bytes {
    let parts = members.iter().map(|rank| &received[*rank]).filter(|part| !body(part).is_empty());
    let parts: Vec<&Bytes> = parts.collect();
    let [first, .., last] = parts[..] else {
        return parts.first().map_or_else(Bytes::new, |part| (*part).clone());
    };
    let mut joined = first[..HEAD_BYTES].to_vec();
    for part in parts {
        joined.extend_from_slice(body(part));
    }
    joined.extend_from_slice(&last[last.len() - TAIL_BYTES..]);
    joined.into()
}

/// Bytes that leave the site of this rank.
pub(super) fn bytes_to_others(sites: &Sites, outgoing: &[Bytes], own: usize) -> u64 {
    let others = outgoing.iter().enumerate().filter(|(rank, _)| sites.of(*rank) != sites.of(own));
    others.map(|(_, message)| message.len() as u64).sum()
}

/// `error` with the rank that a malformed packet is from, in place of its index among those that were averaged. `rank`
/// says it of index and unit.
pub(super) fn name_rank(error: SyncError, rank: impl Fn(usize, usize) -> usize) -> SyncError {
    let error = match error {
        SyncError::Average(error) => error,
        #[cfg(feature = "gpu")]
        SyncError::Gpu(GpuError::Average(error)) => error,
        other => return other,
    };
    SyncError::Average(match error {
        AverageError::Malformed { index, unit, what, found, expected } => {
            AverageError::Malformed { index: rank(index, unit), unit, what, found, expected }
        }
        other => other,
    })
}

fn least_common_multiple(a: usize, b: usize) -> usize {
    let (mut divisor, mut rest) = (a, b);
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    a / divisor * b
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_common_multiple_is_a_multiple_of_both_and_the_least() {
        for (a, b, least) in [(8, 8, 8), (8, 256, 256), (160, 256, 1280), (4096, 8, 4096), (96, 160, 480)] {
            assert_eq!(least_common_multiple(a, b), least, "{a}, {b}");
        }
    }

    #[test]
    fn parts_become_one_packet_without_a_copy_where_one_has_it_all() {
        let part = |words: &[u8]| Bytes::from([&[7; HEAD_BYTES], words, &[8; TAIL_BYTES]].concat());
        let received = [part(&[]), part(&[1, 2, 3, 4]), part(&[5, 6, 7, 8]), part(&[9, 9, 9, 9])];
        let joined = join(&[1, 2], &received);
        assert_eq!(
            (body(&joined), joined.len()),
            (&[1, 2, 3, 4, 5, 6, 7, 8][..], HEAD_BYTES + 8 + TAIL_BYTES)
        );
        assert_eq!(join(&[0, 2], &received).as_ptr(), received[2].as_ptr());
        assert!(join(&[0], &received).is_empty());
    }
}

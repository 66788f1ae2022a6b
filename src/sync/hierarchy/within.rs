//! Round 1: the mean of the own slice over the own site.

use bytes::Bytes;
use gradwire_transport::Operation;

use super::Sites;
use super::exchange::name_rank;
use crate::codec::{AverageError, Codec, Gradient, Stats};
use crate::shard::ShardLayout;
use crate::sync::engine::Engine;
use crate::sync::exchange::Turn;
use crate::sync::headers::headers;
use crate::sync::packet::Form;
use crate::sync::{Config, SITE, SyncError, bytes_to_peers};

/// One rank's side.
pub(super) struct Within {
    codec: Codec,
    /// The ranks of the site.
    members: Vec<usize>,
    /// Which of them this rank is.
    own: usize,
    /// One per member.
    slices: ShardLayout,
    /// `None` in a site of one rank, which has its mean already.
    engine: Option<Engine>,
    /// Of the own slice.
    mean: Vec<f32>,
}

impl Within {
    pub(super) fn new(
        config: &Config,
        sites: &Sites,
        rank: usize,
        slices: ShardLayout,
    ) -> Result<Self, SyncError> {
        let (members, own) = (sites.members(rank).to_vec(), sites.member(rank));
        let alone = members.len() == 1;
        let engine = || Engine::new(&config.backend, &config.inner, &slices, own);
        Ok(Self {
            codec: config.inner,
            engine: if alone { None } else { Some(engine()?) },
            mean: vec![0.0; if alone { 0 } else { slices.range(own).len() }],
            members,
            own,
            slices,
        })
    }

    /// The mean of the own slice, and what was counted in the whole of `gradient` if it had to be encoded for it.
    ///
    /// A site without samples, or with more than can be averaged, has zeros: what is wrong with the samples, all ranks
    /// find in the second round.
    pub(super) fn mean<'a>(
        &'a mut self,
        turn: &mut Turn<'_>,
        gradient: Gradient<'a>,
        samples: u32,
    ) -> Result<(Gradient<'a>, Option<Stats>), SyncError> {
        let world = turn.communicator.world();
        let mut outgoing = vec![Bytes::new(); world.size() as usize];
        let mut expected = vec![0; outgoing.len()];
        let slice = Form::of(&self.codec, self.slices.range(self.own).len());
        let stats = match &mut self.engine {
            None => None,
            Some(engine) => {
                let stats = engine.encode(&self.codec, turn.step, gradient)?;
                for (rank, range) in self.members.iter().zip(self.slices.ranges()) {
                    let header = Form::of(&self.codec, range.len()).header(samples, stats);
                    outgoing[*rank] = header.packet(engine.packet(&self.codec, &range));
                    expected[*rank] = slice.bytes() as u64;
                }
                Some(stats)
            }
        };
        turn.watch.lap(&mut turn.report.seconds.encode);

        turn.report.gradient_packet_bytes += bytes_to_peers(&outgoing, world.rank().index());
        let operation = Operation { step: turn.step.get(), tag: SITE };
        let mut received = turn.communicator.all_to_all(operation, outgoing, &expected)?;
        turn.watch.lap(&mut turn.report.seconds.exchange);
        let Some(engine) = &mut self.engine else { return Ok((gradient, None)) };

        let packets: Vec<Bytes> =
            self.members.iter().map(|rank| std::mem::take(&mut received[*rank])).collect();
        let members = self.members.iter().zip(&packets);
        let headers = headers(turn.step, members.map(|(rank, packet)| (*rank, packet, slice)))?;
        let weights: Vec<u32> = headers.iter().map(|header| header.samples).collect();
        if AverageError::check_weights(&weights).is_ok() {
            let result = engine.average(&self.codec, &packets, &weights, &mut self.mean);
            result.map_err(|error| name_rank(error, |index, _| self.members[index]))?;
        } else {
            self.mean.fill(0.0);
        }
        turn.watch.lap(&mut turn.report.seconds.average);
        Ok((Gradient::F32(&self.mean), stats))
    }
}

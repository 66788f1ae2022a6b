//! The exchange of a codec's packets: one all-to-all.

use bytes::Bytes;
use gradwire_transport::Operation;

use super::engine::Engine;
use super::exchange::Turn;
use super::packet::{Form, Header};
use super::scaling::Scaling;
use super::{Checkpoint, Config, GRADIENT, RestoreError, SyncError, bytes_to_peers, headers, scale};
use crate::codec::{AverageError, Codec, Gradient, Step};
use crate::shard::ShardLayout;

/// One rank's side.
pub(super) struct Packets {
    scaling: Scaling,
    engine: Engine,
    layout: ShardLayout,
    own: usize,
    /// The packets of the step in progress.
    received: Vec<Bytes>,
}

impl Packets {
    pub(super) fn new(
        codec: Codec,
        config: &Config,
        layout: &ShardLayout,
        own: usize,
    ) -> Result<Self, SyncError> {
        let engine = Engine::new(&config.backend, &codec, layout, own)?;
        let scaling = Scaling::new(codec, config.scale);
        Ok(Self { scaling, engine, layout: layout.clone(), own, received: Vec::new() })
    }

    pub(super) fn scale_log2(&self) -> Option<i8> {
        self.scaling.scale_log2()
    }

    /// The codec's state: the encoder's of the whole gradient, and the owner's of its shard.
    pub(super) fn state(&self) -> Result<[Vec<u32>; 2], SyncError> {
        self.engine.state()
    }

    /// What the next scale is made of.
    pub(super) fn moment(&self) -> Option<scale::Moment> {
        self.scaling.moment()
    }

    /// Whether this side can go on from a checkpoint whose lengths fit.
    pub(super) fn check(&self, checkpoint: &Checkpoint) -> Result<(), RestoreError> {
        let Checkpoint { codec_state, mean_state, .. } = checkpoint;
        let codec = self.scaling.check(checkpoint)?;
        codec.check_state(self.layout.elements(), codec_state)?;
        let shard = self.layout.range(self.own).len();
        Ok(codec.check_mean_state(self.layout.world_size(), shard, mean_state)?)
    }

    /// Goes on from a checkpoint that passed [`Self::check`].
    pub(super) fn restore(&mut self, checkpoint: &Checkpoint) -> Result<(), SyncError> {
        self.scaling.restore(checkpoint);
        self.engine.set_state(&checkpoint.codec_state, &checkpoint.mean_state)
    }

    pub(super) fn offer(
        &mut self,
        turn: &mut Turn<'_>,
        gradient: Gradient<'_>,
        samples: u32,
    ) -> Result<Vec<Header>, SyncError> {
        self.scaling.agree(turn, self.layout.world_size(), gradient)?;
        let outgoing = self.encode(turn.step, gradient, samples)?;
        turn.watch.lap(&mut turn.report.seconds.encode);

        let expected = vec![outgoing[self.own].len() as u64; outgoing.len()];
        turn.report.gradient_packet_bytes = bytes_to_peers(&outgoing, self.own);
        let operation = Operation { step: turn.step.get(), tag: GRADIENT };
        self.received = turn.communicator.all_to_all(operation, outgoing, &expected)?;
        turn.watch.lap(&mut turn.report.seconds.exchange);
        let elements = self.layout.range(self.own).len();
        headers(turn.step, &self.received, Form::of(self.scaling.codec(), elements))
    }

    pub(super) fn mean(
        &mut self,
        turn: &mut Turn<'_>,
        weights: &[u32],
        mean: &mut [f32],
    ) -> Result<(), SyncError> {
        self.engine.average(self.scaling.codec(), &self.received, weights, mean)?;
        self.scaling.note(mean);
        turn.watch.lap(&mut turn.report.seconds.average);
        Ok(())
    }

    #[cfg(feature = "gpu")]
    pub(super) fn received(&mut self) -> (Codec, Vec<&[u32]>) {
        (*self.scaling.codec(), self.engine.received(&self.received))
    }

    pub(super) fn follow(&mut self, weights: &[u32], mean: &mut [f32]) -> Result<(), SyncError> {
        // Also of an empty shard, and whatever the backend: all ranks must find the same fault with the weights.
        let codec = self.scaling.codec();
        if codec.mean_state_words(1, codec.unit().elements) > 0 {
            AverageError::check_weights(weights)?;
            // What was encoded was added to the sender's copy of its state: the owner's copy must follow, step or not.
            self.engine.average(codec, &self.received, weights, mean)?;
        }
        Ok(())
    }

    /// One packet per owner.
    fn encode(&mut self, step: Step, gradient: Gradient<'_>, samples: u32) -> Result<Vec<Bytes>, SyncError> {
        let stats = self.engine.encode(self.scaling.codec(), step, gradient)?;
        let packets = self.layout.ranges().map(|range| {
            let header = Form::of(self.scaling.codec(), range.len()).header(samples, stats);
            header.packet(self.engine.packet(self.scaling.codec(), &range))
        });
        Ok(packets.collect())
    }
}

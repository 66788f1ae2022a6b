//! The exchange of a codec's packets: one all-to-all, in pieces.

use gradwire_transport::Operation;

use super::engine::Engine;
use super::exchange::Turn;
use super::packet::{Form, Header};
use super::scaling::Scaling;
use super::segments::Segments;
use super::stream::{Spare, Stream, Task};
use super::{Checkpoint, Config, GRADIENT, RestoreError, SyncError, scale};
use crate::codec::{AverageError, Codec, Gradient};
use crate::shard::ShardLayout;

/// One rank's side.
pub(super) struct Packets {
    scaling: Scaling,
    engine: Engine,
    layout: ShardLayout,
    own: usize,
    /// As in [`Config::piece_bytes`].
    piece_bytes: usize,
    spare: Spare,
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
        let (layout, piece_bytes) = (layout.clone(), config.piece_bytes);
        Ok(Self { scaling, engine, layout, own, piece_bytes, spare: Spare::new() })
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

    /// What can be averaged piece by piece is in `mean` when this returns.
    pub(super) fn offer(
        &mut self,
        turn: &mut Turn<'_>,
        gradient: Gradient<'_>,
        samples: u32,
        mean: &mut [f32],
    ) -> Result<Vec<Header>, SyncError> {
        self.scaling.agree(turn, self.layout.world_size(), gradient)?;
        let codec = self.scaling.codec();
        let encoded = self.engine.begin(codec, turn.step, gradient)?;
        turn.watch.lap(&mut turn.report.seconds.encode);

        let bytes = |elements| Form::of(codec, elements).bytes() as u64;
        let lengths: Vec<u64> = self.layout.ranges().map(|range| bytes(range.len())).collect();
        let expected = vec![lengths[self.own]; lengths.len()];
        turn.report.gradient_packet_bytes = lengths.iter().sum::<u64>() - lengths[self.own];
        let operation = Operation { step: turn.step.get(), tag: GRADIENT };
        let segments = Segments::new(codec, self.piece_bytes);
        let (layout, own, step) = (&self.layout, self.own, turn.step);
        let task = Task { codec, step, gradient, samples, layout, own, segments };
        let mut stream = Stream::new(task, &mut self.engine, &mut self.spare, mean, encoded);
        turn.communicator.stream(operation, &lengths, &expected, segments.cut(), &mut stream)?;
        let headers = stream.finish()?;
        turn.watch.lap_with(&mut turn.report.seconds, stream.encoding, stream.averaging);
        Ok(headers)
    }

    pub(super) fn mean(
        &mut self,
        turn: &mut Turn<'_>,
        weights: &[u32],
        mean: &mut [f32],
    ) -> Result<(), SyncError> {
        let codec = self.scaling.codec();
        if !self.engine.averages_in_parts(codec) {
            self.engine.average_received(codec, weights, mean)?;
        }
        self.scaling.note(mean);
        turn.watch.lap(&mut turn.report.seconds.average);
        Ok(())
    }

    #[cfg(feature = "gpu")]
    pub(super) fn received(&self) -> (Codec, Vec<&[u32]>) {
        (*self.scaling.codec(), self.engine.received())
    }

    pub(super) fn follow(&mut self, weights: &[u32], mean: &mut [f32]) -> Result<(), SyncError> {
        // Also of an empty shard, and whatever the backend: all ranks must find the same fault with the weights.
        let codec = self.scaling.codec();
        if codec.mean_state_words(1, codec.unit().elements) > 0 {
            AverageError::check_weights(weights)?;
            // What was encoded was added to the sender's copy of its state: the owner's copy must follow, step or not.
            // Piece by piece it has done so.
            if !self.engine.averages_in_parts(codec) {
                self.engine.average_received(codec, weights, mean)?;
            }
        }
        Ok(())
    }
}

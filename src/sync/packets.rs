//! The exchange of a codec's packets: one all-to-all.

use bytes::Bytes;
use gradwire_transport::{Communicator, Operation};

use super::engine::Engine;
use super::exchange::Turn;
use super::packet::{Form, Header};
use super::{
    Checkpoint, Config, GRADIENT, RestoreError, SCALE, Scale, SyncError, bytes_to_peers, headers, scale,
};
use crate::codec::{AverageError, Codec, Gradient, Step};
use crate::shard::ShardLayout;

/// One rank's side.
pub(super) struct Packets {
    codec: Codec,
    engine: Engine,
    layout: ShardLayout,
    own: usize,
    /// True if the scale is agreed on by all ranks.
    automatic: bool,
    /// False while the scale is still to be agreed on.
    scaled: bool,
    /// Whether the scale is agreed on anew before every step.
    rescales: bool,
    /// Of the own shard's mean gradient in the step before; `None` in the first step and after one that was not taken,
    /// on every rank alike.
    moment: Option<scale::Moment>,
    /// The packets of the step in progress.
    received: Vec<Bytes>,
}

impl Packets {
    pub(super) fn new(
        codec: Codec,
        config: &Config,
        layout: ShardLayout,
        own: usize,
    ) -> Result<Self, SyncError> {
        let automatic = config.scale == Scale::Auto && codec.scale_log2().is_some();
        let engine = Engine::new(&config.backend, &codec, layout, own)?;
        let rescales = config.scale == Scale::Auto && codec.rescales();
        Ok(Self {
            codec,
            engine,
            layout,
            own,
            automatic,
            scaled: !automatic,
            rescales,
            moment: None,
            received: Vec::new(),
        })
    }

    pub(super) fn scale_log2(&self) -> Option<i8> {
        self.codec.scale_log2().filter(|_| self.scaled)
    }

    /// The codec's state: the encoder's of the whole gradient, and the owner's of its shard.
    pub(super) fn state(&self) -> Result<[Vec<u32>; 2], SyncError> {
        self.engine.state()
    }

    /// What the next scale is made of.
    pub(super) fn moment(&self) -> Option<scale::Moment> {
        self.moment
    }

    /// Whether this side can go on from a checkpoint whose lengths fit.
    pub(super) fn check(&self, checkpoint: &Checkpoint) -> Result<(), RestoreError> {
        let Checkpoint { scale_log2, moment, codec_state, mean_state, .. } = checkpoint;
        let mut codec = self.codec;
        if self.automatic {
            codec.set_scale_log2(scale_log2.unwrap_or(0));
            codec.validate()?;
        } else {
            RestoreError::check_scale(*scale_log2, self.scale_log2())?;
        }
        // Any other codec would make its first scale of a shard's mean instead of its gradient.
        if !self.rescales {
            RestoreError::check_no_moment(*moment)?;
        }
        codec.check_state(self.layout.elements(), codec_state)?;
        let shard = self.layout.range(self.own).len();
        Ok(codec.check_mean_state(self.layout.world_size(), shard, mean_state)?)
    }

    /// Goes on from a checkpoint that passed [`Self::check`].
    pub(super) fn restore(&mut self, checkpoint: &Checkpoint) -> Result<(), SyncError> {
        if self.automatic {
            self.scaled = checkpoint.scale_log2.is_some();
            self.codec.set_scale_log2(checkpoint.scale_log2.unwrap_or(0));
        }
        self.moment = checkpoint.moment;
        self.engine.set_state(&checkpoint.codec_state, &checkpoint.mean_state)
    }

    pub(super) fn offer(
        &mut self,
        turn: &mut Turn<'_>,
        gradient: Gradient<'_>,
        samples: u32,
    ) -> Result<Vec<Header>, SyncError> {
        if !self.scaled || self.rescales {
            self.agree_on_scale(turn.communicator, turn.step, gradient)?;
            turn.watch.lap(&mut turn.report.seconds.exchange);
        }

        let outgoing = self.encode(turn.step, gradient, samples)?;
        turn.watch.lap(&mut turn.report.seconds.encode);

        let expected = vec![outgoing[self.own].len() as u64; outgoing.len()];
        turn.report.gradient_packet_bytes = bytes_to_peers(&outgoing, self.own);
        let operation = Operation { step: turn.step.get(), tag: GRADIENT };
        self.received = turn.communicator.all_to_all(operation, outgoing, &expected)?;
        turn.watch.lap(&mut turn.report.seconds.exchange);
        let elements = self.layout.range(self.own).len();
        headers(turn.step, &self.received, Form::of(&self.codec, elements))
    }

    pub(super) fn mean(
        &mut self,
        turn: &mut Turn<'_>,
        weights: &[u32],
        mean: &mut [f32],
    ) -> Result<(), SyncError> {
        self.engine.average(&self.codec, &self.received, weights, mean)?;
        self.moment = self.rescales.then(|| scale::Moment::of((&*mean).into()));
        turn.watch.lap(&mut turn.report.seconds.average);
        Ok(())
    }

    #[cfg(feature = "gpu")]
    pub(super) fn received(&mut self) -> (Codec, Vec<&[u32]>) {
        (self.codec, self.engine.received(&self.received))
    }

    pub(super) fn follow(&mut self, weights: &[u32], mean: &mut [f32]) -> Result<(), SyncError> {
        // Also of an empty shard, and whatever the backend: all ranks must find the same fault with the weights.
        if self.codec.mean_state_words(1, self.codec.unit().elements) > 0 {
            AverageError::check_weights(weights)?;
            // What was encoded was added to the sender's copy of its state: the owner's copy must follow, step or not.
            self.engine.average(&self.codec, &self.received, weights, mean)?;
        }
        Ok(())
    }

    fn agree_on_scale(
        &mut self,
        communicator: &mut Communicator,
        step: Step,
        gradient: Gradient<'_>,
    ) -> Result<(), SyncError> {
        let mut rms_log2 = self.codec.rms_log2();
        let own = match self.moment.take() {
            Some(moment) => {
                // The mean of N gradients whose noise is independent is sqrt(N) smaller than each: they must still fit.
                let doublings = communicator.world().size().next_power_of_two().trailing_zeros();
                rms_log2 =
                    rms_log2.saturating_sub_unsigned(u8::try_from(doublings.div_ceil(2)).unwrap_or(16));
                moment
            }
            None => scale::Moment::of(gradient),
        };
        let expected = vec![scale::BYTES as u64; self.layout.world_size()];
        let operation = Operation { step: step.get(), tag: SCALE };
        let all = communicator.all_gather(operation, Bytes::copy_from_slice(&own.encode()), &expected)?;
        let moments = communicator.world().ranks().zip(&all).map(|(rank, bytes)| {
            let refuse = |source| SyncError::Packet { rank, step: step.get(), source };
            scale::Moment::decode(bytes).map_err(refuse)
        });
        let moments: Vec<scale::Moment> = moments.collect::<Result<_, _>>()?;
        if let Some(agreed) = scale::agree(&moments, rms_log2) {
            self.codec.set_scale_log2(agreed);
            self.scaled = true;
        }
        Ok(())
    }

    /// One packet per owner.
    fn encode(&mut self, step: Step, gradient: Gradient<'_>, samples: u32) -> Result<Vec<Bytes>, SyncError> {
        let stats = self.engine.encode(&self.codec, step, gradient)?;
        let packets = self.layout.ranges().map(|range| {
            let header = Form::of(&self.codec, range.len()).header(samples, stats);
            header.packet(self.engine.packet(&self.codec, &range))
        });
        Ok(packets.collect())
    }
}

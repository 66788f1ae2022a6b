//! The exchange of a codec's packets: one all-to-all.

use bytes::Bytes;
use gradwire_transport::{Communicator, Operation};

use super::engine::Engine;
use super::exchange::Turn;
use super::packet::{Form, Header};
use super::{Config, GRADIENT, SCALE, Scale, SyncError, bytes_to_peers, headers, scale};
use crate::codec::{Codec, Gradient, Step};
use crate::shard::ShardLayout;

/// One rank's side.
pub(super) struct Packets {
    codec: Codec,
    engine: Engine,
    layout: ShardLayout,
    own: usize,
    /// False while the scale is still to be agreed on.
    scaled: bool,
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
        let scaled = config.scale == Scale::Fixed || codec.scale_log2().is_none();
        let engine = Engine::new(&config.backend, &codec, layout, own)?;
        Ok(Self { codec, engine, layout, own, scaled, received: Vec::new() })
    }

    pub(super) fn scale_log2(&self) -> Option<i8> {
        self.codec.scale_log2().filter(|_| self.scaled)
    }

    pub(super) fn offer(
        &mut self,
        turn: &mut Turn<'_>,
        gradient: Gradient<'_>,
        samples: u32,
    ) -> Result<Vec<Header>, SyncError> {
        if !self.scaled {
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
        turn.watch.lap(&mut turn.report.seconds.average);
        Ok(())
    }

    fn agree_on_scale(
        &mut self,
        communicator: &mut Communicator,
        step: Step,
        gradient: Gradient<'_>,
    ) -> Result<(), SyncError> {
        let own = scale::Moment::of(gradient);
        let expected = vec![scale::BYTES as u64; self.layout.world_size()];
        let operation = Operation { step: step.get(), tag: SCALE };
        let all = communicator.all_gather(operation, Bytes::copy_from_slice(&own.encode()), &expected)?;
        let moments = communicator.world().ranks().zip(&all).map(|(rank, bytes)| {
            let refuse = |source| SyncError::Packet { rank, step: step.get(), source };
            scale::Moment::decode(bytes).map_err(refuse)
        });
        let moments: Vec<scale::Moment> = moments.collect::<Result<_, _>>()?;
        if let Some(agreed) = scale::agree(&moments) {
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

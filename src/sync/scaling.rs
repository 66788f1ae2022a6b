//! The codec of a run, with the scale that it has by now: fixed, agreed on once, or before every step ([`scale`]).

use bytes::Bytes;
use gradwire_transport::Operation;

use super::exchange::Turn;
use super::scale::{self, Moment};
use super::{Checkpoint, RestoreError, SCALE, Scale, SyncError};
use crate::codec::{Codec, Gradient};

/// The same on every rank, but for the moment.
pub(super) struct Scaling {
    codec: Codec,
    /// True if the scale is agreed on by all ranks.
    automatic: bool,
    /// False while the scale is still to be agreed on.
    scaled: bool,
    /// Whether the scale is agreed on anew before every step.
    rescales: bool,
    /// Of the own shard's mean gradient in the step before; `None` in the first step and after one that was not taken,
    /// on every rank alike.
    moment: Option<Moment>,
}

impl Scaling {
    pub(super) fn new(codec: Codec, scale: Scale) -> Self {
        let automatic = scale == Scale::Auto && codec.scale_log2().is_some();
        let rescales = scale == Scale::Auto && codec.rescales();
        Self { codec, automatic, scaled: !automatic, rescales, moment: None }
    }

    /// With the scale of this step.
    pub(super) fn codec(&self) -> &Codec {
        &self.codec
    }

    pub(super) fn scale_log2(&self) -> Option<i8> {
        self.codec.scale_log2().filter(|_| self.scaled)
    }

    /// What the next scale is made of.
    pub(super) fn moment(&self) -> Option<Moment> {
        self.moment
    }

    /// Whether this side can go on with the scale of a checkpoint: its codec, which checks the states.
    pub(super) fn check(&self, checkpoint: &Checkpoint) -> Result<Codec, RestoreError> {
        let Checkpoint { scale_log2, moment, .. } = checkpoint;
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
        Ok(codec)
    }

    /// Goes on from a checkpoint that passed [`Self::check`].
    pub(super) fn restore(&mut self, checkpoint: &Checkpoint) {
        if self.automatic {
            self.scaled = checkpoint.scale_log2.is_some();
            self.codec.set_scale_log2(checkpoint.scale_log2.unwrap_or(0));
        }
        self.moment = checkpoint.moment;
    }

    /// Agrees with all ranks on a scale, if it is time to. `gradient` is what this rank encodes of those that
    /// are averaged, as many as there are `senders` to a mean.
    pub(super) fn agree(
        &mut self,
        turn: &mut Turn<'_>,
        senders: usize,
        gradient: Gradient<'_>,
    ) -> Result<(), SyncError> {
        if self.scaled && !self.rescales {
            return Ok(());
        }
        let mut rms_log2 = self.codec.rms_log2();
        let own = match self.moment.take() {
            Some(moment) => {
                // The mean of N gradients whose noise is independent is sqrt(N) smaller than each: they must still fit.
                let doublings = senders.next_power_of_two().trailing_zeros();
                rms_log2 =
                    rms_log2.saturating_sub_unsigned(u8::try_from(doublings.div_ceil(2)).unwrap_or(16));
                moment
            }
            None => Moment::of(gradient),
        };
        let world = turn.communicator.world();
        let expected = vec![scale::BYTES as u64; world.size() as usize];
        let operation = Operation { step: turn.step.get(), tag: SCALE };
        let all =
            turn.communicator.all_gather(operation, Bytes::copy_from_slice(&own.encode()), &expected)?;
        let moments = world.ranks().zip(&all).map(|(rank, bytes)| {
            let refuse = |source| SyncError::Packet { rank, step: turn.step.get(), source };
            Moment::decode(bytes).map_err(refuse)
        });
        let moments: Vec<Moment> = moments.collect::<Result<_, _>>()?;
        if let Some(agreed) = scale::agree(&moments, rms_log2) {
            self.codec.set_scale_log2(agreed);
            self.scaled = true;
        }
        turn.watch.lap(&mut turn.report.seconds.exchange);
        Ok(())
    }

    /// Takes note of the own shard's mean.
    pub(super) fn note(&mut self, mean: &[f32]) {
        self.moment = self.rescales.then(|| Moment::of(mean.into()));
    }
}

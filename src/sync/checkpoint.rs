//! Everything of one rank that the next step depends on, as plain numbers.
//!
//! The parameters of the whole vector are not in it: every rank has the same, and the caller writes them once. Nor are
//! settings: a run goes on with the configuration that it was started with.

use super::SyncError;
use crate::optim::{RestoreError, Saved};

/// What one rank remembers between two steps. How it is stored is the caller's business; every rank has its own, and a run
/// goes on from the checkpoints that all ranks took after the same step, in a world of the same size.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Checkpoint {
    /// Ranks of the world.
    pub world_size: u32,
    /// The rank that it is of.
    pub rank: u32,
    /// Parameters of the whole vector.
    pub elements: u64,
    /// [`CodecId`](crate::codec::CodecId) of the run's codec.
    pub codec: u8,
    /// The step that comes next, at least 1.
    pub next_step: u64,
    /// The codec's scale: `None` for a codec without one, and while it is still to be agreed on.
    pub scale_log2: Option<i8>,
    /// Encoder state for the whole gradient ([`Codec::state_words`](crate::codec::Codec::state_words)): residuals.
    pub codec_state: Vec<u32>,
    /// What the owner of the shard keeps between means
    /// ([`Codec::mean_state_words`](crate::codec::Codec::mean_state_words)); empty for most codecs.
    pub mean_state: Vec<u32>,
    /// This rank's momentum of the whole vector, where the optimizer has momenta travel; else empty.
    pub momentum: Vec<f32>,
    /// Parameters of the own shard.
    pub parameters: Vec<f32>,
    /// The optimizer's state of the own shard.
    pub optimizer: Saved,
}

impl Checkpoint {
    /// Checks what says where it is from, and lengths, against those of a fresh checkpoint of this rank.
    pub(super) fn check(&self, here: &Self) -> Result<(), SyncError> {
        let fits = || {
            RestoreError::check("world size", self.world_size as usize, here.world_size as usize)?;
            RestoreError::check("rank", self.rank as usize, here.rank as usize)?;
            if self.elements != here.elements {
                let (found, expected) = (self.elements, here.elements);
                return Err(RestoreError { what: "number of parameters", found, expected });
            }
            RestoreError::check("codec", self.codec.into(), here.codec.into())?;
            if self.next_step == 0 {
                return Err(RestoreError { what: "next step", found: 0, expected: 1 });
            }
            let lengths = [
                ("codec state length", self.codec_state.len(), here.codec_state.len()),
                ("mean state length", self.mean_state.len(), here.mean_state.len()),
                ("momentum length", self.momentum.len(), here.momentum.len()),
                ("parameters of the shard", self.parameters.len(), here.parameters.len()),
            ];
            lengths
                .into_iter()
                .try_for_each(|(what, found, expected)| RestoreError::check(what, found, expected))
        };
        Ok(fits()?)
    }

    /// What must be the same on all ranks that go on together: the step, and a scale (256 for none).
    pub(super) fn common(&self) -> [u64; 2] {
        [self.next_step, self.scale_log2.map_or(256, |scale| u64::from(scale.cast_unsigned()))]
    }
}

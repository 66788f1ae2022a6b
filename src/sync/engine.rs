//! What computes the codec on this rank: the CPU functions or their twins on a device.

use std::ops::Range;

use bytes::Bytes;

use super::packet::read_words;
use super::{Codec, SyncError};
use crate::codec::{Stats, Step, cast, loco};
#[cfg(feature = "gpu")]
use crate::gpu::{self, Gpu};
use crate::shard::{GROUP, ShardLayout};

/// Where a rank computes its codec. The bits are the same.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Backend {
    /// The CPU functions.
    Cpu,
    /// The WGSL kernels. The f32 baseline has no kernel and stays on the CPU.
    #[cfg(feature = "gpu")]
    Gpu(Gpu),
}

/// Codec state and buffers of one rank, allocated once.
pub(super) struct Engine {
    place: Place,
    /// Packets of all owners, one behind the other: shards start on a group, and so on a word.
    words: Vec<u32>,
    /// The received packets of the own shard, by rank.
    received: Vec<Vec<u32>>,
}

enum Place {
    /// No residual and no kernel: the f32 baseline.
    Cast,
    Cpu {
        residual: Vec<i8>,
    },
    #[cfg(feature = "gpu")]
    Gpu {
        encode: Box<gpu::loco::Encode>,
        average: Option<Box<gpu::loco::Average>>,
    },
}

impl Engine {
    pub(super) fn new(
        backend: &Backend,
        codec: Codec,
        layout: ShardLayout,
        own: usize,
    ) -> Result<Self, SyncError> {
        let n = layout.elements();
        let place = match (codec, backend) {
            (Codec::F32, _) => Place::Cast,
            (Codec::Loco { .. }, Backend::Cpu) => Place::Cpu { residual: vec![0; n] },
            #[cfg(feature = "gpu")]
            (Codec::Loco { .. }, Backend::Gpu(gpu)) => {
                let shard = layout.range(own).len();
                // A world with more ranks than groups has empty shards, which no kernel needs to see.
                let average =
                    if shard == 0 { None } else { Some(Box::new(gpu::loco::Average::new(gpu, shard)?)) };
                Place::Gpu { encode: Box::new(gpu::loco::Encode::new(gpu, n)?), average }
            }
        };
        #[cfg(not(feature = "gpu"))]
        let _ = own;
        let received = vec![Vec::new(); layout.world_size()];
        Ok(Self { place, words: vec![0; codec.id().packet_words(n)], received })
    }

    /// Encodes the whole gradient; [`Self::packet`] then gives each owner's words.
    pub(super) fn encode(&mut self, codec: &Codec, step: Step, gradient: &[f32]) -> Result<Stats, SyncError> {
        match (&mut self.place, codec) {
            (Place::Cpu { residual }, Codec::Loco { config, .. }) => {
                Ok(loco::encode(config, step, gradient, residual, &mut self.words))
            }
            #[cfg(feature = "gpu")]
            (Place::Gpu { encode, .. }, Codec::Loco { config, .. }) => {
                Ok(encode.encode(config, step, gradient, &mut self.words)?)
            }
            _ => Ok(cast::encode_f32(gradient, &mut self.words)),
        }
    }

    /// The words of the packet for the owner of `range`.
    pub(super) fn packet(&self, codec: &Codec, range: &Range<usize>) -> &[u32] {
        match codec {
            Codec::F32 => &self.words[range.clone()],
            Codec::Loco { .. } => {
                let first = range.start.div_ceil(GROUP);
                &self.words[first..first + loco::packet_words(range.len())]
            }
        }
    }

    /// The weighted mean of the received packets, which are known to fit the shard, into `mean`.
    pub(super) fn average(
        &mut self,
        codec: &Codec,
        packets: &[Bytes],
        weights: &[u32],
        mean: &mut [f32],
    ) -> Result<(), SyncError> {
        for (words, packet) in self.received.iter_mut().zip(packets) {
            read_words(packet, words);
        }
        let packets: Vec<&[u32]> = self.received.iter().map(Vec::as_slice).collect();
        match (&mut self.place, codec) {
            #[cfg(feature = "gpu")]
            (Place::Gpu { average: Some(average), .. }, Codec::Loco { config, .. }) => {
                Ok(average.average(config, &packets, weights, mean)?)
            }
            // Also for an empty shard: every rank must find the same fault with the weights.
            (_, Codec::Loco { config, .. }) => Ok(loco::average(config, &packets, weights, mean)?),
            (_, Codec::F32) => Ok(cast::average_f32(&packets, weights, mean)?),
        }
    }
}

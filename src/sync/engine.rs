//! What computes the codec on this rank: the CPU functions or their twins on a device.

use std::ops::Range;

use bytes::Bytes;

use super::SyncError;
use super::packet::read_words;
#[cfg(feature = "gpu")]
use crate::codec::Input;
use crate::codec::{Codec, Gradient, Stats, Step};
#[cfg(feature = "gpu")]
use crate::gpu::{self, Gpu};
use crate::shard::ShardLayout;

/// Where a rank computes its codec. The bits are the same.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Backend {
    /// The CPU functions.
    Cpu,
    /// The WGSL kernels.
    #[cfg(feature = "gpu")]
    Gpu(Gpu),
}

/// Codec state and buffers of one rank, allocated once.
pub(super) struct Engine {
    place: Place,
    /// Packets of all owners, one behind the other: shards start on a unit, and so on a word.
    words: Vec<u32>,
    /// The received packets of the own shard, by rank.
    received: Vec<Vec<u32>>,
}

/// What one rank computes in a step.
pub(super) struct Sizes {
    /// Elements that it encodes.
    pub(super) encoded: usize,
    /// Elements of its shard.
    pub(super) averaged: usize,
    /// Packets to a mean.
    pub(super) senders: usize,
}

enum Place {
    Cpu {
        state: Vec<u32>,
        mean_state: Vec<u32>,
    },
    #[cfg(feature = "gpu")]
    Gpu {
        encode: Box<gpu::Encode>,
        average: Option<Box<gpu::Average>>,
        /// What the average's state has once there is one.
        mean_words: usize,
    },
}

impl Engine {
    /// Of the rank `own` that encodes all of `layout` and averages its shard of it.
    pub(super) fn new(
        backend: &Backend,
        codec: &Codec,
        layout: &ShardLayout,
        own: usize,
    ) -> Result<Self, SyncError> {
        let (encoded, averaged) = (layout.elements(), layout.range(own).len());
        Self::with_sizes(backend, codec, Sizes { encoded, averaged, senders: layout.world_size() })
    }

    pub(super) fn with_sizes(backend: &Backend, codec: &Codec, sizes: Sizes) -> Result<Self, SyncError> {
        let Sizes { encoded: n, averaged: shard, senders } = sizes;
        let mean_words = codec.mean_state_words(senders, shard);
        let place = match backend {
            #[cfg(feature = "gpu")]
            Backend::Gpu(gpu) => {
                // A world with more ranks than units has empty shards, which no kernel needs to see.
                let average =
                    if shard == 0 { None } else { Some(Box::new(gpu::Average::new(gpu, codec, shard)?)) };
                // What type gradients have shows in the first step.
                let encode = Box::new(gpu::Encode::new(gpu, codec, Input::F32, n)?);
                Place::Gpu { encode, average, mean_words }
            }
            Backend::Cpu => {
                Place::Cpu { state: vec![0; codec.state_words(n)], mean_state: vec![0; mean_words] }
            }
        };
        let received = vec![Vec::new(); senders];
        Ok(Self { place, words: vec![0; codec.packet_words(n)], received })
    }

    /// Encodes all elements; [`Self::packet`] then gives each owner's words.
    pub(super) fn encode(
        &mut self,
        codec: &Codec,
        step: Step,
        gradient: Gradient<'_>,
    ) -> Result<Stats, SyncError> {
        match &mut self.place {
            Place::Cpu { state, .. } => Ok(codec.encode(step, gradient, state, &mut self.words)),
            #[cfg(feature = "gpu")]
            Place::Gpu { encode, .. } => {
                encode.set_input(gradient.input())?;
                Ok(encode.encode(codec, step, gradient, &mut self.words)?)
            }
        }
    }

    /// Copies of the codec's state: the encoder's of the whole gradient, and the owner's of its shard.
    pub(super) fn state(&self) -> Result<[Vec<u32>; 2], SyncError> {
        match &self.place {
            Place::Cpu { state, mean_state } => Ok([state.clone(), mean_state.clone()]),
            #[cfg(feature = "gpu")]
            Place::Gpu { encode, average, mean_words } => {
                let mut owner = average.as_ref().map_or_else(|| Ok(Vec::new()), |average| average.state())?;
                // A device has none before its first mean.
                owner.resize(*mean_words, 0);
                Ok([encode.state()?, owner])
            }
        }
    }

    /// Goes on from copies of the same lengths.
    pub(super) fn set_state(&mut self, encoder: &[u32], owner: &[u32]) -> Result<(), SyncError> {
        match &mut self.place {
            Place::Cpu { state, mean_state } => {
                state.copy_from_slice(encoder);
                mean_state.copy_from_slice(owner);
                Ok(())
            }
            #[cfg(feature = "gpu")]
            Place::Gpu { encode, average, .. } => {
                encode.set_state(encoder)?;
                average.as_mut().map_or(Ok(()), |average| Ok(average.set_state(owner)?))
            }
        }
    }

    /// The words of the packet for the owner of `range`.
    pub(super) fn packet(&self, codec: &Codec, range: &Range<usize>) -> &[u32] {
        // An empty shard starts at the end of the gradient, which need not be on a unit.
        let first = codec.packet_words(range.start);
        let words = codec.packet_words(range.len());
        &self.words[first..first + words]
    }

    /// The words of the received packets, by rank.
    #[cfg(feature = "gpu")]
    pub(super) fn received(&mut self, packets: &[Bytes]) -> Vec<&[u32]> {
        read_all(&mut self.received, packets)
    }

    /// The weighted mean of the received packets, which are known to fit the shard, into `mean`.
    pub(super) fn average(
        &mut self,
        codec: &Codec,
        packets: &[Bytes],
        weights: &[u32],
        mean: &mut [f32],
    ) -> Result<(), SyncError> {
        let packets = read_all(&mut self.received, packets);
        match &mut self.place {
            #[cfg(feature = "gpu")]
            Place::Gpu { average: Some(average), .. } => Ok(average.average(codec, &packets, weights, mean)?),
            // Also for an empty shard: every rank must find the same fault with the weights.
            #[cfg(feature = "gpu")]
            Place::Gpu { average: None, .. } => Ok(codec.average(&packets, weights, &mut [], mean)?),
            Place::Cpu { mean_state, .. } => Ok(codec.average(&packets, weights, mean_state, mean)?),
        }
    }
}

/// The words of `packets`, by rank, in buffers that stay from step to step.
fn read_all<'a>(received: &'a mut [Vec<u32>], packets: &[Bytes]) -> Vec<&'a [u32]> {
    for (words, packet) in received.iter_mut().zip(packets) {
        read_words(packet, words);
    }
    received.iter().map(Vec::as_slice).collect()
}

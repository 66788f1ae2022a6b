//! What computes the codec on this rank: the CPU functions or their twins on a device.

use std::ops::Range;

use bytes::Bytes;

use super::SyncError;
use super::packet::{body, read_words};
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
    /// Packets of all owners, one behind the other: shards start on a unit, and so on a word. Empty until all of a gradient
    /// is encoded at once.
    words: Vec<u32>,
    /// The received packets of the own shard, by rank, where they are averaged whole.
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
        Ok(Self { place, words: Vec::new(), received })
    }

    /// Encodes all elements; [`Self::packet`] then gives each owner's words.
    pub(super) fn encode(
        &mut self,
        codec: &Codec,
        step: Step,
        gradient: Gradient<'_>,
    ) -> Result<Stats, SyncError> {
        self.words.resize(codec.packet_words(gradient.len()), 0);
        match &mut self.place {
            Place::Cpu { state, .. } => Ok(codec.encode(step, gradient, state, &mut self.words)),
            #[cfg(feature = "gpu")]
            Place::Gpu { encode, .. } => {
                encode.set_input(gradient.input())?;
                Ok(encode.encode(codec, step, gradient, &mut self.words)?)
            }
        }
    }

    /// Before [`Self::encode_part`]: a device encodes everything at once, a CPU nothing yet.
    #[cfg_attr(not(feature = "gpu"), expect(unused_variables, reason = "only a device encodes now"))]
    pub(super) fn begin(
        &mut self,
        codec: &Codec,
        step: Step,
        gradient: Gradient<'_>,
    ) -> Result<Stats, SyncError> {
        match &self.place {
            Place::Cpu { .. } => Ok(Stats::default()),
            #[cfg(feature = "gpu")]
            Place::Gpu { .. } => self.encode(codec, step, gradient),
        }
    }

    /// The `words` of the elements `part`, which start on a unit and end on one or with a shard, of a gradient that was begun
    /// with; what was counted in them and not in the beginning. Each part is encoded once in a step.
    pub(super) fn encode_part(
        &mut self,
        codec: &Codec,
        step: Step,
        gradient: Gradient<'_>,
        part: Range<usize>,
        words: &mut Vec<u32>,
    ) -> Stats {
        let unit = codec.unit();
        match &mut self.place {
            Place::Cpu { state, .. } => {
                words.resize(codec.packet_words(part.len()), 0);
                // As in `packet`.
                let first = (part.start / unit.elements * unit.state_words).min(state.len());
                let state = &mut state[first..][..codec.state_words(part.len())];
                codec.encode(step, gradient.slice(part), state, words)
            }
            #[cfg(feature = "gpu")]
            Place::Gpu { .. } => {
                words.clear();
                words.extend_from_slice(self.packet(codec, &part));
                Stats::default()
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

    /// Whether [`Self::average_part`] can take the place of [`Self::average_received`].
    pub(super) fn averages_in_parts(&self, codec: &Codec) -> bool {
        match &self.place {
            Place::Cpu { .. } => codec.averages_in_parts(),
            #[cfg(feature = "gpu")]
            Place::Gpu { .. } => false,
        }
    }

    /// Makes room for packets of this many words, one from each rank, that come in parts.
    pub(super) fn expect(&mut self, words: usize) {
        self.received.iter_mut().for_each(|packet| packet.resize(words, 0));
    }

    /// Puts words of the packet of `rank` where they belong, from the word `first` on.
    pub(super) fn receive(&mut self, rank: usize, first: usize, words: &[u32]) {
        self.received[rank][first..first + words.len()].copy_from_slice(words);
    }

    /// The words of the received packets, by rank.
    #[cfg(feature = "gpu")]
    pub(super) fn received(&self) -> Vec<&[u32]> {
        self.received.iter().map(Vec::as_slice).collect()
    }

    /// The weighted mean of the elements `part` of a shard of `shard`, from the words of each rank, into `mean`. Each part is
    /// averaged once in a step.
    pub(super) fn average_part(
        &mut self,
        codec: &Codec,
        words: &[&[u32]],
        weights: &[u32],
        shard: usize,
        part: Range<usize>,
        mean: &mut [f32],
    ) -> Result<(), SyncError> {
        match &mut self.place {
            Place::Cpu { mean_state, .. } => {
                Ok(codec.average_part(words, weights, mean_state, shard, part, mean)?)
            }
            #[cfg(feature = "gpu")]
            Place::Gpu { .. } => unreachable!("a device averages whole packets, and says so"),
        }
    }

    /// The weighted mean of `packets`, which are known to fit the shard, into `mean`.
    pub(super) fn average(
        &mut self,
        codec: &Codec,
        packets: &[Bytes],
        weights: &[u32],
        mean: &mut [f32],
    ) -> Result<(), SyncError> {
        for (words, packet) in self.received.iter_mut().zip(packets) {
            read_words(body(packet), words);
        }
        self.average_received(codec, weights, mean)
    }

    /// The same of the packets that came in parts.
    pub(super) fn average_received(
        &mut self,
        codec: &Codec,
        weights: &[u32],
        mean: &mut [f32],
    ) -> Result<(), SyncError> {
        let packets: Vec<&[u32]> = self.received.iter().map(Vec::as_slice).collect();
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

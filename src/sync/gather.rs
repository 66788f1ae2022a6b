//! The parameters of every shard to every rank.

use std::ops::Range;

use bytes::Bytes;
use gradwire_transport::{Cut, ExchangeError, Operation, Pieces, Rank};

use super::packet::write_words;
use super::shares::Timed;
use super::{PARAMETERS, StepReport, SyncError, Synchronizer, hierarchy};
use crate::codec::Step;

/// Parameters on their way: those of the own shard out of one buffer, others as they come to where they belong.
struct Gather<'a> {
    own: Bytes,
    /// Where the shards are in `parameters`.
    shards: &'a [Range<usize>],
    parameters: &'a mut [f32],
}

impl Pieces for Gather<'_> {
    type Error = ExchangeError;

    fn make(&mut self, _: Rank, range: Range<u64>) -> Result<Bytes, ExchangeError> {
        Ok(self.own.slice(bounded(range.start)..bounded(range.end)))
    }

    fn take(&mut self, from: Rank, offset: u64, bytes: Bytes) -> Result<(), ExchangeError> {
        // Inside, because it is a piece of a message of the expected length, cut at whole parameters.
        let start = bounded(offset / 4);
        if let Some(part) = self.parameters[self.shards[from.index()].clone()].get_mut(start..) {
            read(&bytes, part);
        }
        Ok(())
    }
}

impl Synchronizer {
    /// Sends the master parameters of the own shard, and writes those of all shards into `parameters`.
    pub(super) fn gather(
        &mut self,
        step: Step,
        parameters: &mut [f32],
        report: &mut StepReport,
    ) -> Result<(), SyncError> {
        let mut buffer = std::mem::take(&mut self.sent).try_into_mut().unwrap_or_default();
        buffer.resize(4 * self.parts.master.len(), 0);
        write_words(self.parts.master.iter().map(|value| value.to_bits()), &mut buffer);
        let own = buffer.freeze();
        let shards: Vec<Range<usize>> = self.parts.layout.ranges().collect();
        let expected: Vec<u64> = shards.iter().map(|shard| 4 * shard.len() as u64).collect();
        if let Some(sites) = &self.sites {
            let came = hierarchy::gather(&mut self.communicator, sites, step, &own, &expected, report)?;
            for (shard, bytes) in shards.into_iter().zip(&came) {
                read(bytes, &mut parameters[shard]);
            }
        } else {
            let lengths = vec![own.len() as u64; expected.len()];
            report.parameter_packet_bytes = own.len() as u64 * (expected.len() as u64 - 1);
            let rank = self.communicator.world().rank().index();
            parameters[shards[rank].clone()].copy_from_slice(&self.parts.master);
            let operation = Operation { step: step.get(), tag: PARAMETERS };
            let mut gather = Gather { own: own.clone(), shards: &shards, parameters };
            let mut timed = Timed::new(&mut gather, &mut self.arrivals);
            self.communicator.stream(operation, &lengths, &expected, self.cut, &mut timed)?;
            timed.finish();
        }
        self.sent = own;
        Ok(())
    }
}

/// Pieces of about `piece_bytes`, of whole parameters.
pub(super) fn cut(piece_bytes: usize) -> Cut {
    Cut::every(piece_bytes.clamp(4, gradwire_transport::frame::MAX_PAYLOAD) / 4 * 4)
}

/// `bytes` as parameters, as far as there are any.
fn read(bytes: &[u8], parameters: &mut [f32]) {
    for (value, bytes) in parameters.iter_mut().zip(bytes.as_chunks().0) {
        *value = f32::from_le_bytes(*bytes);
    }
}

/// A length that is known to be in the address space.
fn bounded(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

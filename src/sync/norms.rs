//! Numbers of whole tensors, for an optimizer that looks at them: every owner says what its part contributes.
//!
//! **Wire layout**: one all-gather per step, for each tensor with a part in the sender's shard, in order, one or two f64
//! (see [`optim::Partials`](crate::optim::Partials)), little-endian. All ranks receive the same bytes and combine them in
//! rank order, so that all have the same numbers to the bit.

use bytes::Bytes;
use gradwire_transport::Operation;

use super::packet::PacketError;
use super::{SyncError, Synchronizer};
use crate::codec::Step;
use crate::optim::Partials;

impl Synchronizer {
    /// The optimizer's step, between whose halves every owner tells the others of its parts of tensors; false, and nothing
    /// done, for an optimizer whose shards need nothing of each other.
    pub(super) fn step_by_tensors(&mut self, step: Step, learning_rate: f32) -> Result<bool, SyncError> {
        let Some(optimizer) = self.parts.optimizer.by_tensors() else { return Ok(false) };
        let counts: Vec<usize> =
            self.parts.layout.ranges().map(|range| optimizer.partials_of(&range)).collect();
        let own = optimizer.partials(&self.parts.mean, &self.parts.master);
        let expected: Vec<u64> = counts.iter().map(|count| 8 * *count as u64).collect();
        let operation = Operation { step: step.get(), tag: super::NORMS };
        let all = self.communicator.all_gather(operation, encode(&own.values), &expected)?;
        let ranks = self.communicator.world().ranks();
        let shards = self.parts.layout.ranges().zip(counts);
        let partials = ranks.zip(shards).zip(&all).map(|((rank, (range, count)), bytes)| {
            let refuse = |source| SyncError::Packet { rank, step: step.get(), source };
            decode(bytes, self.tensors.within(&range), count).map_err(refuse)
        });
        let partials: Vec<Partials> = partials.collect::<Result<_, _>>()?;
        optimizer.apply(learning_rate, &partials, &mut self.parts.master);
        Ok(true)
    }
}

/// `values` as they travel.
fn encode(values: &[f64]) -> Bytes {
    values.iter().flat_map(|value| value.to_bits().to_le_bytes()).collect()
}

/// The `values` of the owner whose shard has parts of `tensors`.
fn decode(bytes: &[u8], tensors: std::ops::Range<usize>, values: usize) -> Result<Partials, PacketError> {
    let (words, []) = bytes.as_chunks::<8>() else {
        return Err(PacketError::Length { have: bytes.len(), need: 8 * values });
    };
    if words.len() != values {
        return Err(PacketError::Length { have: bytes.len(), need: 8 * values });
    }
    let values = words.iter().map(|word| {
        let found = f64::from_bits(u64::from_le_bytes(*word));
        if found.is_finite() && found >= 0.0 { Ok(found) } else { Err(PacketError::Norm { found }) }
    });
    Ok(Partials { tensors, values: values.collect::<Result<_, _>>()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_as_they_were_sent_and_others_are_refused() {
        let values = vec![0.0, 1.5, f64::MAX];
        let bytes = encode(&values);
        assert_eq!(decode(&bytes, 4..7, 3), Ok(Partials { tensors: 4..7, values }));
        assert_eq!(decode(&bytes[..23], 4..7, 3), Err(PacketError::Length { have: 23, need: 24 }));
        assert_eq!(decode(&bytes, 4..6, 2), Err(PacketError::Length { have: 24, need: 16 }));
        assert_eq!(decode(&encode(&[-1.0]), 0..1, 1), Err(PacketError::Norm { found: -1.0 }));
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert!(matches!(decode(&encode(&[bad]), 0..1, 1), Err(PacketError::Norm { .. })), "{bad}");
        }
    }
}

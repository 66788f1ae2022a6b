//! What the ranks say in the packets of one exchange.

use bytes::Bytes;
use gradwire_transport::Rank;

use super::SyncError;
use super::packet::{Form, Header, PacketError, body, nonfinite};
use crate::codec::Step;

/// A float that is not finite: whose packet it is in, which word, and what is there.
pub(super) type Lie = (Rank, usize, f32);

/// The headers of what ranks sent, each of which must be of its form, with finite floats unless one of them says otherwise.
pub(super) fn headers<'a>(
    step: Step,
    packets: impl Iterator<Item = (usize, &'a Bytes, Form)>,
) -> Result<Vec<Header>, SyncError> {
    // A world has at most 4,096 ranks.
    let packets =
        packets.map(|(rank, packet, form)| (Rank(u32::try_from(rank).unwrap_or(u32::MAX)), packet, form));
    let packets: Vec<_> = packets.collect();
    let headers = packets.iter().map(|(rank, packet, form)| {
        let refuse = |source| SyncError::Packet { rank: *rank, step: step.get(), source };
        Header::decode(packet, *form).map_err(refuse)
    });
    let headers: Vec<Header> = headers.collect::<Result<_, _>>()?;
    check_finite(step, &headers, || {
        packets.iter().find_map(|(rank, packet, form)| {
            let (word, found) = nonfinite(form.codec, form.elements, body(packet))?;
            Some((*rank, word, found))
        })
    })?;
    Ok(headers)
}

/// Refuses what `find` finds, the first float in a packet that is not finite, unless a header counts an element that is not:
/// then no mean is made of the packets, and whose floats these are does not matter.
///
/// Only codecs that send floats as they are can be lied with so. Their mean would be NaN, and the owner of the shard would
/// be taken for the one who made it so.
pub(super) fn check_finite(
    step: Step,
    headers: &[Header],
    find: impl FnOnce() -> Option<Lie>,
) -> Result<(), SyncError> {
    if headers.iter().any(|header| header.nonfinite > 0) {
        return Ok(());
    }
    find().map_or(Ok(()), |(rank, index, found)| {
        let source = PacketError::Magnitude { index, found, limit: f32::MAX };
        Err(SyncError::Packet { rank, step: step.get(), source })
    })
}

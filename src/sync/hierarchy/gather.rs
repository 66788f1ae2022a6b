//! Rounds 3 and 4: the parameters of every shard to every rank.

use bytes::Bytes;
use gradwire_transport::{Communicator, Operation};

use super::Sites;
use super::exchange::bytes_to_others;
use crate::codec::Step;
use crate::sync::{PARAMETERS, RELAYED, StepReport, SyncError, bytes_to_peers};

/// Sends `shard`, of which that of owner r has `lengths[r]` bytes, and returns those of all, by owner.
pub(in crate::sync) fn gather(
    communicator: &mut Communicator,
    sites: &Sites,
    step: Step,
    shard: &Bytes,
    lengths: &[u64],
    report: &mut StepReport,
) -> Result<Vec<Bytes>, SyncError> {
    let own = communicator.world().rank().index();
    let mut round = |tag, outgoing: Vec<Bytes>, expected: &[u64]| {
        report.parameter_packet_bytes += bytes_to_peers(&outgoing, own);
        report.wan_packet_bytes += bytes_to_others(sites, &outgoing, own);
        communicator.all_to_all(Operation { step: step.get(), tag }, outgoing, expected)
    };
    let to = |rank| if sites.hears(rank, own) { shard.clone() } else { Bytes::new() };
    let from = |owner: usize| if sites.hears(own, owner) { lengths[owner] } else { 0 };
    let ranks = 0..sites.ranks();
    let expected: Vec<u64> = ranks.clone().map(from).collect();
    let mut shards = round(PARAMETERS, ranks.clone().map(to).collect(), &expected)?;

    let relayed: Vec<u8> = sites.relayed(own).flat_map(|owner| shards[owner].to_vec()).collect();
    let relayed = Bytes::from(relayed);
    let is_mate = |rank: usize| sites.of(rank) == sites.of(own);
    let to = |rank| if is_mate(rank) { relayed.clone() } else { Bytes::new() };
    let from = |rank| if is_mate(rank) { sites.relayed(rank).map(|owner| lengths[owner]).sum() } else { 0 };
    let expected: Vec<u64> = ranks.clone().map(from).collect();
    let received = round(RELAYED, ranks.map(to).collect(), &expected)?;
    for mate in sites.members(own).iter().filter(|mate| **mate != own) {
        let mut rest = received[*mate].clone();
        for owner in sites.relayed(*mate) {
            // As long as it was expected to be.
            shards[owner] = rest.split_to(usize::try_from(lengths[owner]).unwrap_or(usize::MAX));
        }
    }
    Ok(shards)
}

//! A rank whose packets hold floats that are not finite, although it counts none: its mean would be NaN on the owner.
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "common/recorded.rs"]
mod recorded;

use gradwire::codec::Codec;
use gradwire::optim;
use gradwire::sync::{Config, SyncError, Synchronizer};
use gradwire::transport::Rank;
use recorded::{Change, recorded};

const LIAR: Rank = Rank(1);
const ELEMENTS: usize = 100;
const HEADER: usize = gradwire::sync::packet::HEAD_BYTES;
const TAIL: usize = gradwire::sync::packet::TAIL_BYTES;

/// What each rank says of a step in which `change` happens to packets on their way.
fn errors(codec: Codec, sites: &[u32], change: Change) -> Vec<SyncError> {
    let (errors, record) = recorded(4, change, |_, communicator| {
        let optimizer = optim::Config::OneBitLamb(optim::OneBitLamb::default());
        let sites = sites.to_vec();
        let config = Config { sites, inner: codec, ..Config::new(codec, optimizer) };
        let mut parameters = vec![0.5; ELEMENTS];
        let mut synchronizer = Synchronizer::new(communicator, config, &parameters).unwrap();
        synchronizer.step(&[0.25_f32; ELEMENTS], 1, 0.125, &mut parameters).unwrap_err()
    });
    let told = record.iter().any(|sent| (sent.from, sent.to) == (1, 0) && sent.payload > HEADER as u64 + 8);
    assert!(told, "no packet to lie in: {record:?}");
    errors
}

#[test]
fn floats_that_nobody_counted_are_their_senders_fault_on_every_rank() {
    // A NaN or infinity in the packet for rank 0: in the exchange of all ranks, then inside a site.
    let flat: Change = |sent, payload| {
        if (sent.from, sent.to, sent.step, sent.tag) == (1, 0, 1, 2) && sent.payload > TAIL as u64 {
            // As f32 a NaN; as bf16 the largest number, then minus infinity; as f16 two NaNs.
            payload[HEADER + 4..HEADER + 8].copy_from_slice(&0xFF80_7F7F_u32.to_le_bytes());
        }
    };
    let within: Change = |sent, payload| {
        if (sent.from, sent.to, sent.step, sent.tag) == (1, 0, 1, 0) {
            payload[HEADER + 4..HEADER + 8].fill(0xFF);
        }
    };
    for codec in ["f32", "f16", "bf16"].map(|name| name.parse().unwrap()) {
        for (sites, change) in [(&[][..], flat), (&[0, 0, 1, 1], within), (&[0, 2, 2, 0], flat)] {
            for (rank, error) in (0..).map(Rank).zip(errors(codec, sites, change)) {
                let text = error.to_string();
                assert_eq!(error.culprit(rank), Some(LIAR), "{codec}, sites {sites:?}: {text}");
                assert!(text.contains("word 1 is "), "{codec}, sites {sites:?}: {text}");
            }
        }
    }
}

#[test]
fn what_fills_the_last_word_up_is_no_float() {
    // Rank 1 owns 7 of 15 elements.
    let change: Change = |sent, payload| {
        if (sent.from, sent.to, sent.step, sent.tag) == (0, 1, 1, 2) && sent.payload > TAIL as u64 {
            assert_eq!(payload.len(), HEADER + 16, "head and words of a packet of 7 elements");
            payload[HEADER + 14..].fill(0xFF);
        }
    };
    let (results, _) = recorded(2, change, |_, communicator| {
        let config = Config::new(Codec::Bf16, optim::Config::Sgd(optim::Sgd::default()));
        let mut parameters = vec![0.5; 15];
        let mut synchronizer = Synchronizer::new(communicator, config, &parameters).unwrap();
        synchronizer.step(&[0.25_f32; 15], 1, 0.125, &mut parameters).map(|_| parameters)
    });
    assert!(results.iter().all(Result::is_ok), "{results:?}");
}

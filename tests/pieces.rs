//! Packets in pieces: encoded, carried and averaged segment by segment, in any order, with the bits of the whole.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

#[path = "common/fleet.rs"]
mod fleet;
#[path = "common/random.rs"]
mod random;

use std::thread;
use std::time::Duration;

use fleet::fleet;
use gradwire::codec::{AverageError, Codec, CodecId, Gradient, Step};
use gradwire::optim;
use gradwire::sync::{Checkpoint, Config, NonFinite, Scale, SyncError, Synchronizer};
use gradwire::transport::sim::{self, SimConfig};
use gradwire::transport::{Communicator, Limits};
use half::{bf16, f16};
use random::Random;

const SEED: u64 = 0x7069_6563_6573;

fn codecs() -> Vec<Codec> {
    let others = [
        "ef21:momentum_log2=2",
        "topk:chunk=64,k=16,contributors=1",
        "topk:chunk=64,k=16,clip=1",
        "topk:chunk=64,k=5,residual_bits=8",
        "sign:block=64,reset_every=3",
        "loco-block:bits=2,block=40,reset_every=2",
    ];
    let mut codecs: Vec<Codec> = CodecId::ALL.into_iter().map(Codec::new).collect();
    codecs.extend(others.map(|text| text.parse::<Codec>().unwrap()));
    // Where these gradients have codes that are neither all 0 nor all clamped.
    codecs.iter_mut().for_each(|codec| codec.set_scale_log2(4));
    codecs
}

fn gradient(rank: u32, step: u64, n: usize) -> Vec<f32> {
    let mut random = Random(SEED ^ (u64::from(rank) << 32) ^ step);
    (0..n).map(|_| random.unit() as f32 * 0.25).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Ranges of up to `most` units that tile `elements`.
fn parts(codec: &Codec, elements: usize, seed: u64) -> Vec<std::ops::Range<usize>> {
    let (mut random, mut start, mut parts) = (Random(seed), 0, Vec::new());
    while start < elements {
        let end = elements.min(start + codec.unit().elements * (1 + random.below(3) as usize));
        parts.push(start..end);
        start = end;
    }
    parts
}

#[test]
fn a_gradient_encoded_in_parts_gives_the_words_state_and_counts_of_the_whole_in_every_type() {
    for codec in codecs() {
        let unit = codec.unit();
        for n in [1, unit.elements - 1, unit.elements + 1, 7 * unit.elements + 5] {
            let mut values = gradient(0, 1, n);
            values[n / 2] = f32::NAN;
            let halves: Vec<f16> = values.iter().map(|value| f16::from_f32(*value)).collect();
            let brains: Vec<bf16> = values.iter().map(|value| bf16::from_f32(*value)).collect();
            for input in [Gradient::F32(&values), Gradient::F16(&halves), Gradient::Bf16(&brains)] {
                let mut whole = (vec![0; codec.state_words(n)], vec![0; codec.packet_words(n)]);
                let mut pieces = whole.clone();
                // The last of them meets a state that is not zero, and a reset.
                for step in (1..=3).filter_map(Step::new) {
                    let counted = codec.encode(step, input, &mut whole.0, &mut whole.1);
                    let mut sum = gradwire::codec::Stats::default();
                    for part in parts(&codec, n, step.get()).into_iter().rev() {
                        let first = part.start / unit.elements;
                        let state = first * unit.state_words..;
                        let state = &mut pieces.0[state][..codec.state_words(part.len())];
                        let words = &mut pieces.1[first * unit.words..][..codec.packet_words(part.len())];
                        sum += codec.encode(step, input.slice(part), state, words);
                    }
                    assert_eq!((sum, &pieces), (counted, &whole), "{n} of {codec}, {:?}", input.input());
                }
            }
        }
    }
}

#[test]
fn a_mean_in_parts_has_the_bits_of_the_whole_where_the_codec_says_so() {
    let mut whole_only = Vec::new();
    for codec in codecs() {
        let (unit, ranks, weights) = (codec.unit(), 4, [3, 0, 7, 1]);
        let n = 7 * unit.elements + 5;
        let mut states = vec![vec![0; codec.state_words(n)]; ranks];
        let mut whole = (vec![0; codec.mean_state_words(ranks, n)], vec![0.0; n]);
        let mut pieces = whole.clone();
        for step in (1..=3).filter_map(Step::new) {
            let packet = |(rank, state): (u32, &mut Vec<u32>)| {
                let mut packet = vec![0; codec.packet_words(n)];
                // One is far larger than the others, each here and there by another factor.
                let mut gradient = gradient(rank, step.get(), n);
                let places = gradient.iter_mut().enumerate();
                places
                    .for_each(|(at, value)| *value *= if rank == 2 { (2 + at * 7 / n) as f32 } else { 1.0 });
                codec.encode(step, (&gradient).into(), state, &mut packet);
                packet
            };
            let packets: Vec<Vec<u32>> = (0..).zip(&mut states).map(packet).collect();
            let all: Vec<&[u32]> = packets.iter().map(Vec::as_slice).collect();
            codec.average(&all, &weights, &mut whole.0, &mut whole.1).unwrap();
            for part in parts(&codec, n, step.get()).into_iter().rev() {
                let first = part.start / unit.elements * unit.words;
                let words = first..first + codec.packet_words(part.len());
                let packets: Vec<&[u32]> = packets.iter().map(|packet| &packet[words.clone()]).collect();
                let mean = &mut pieces.1[part.clone()];
                codec.average_part(&packets, &weights, &mut pieces.0, n, part, mean).unwrap();
            }
            let same = bits(&pieces.1) == bits(&whole.1) && pieces.0 == whole.0;
            if codec.averages_in_parts() {
                assert!(same, "{codec}, {step}");
            } else if !same {
                whole_only.push(codec);
            }
        }
    }
    whole_only.dedup();
    let clipping = codecs().into_iter().filter(|codec| !codec.averages_in_parts());
    assert_eq!(whole_only, clipping.collect::<Vec<_>>(), "those that say they need it do");
}

#[test]
fn what_is_malformed_in_a_part_is_told_by_its_unit_in_the_shard() {
    let codec: Codec = "topk:chunk=64,k=16".parse().unwrap();
    let part = 3 * 64..5 * 64;
    let mut words = vec![0; codec.packet_words(part.len())];
    codec.encode(Step::FIRST, (&gradient(0, 1, part.len())).into(), &mut vec![0; part.len()], &mut words);
    let good = words.clone();
    let last = words.len() - 1;
    words[last] = u32::MAX;
    let mut mean = vec![0.0; part.len()];
    let error = codec.average_part(&[&good, &words], &[1, 1], &mut [], 6 * 64, part, &mut mean).unwrap_err();
    assert!(matches!(error, AverageError::Malformed { index: 1, unit: 4, .. }), "{error:?}");
}

fn config(codec: Codec, piece_bytes: usize) -> Config {
    let optimizer = optim::Config::AdamW(optim::AdamW::default());
    Config { piece_bytes, scale: Scale::Fixed, ..Config::new(codec, optimizer) }
}

/// What a run left on one rank.
type Left = (Vec<u32>, Checkpoint);

/// Steps of which `bad` has elements that are not finite in the gradient of rank 1, at these places.
fn steps(communicator: Communicator, config: Config, n: usize, bad: &[usize]) -> Result<Left, SyncError> {
    let rank = communicator.world().rank().0;
    let mut parameters = gradient(99, 0, n);
    let mut synchronizer = Synchronizer::new(communicator, config, &parameters)?;
    for step in 1..=4 {
        let mut gradient = gradient(rank, step, n);
        if step == 2 && rank == 1 {
            bad.iter().for_each(|at| gradient[*at] = f32::INFINITY);
        }
        let report = synchronizer.step(&gradient, [3, 0, 7, 1, 12][rank as usize], 0.125, &mut parameters)?;
        assert_eq!(report.skipped, step == 2 && !bad.is_empty(), "step {step}");
    }
    let checkpoint = synchronizer.checkpoint()?;
    synchronizer.finish()?;
    Ok((bits(&parameters), checkpoint))
}

/// The same over links where pieces overtake each other.
fn over_links(world_size: u32, seed: u64, link: &str, config: &Config, n: usize) -> Vec<Left> {
    let link =
        SimConfig { link: link.parse().unwrap(), silence: Duration::from_secs(10), seed, faults: Vec::new() };
    let meshes = sim::mesh(world_size, 0, &link);
    let ranks: Vec<_> = meshes
        .into_iter()
        .map(|mesh| {
            let (mesh, config) = (Box::new(mesh), config.clone());
            let run = move || steps(Communicator::new(mesh, Limits::default()), config, n, &[]).unwrap();
            thread::Builder::new().stack_size(1 << 20).spawn(run).unwrap()
        })
        .collect();
    ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
}

#[test]
fn neither_pieces_nor_their_order_change_a_bit_of_parameters_or_state() {
    let links = [
        (5, "1Gbit,1ms,10%,reorder=50%,jitter=1ms"),
        (3, "10Mbit,30ms,2%,reorder=20%"),
        (2, "100Mbit,20ms,0%,jitter=5ms"),
        (1, "1Gbit,1ms,0%"),
    ];
    // Each codec over one of the links, in turn: what a codec does does not depend on the line.
    for (codec, (world_size, link)) in codecs().into_iter().zip(links.iter().copied().cycle()) {
        let units = if codec.unit().elements < 1000 { 61 } else { 7 };
        let n = units * codec.unit().elements + 3;
        let whole = |_, communicator| steps(communicator, config(codec, 1 << 20), n, &[]).unwrap();
        let whole = fleet(world_size, whole);
        let unit = 4 * codec.unit().words;
        for piece_bytes in [0, 2 * unit] {
            let pieces = |_, communicator| steps(communicator, config(codec, piece_bytes), n, &[]).unwrap();
            assert_eq!(fleet(world_size, pieces), whole, "{world_size} ranks, {piece_bytes}, {codec}");
        }
        let left = over_links(world_size, SEED, link, &config(codec, 0), n);
        assert_eq!(left, whole, "{world_size} ranks, {link}, {codec}");
    }
}

#[test]
fn a_gradient_that_is_not_finite_anywhere_leaves_every_state_as_whole_packets_do() {
    for codec in codecs() {
        let n = 11 * codec.unit().elements + 3;
        // In the first and last piece of the first and last shard, and in the middle, which is rank 1's own.
        for bad in [vec![0], vec![n - 1], vec![n / 2], vec![n / 3 - 1], vec![2 * n / 3 + 1], vec![0, n - 1]] {
            let run = |piece_bytes| {
                let config = Config { nonfinite: NonFinite::Skip, ..config(codec, piece_bytes) };
                fleet(3, |_, communicator| steps(communicator, config.clone(), n, &bad).unwrap())
            };
            assert_eq!(run(0), run(1 << 20), "{bad:?} of {n}, {codec}");
        }
    }
}

#[test]
fn ranks_that_cut_otherwise_are_named_before_the_first_step() {
    let errors = fleet(2, |rank, communicator| {
        let config = config(Codec::F32, 1000 + rank as usize);
        Synchronizer::new(communicator, config, &[0.0; 9]).map(|_| ()).unwrap_err().to_string()
    });
    assert!(errors[0].contains("rank 1 has bytes of a piece 1001, ours is 1000"), "{errors:?}");
}

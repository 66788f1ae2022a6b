//! Synchronised steps over the in-process mesh, against a reference that knows neither shards nor ranks.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

#[path = "common/fleet.rs"]
mod fleet;
#[path = "common/random.rs"]
mod random;

use fleet::fleet;
use gradwire::codec::{Codec, CodecId, Step, loco};
use gradwire::optim;
use gradwire::shard::ShardLayout;
use gradwire::sync::{Config, NonFinite, Scale, StepReport, SyncError, Synchronizer};
use gradwire::transport::Rank;
use random::Random;

const SEED: u64 = 0x6772_6164_7769_7265;

fn gradient(rank: u32, step: u64, n: usize) -> Vec<f32> {
    let mut random = Random(SEED ^ (u64::from(rank) << 32) ^ step);
    (0..n).map(|_| random.unit() as f32 * 0.25).collect()
}

fn samples(rank: u32) -> u32 {
    [3, 0, 7, 1, 12, 5, 2][rank as usize]
}

fn initial(n: usize) -> Vec<f32> {
    let mut random = Random(SEED);
    (0..n).map(|_| random.unit() as f32).collect()
}

fn loco_config() -> loco::Config {
    loco::Config { scale_log2: 4, reset_every: std::num::NonZeroU32::new(3), ..loco::Config::default() }
}

fn fixed() -> Codec {
    Codec::Loco(loco_config())
}

/// Every codec of this build with its default parameters, LoCo with a scale for these gradients, and others that keep or
/// compute what the defaults don't.
fn codecs() -> Vec<Codec> {
    let others = [
        "ef21:momentum_log2=2",
        "topk:chunk=64,k=16,contributors=1,clip=1",
        "sign:block=64,reset_every=3",
        "loco-block:bits=2,block=40,reset_every=2",
    ];
    let others = others.map(|text| text.parse().unwrap());
    CodecId::ALL.into_iter().map(Codec::new).chain([fixed()]).chain(others).collect()
}

fn config(codec: Codec) -> Config {
    let optimizer = optim::Config::AdamW(optim::AdamW::default());
    Config { scale: Scale::Fixed, ..Config::new(codec, optimizer) }
}

fn automatic() -> Config {
    Config { scale: Scale::Auto, ..config(fixed()) }
}

/// `steps` steps on every rank; the last parameters' bits and all reports, by rank.
fn train(
    world_size: u32,
    n: usize,
    steps: u64,
    configs: impl Fn(u32) -> Config + Sync,
) -> Vec<(Vec<u32>, Vec<StepReport>)> {
    fleet(world_size, |rank, communicator| {
        let mut parameters = initial(n);
        let mut synchronizer = Synchronizer::new(communicator, configs(rank), &parameters).unwrap();
        let step = |step| {
            synchronizer.step(&gradient(rank, step, n), samples(rank), 0.125, &mut parameters).unwrap()
        };
        let reports = (1..=steps).map(step).collect();
        synchronizer.finish().unwrap();
        (bits(&parameters), reports)
    })
}

/// Elements of the gradient of rank 1 that are not finite in the step `bad`.
fn poison(gradient: &mut [f32], rank: u32, step: u64, bad: Option<u64>) -> u64 {
    if rank != 1 || Some(step) != bad {
        return 0;
    }
    // In the first shard and in the last one.
    for (at, value) in [(0, f32::NAN), (gradient.len() / 2, f32::INFINITY), (gradient.len() - 1, f32::NAN)] {
        gradient[at] = value;
    }
    gradient.iter().filter(|value| !value.is_finite()).count() as u64
}

/// The same training without ranks, shards or packets: whole gradients, one after the other. In step `bad` rank 1 has a
/// gradient that is not finite: what is sent is sent, and no optimizer step follows. Only a mean that clips needs to know
/// where shards begin.
fn reference(
    world_size: u32,
    n: usize,
    steps: u64,
    codec: Codec,
    optimizer: optim::Config,
    bad: Option<u64>,
) -> Vec<u32> {
    let mut parameters = initial(n);
    let mut states = vec![vec![0; codec.state_words(n)]; world_size as usize];
    let mut mean_state = vec![0; codec.mean_state_words(world_size as usize, n)];
    let mut optimizer = optimizer.state(n);
    let clips = codec.parameters().iter().any(|parameter| parameter.name == "clip" && parameter.value == 1);
    let weights: Vec<u32> = (0..world_size).map(samples).collect();
    for step in 1..=steps {
        let mut poisoned = 0;
        let packets: Vec<Vec<u32>> = (0..world_size)
            .map(|rank| {
                let mut packet = vec![0; codec.packet_words(n)];
                let state = &mut states[rank as usize];
                let mut gradient = gradient(rank, step, n);
                poisoned += poison(&mut gradient, rank, step, bad);
                codec.encode(Step::new(step).unwrap(), (&gradient).into(), state, &mut packet);
                packet
            })
            .collect();
        let packets: Vec<&[u32]> = packets.iter().map(Vec::as_slice).collect();
        let mut mean = vec![0.0; n];
        if clips {
            // Norms are those of a shard.
            for shard in ShardLayout::new(n, world_size as usize, codec.unit().elements).ranges() {
                let start = codec.packet_words(shard.start);
                let words = start..start + codec.packet_words(shard.len());
                let packets: Vec<&[u32]> = packets.iter().map(|packet| &packet[words.clone()]).collect();
                codec.average(&packets, &weights, &mut [], &mut mean[shard]).unwrap();
            }
        } else {
            codec.average(&packets, &weights, &mut mean_state, &mut mean).unwrap();
        }
        if poisoned == 0 {
            optimizer.step(0.125, &mean, &mut parameters);
        }
    }
    bits(&parameters)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn every_rank_has_the_bits_of_a_run_without_ranks() {
    let sgd = optim::Config::Sgd(optim::Sgd::default());
    for codec in codecs() {
        // Around a byte, a word and a unit; and one long enough for every rank to have several units of most codecs.
        let lengths = [1, 9, 257, 1000, 5003, 2 * codec.unit().elements + 1];
        for (index, n) in lengths.into_iter().enumerate() {
            for world_size in [1, 2, 3, 5, 7] {
                let optimizer = if index % 2 == 0 { config(codec).optimizer } else { sgd };
                let steps = if n < 5000 { 4 } else { 2 };
                let expected = reference(world_size, n, steps, codec, optimizer, None);
                let ranks = train(world_size, n, steps, |_| Config { optimizer, ..config(codec) });
                for (rank, (parameters, _)) in ranks.iter().enumerate() {
                    assert_eq!(
                        *parameters, expected,
                        "rank {rank} of {world_size}, {n} parameters, {codec:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn reports_count_bytes_saturated_codes_and_resets() {
    let (world_size, n) = (3, 1000);
    let coarse = Codec::Loco(loco::Config { scale_log2: 6, ..loco_config() });
    for (rank, (_, reports)) in train(world_size, n, 3, |_| config(coarse)).into_iter().enumerate() {
        for report in &reports {
            // 125 groups over 3 ranks: 42, 42, 41; two headers of 32 bytes to peers.
            let words = 125 - [42, 42, 41][rank];
            assert_eq!(report.gradient_packet_bytes, 4 * words + 64, "rank {rank}");
            assert_eq!(report.parameter_packet_bytes, 2 * 4 * 8 * [42, 42, 41][rank], "rank {rank}");
            assert!(
                report.frame_bytes > report.gradient_packet_bytes + report.parameter_packet_bytes,
                "{report:?}"
            );
            assert_eq!(report.scale_log2, Some(6));
            assert_eq!(report.nonfinite, [0; 3]);
            // Uniform in +-16 codes: about half are clamped, on every rank, and every rank knows it.
            assert!(report.saturated.iter().all(|count| (300..700).contains(count)), "{report:?}");
        }
        let resets: Vec<bool> = reports.iter().map(|report| report.reset).collect();
        assert_eq!(resets, [false, false, true]);
    }
}

#[test]
fn an_automatic_scale_is_the_same_on_every_rank_and_puts_the_root_mean_square_at_two_codes() {
    let ranks = train(3, 501, 2, |_| automatic());
    // Uniform in +-1/4 has a root mean square of 0.144: times 2^4 = 2.3 codes.
    for (parameters, reports) in &ranks {
        assert_eq!(reports.iter().map(|r| r.scale_log2).collect::<Vec<_>>(), [Some(4); 2]);
        assert_eq!(*parameters, reference(3, 501, 2, fixed(), automatic().optimizer, None));
    }
}

#[test]
fn the_automatic_scale_waits_for_the_first_gradient_that_is_not_zero() {
    // Half of the elements 0.5: the root mean square times 2^3 is 2 * sqrt(2), exactly on the bound.
    let scales = fleet(2, |rank, communicator| {
        let mut parameters = initial(9);
        let mut synchronizer = Synchronizer::new(communicator, automatic(), &parameters).unwrap();
        let gradients = [[0.0; 9], [if rank == 0 { 0.5 } else { 0.0 }; 9], [1.0; 9]];
        gradients.map(|gradient| synchronizer.step(&gradient, 1, 0.1, &mut parameters).unwrap().scale_log2)
    });
    assert_eq!(scales, [[None, Some(3), Some(3)]; 2]);
}

#[test]
fn ranks_with_an_automatic_scale_need_not_have_the_same_one_in_their_configuration() {
    let scales = fleet(2, |rank, communicator| {
        let scale_log2 = if rank == 0 { 19 } else { 100 };
        let codec = Codec::Loco(loco::Config { scale_log2, ..loco_config() });
        let mut parameters = initial(9);
        let mut synchronizer =
            Synchronizer::new(communicator, Config { scheme: codec.into(), ..automatic() }, &parameters)
                .unwrap();
        // Zero first: until a scale is agreed on, packets carry one that nobody has chosen.
        [[0.0; 9], [0.5; 9]]
            .map(|gradient| synchronizer.step(&gradient, 1, 0.1, &mut parameters).unwrap().scale_log2)
    });
    assert_eq!(scales, [[None, Some(2)]; 2]);
}

#[test]
fn a_gradient_that_is_not_finite_is_the_same_error_on_every_rank_and_no_rank_takes_the_step() {
    for (codec, bad) in [(fixed(), f32::NAN), (Codec::F32, f32::INFINITY)] {
        let messages = fleet(3, |rank, communicator| {
            let mut parameters = initial(100);
            let mut synchronizer = Synchronizer::new(communicator, config(codec), &parameters).unwrap();
            let mut poisoned = gradient(rank, 1, 100);
            if rank == 1 {
                // In the shards of rank 0 and 2, not in its own.
                poisoned[3] = bad;
                poisoned[99] = bad;
            }
            let error = synchronizer.step(&poisoned, 1, 0.1, &mut parameters).unwrap_err();
            assert!(
                matches!(&error, SyncError::NonFinite { step: 1, counts, .. } if counts[..] == [(Rank(1), 2)])
            );
            assert_eq!(bits(&parameters), bits(&initial(100)), "rank {rank}");
            // The fleet is still whole: the next step works, and its parameters are finite.
            synchronizer.step(&gradient(rank, 2, 100), 1, 0.1, &mut parameters).unwrap();
            synchronizer.finish().unwrap();
            (error.to_string(), bits(&parameters))
        });
        assert_eq!(messages[0].0, "step 1: rank 1 has 2 of 100 gradient elements not finite");
        assert!(messages.iter().all(|message| *message == messages[0]));
        assert!(messages[0].1.iter().all(|b| f32::from_bits(*b).is_finite()));
    }
}

#[test]
fn ranks_that_leave_at_a_gradient_that_is_not_finite_take_the_error_from_no_other_rank() {
    // The more ranks, the surer that one is slower than another that has left already.
    for _ in 0..20 {
        let errors = fleet(7, |rank, communicator| {
            let mut parameters = initial(5000);
            let mut synchronizer = Synchronizer::new(communicator, config(fixed()), &parameters).unwrap();
            let poisoned = [if rank == 3 { f32::NAN } else { 1.0 }; 5000];
            synchronizer.step(&poisoned, 1, 0.1, &mut parameters).unwrap_err().to_string()
        });
        assert!(
            errors
                .iter()
                .all(|error| error == "step 1: rank 3 has 5000 of 5000 gradient elements not finite"),
            "{errors:?}"
        );
    }
}

#[test]
fn a_step_without_samples_is_the_same_error_on_every_rank() {
    for _ in 0..20 {
        let errors = fleet(5, |_, communicator| {
            let mut parameters = initial(5000);
            let mut synchronizer = Synchronizer::new(communicator, config(fixed()), &parameters).unwrap();
            synchronizer.step(&[1.0; 5000], 0, 0.1, &mut parameters).unwrap_err().to_string()
        });
        assert!(errors.iter().all(|error| error.contains("all 5 weights are 0")), "{errors:?}");
    }
}

#[test]
fn a_step_that_is_skipped_leaves_parameters_and_optimizer_as_they_were() {
    let skipping = || Config { nonfinite: NonFinite::Skip, ..config(Codec::F32) };
    let run = |poison: bool| {
        fleet(2, move |rank, communicator| {
            let mut parameters = initial(20);
            let mut synchronizer = Synchronizer::new(communicator, skipping(), &parameters).unwrap();
            if poison {
                let poisoned = if rank == 0 { [f32::NAN; 20] } else { [1.0; 20] };
                let report = synchronizer.step(&poisoned, 1, 0.1, &mut parameters).unwrap();
                assert!(report.skipped);
                assert_eq!(report.nonfinite, [20, 0]);
            }
            let report = synchronizer.step(&gradient(rank, 1, 20), 1, 0.1, &mut parameters).unwrap();
            assert!(!report.skipped);
            bits(&parameters)
        })
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn after_a_step_that_no_rank_took_the_run_goes_on_with_the_bits_of_one_without_ranks() {
    let (world_size, steps) = (3, 5);
    for codec in codecs() {
        for n in [9, 1000, 2 * codec.unit().elements + 1] {
            let optimizer = config(codec).optimizer;
            // The first step, which may find all states at zero, and a later one.
            for bad in [1, 3] {
                let expected = reference(world_size, n, steps, codec, optimizer, Some(bad));
                assert_ne!(
                    expected,
                    reference(world_size, n, steps, codec, optimizer, None),
                    "a step that is not taken leaves a trace"
                );
                for nonfinite in [NonFinite::Fail, NonFinite::Skip] {
                    let case = format!("{n} parameters, step {bad} not taken, {nonfinite:?}, {codec:?}");
                    let ranks = fleet(world_size, |rank, communicator| {
                        let mut parameters = initial(n);
                        let config = Config { nonfinite, ..config(codec) };
                        let mut synchronizer = Synchronizer::new(communicator, config, &parameters).unwrap();
                        for step in 1..=steps {
                            let before = bits(&parameters);
                            let mut gradient = gradient(rank, step, n);
                            poison(&mut gradient, rank, step, Some(bad));
                            let result = synchronizer.step(&gradient, samples(rank), 0.125, &mut parameters);
                            if step != bad {
                                assert!(!result.unwrap().skipped, "{case}");
                                continue;
                            }
                            assert_eq!(bits(&parameters), before, "rank {rank}, {case}");
                            match result {
                                Ok(report) => assert!(report.skipped && report.nonfinite[1] > 1, "{case}"),
                                Err(error) => assert!(
                                    nonfinite == NonFinite::Fail && error.to_string().contains("rank 1 has"),
                                    "{error}, {case}"
                                ),
                            }
                        }
                        synchronizer.finish().unwrap();
                        bits(&parameters)
                    });
                    for (rank, parameters) in ranks.iter().enumerate() {
                        assert_eq!(*parameters, expected, "rank {rank}, {case}");
                    }
                }
            }
        }
    }
}

/// How far the mean is from the gradient, which is the same in every step and on both ranks, at most: 40 steps after one
/// that was not taken, because one element of a larger gradient was not finite. The owner hears of that one or not.
fn tracked(codec: Codec, owner_follows: bool) -> f32 {
    let n = 300;
    let steady: Vec<f32> = gradient(0, 1, n);
    let mut wild: Vec<f32> = steady.iter().map(|value| 8.0 - value).collect();
    wild[7] = f32::NAN;
    let mut states = vec![vec![0; codec.state_words(n)]; 2];
    let (mut mean_state, mut mean) = (vec![0; codec.mean_state_words(2, n)], vec![0.0; n]);
    for step in 1..=41 {
        let packets: Vec<Vec<u32>> = states
            .iter_mut()
            .map(|state| {
                let mut packet = vec![0; codec.packet_words(n)];
                let gradient = if step == 1 { &wild } else { &steady };
                codec.encode(Step::new(step).unwrap(), gradient.into(), state, &mut packet);
                packet
            })
            .collect();
        let packets: Vec<&[u32]> = packets.iter().map(Vec::as_slice).collect();
        if step > 1 || owner_follows {
            codec.average(&packets, &[1, 1], &mut mean_state, &mut mean).unwrap();
        }
    }
    farthest(&mean, &steady)
}

fn farthest(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn what_ef21_sends_after_a_step_that_was_not_taken_still_means_what_the_sender_means() {
    // Plain descent at rate 1 without momentum: what parameters lose is the mean.
    let optimizer = optim::Config::Sgd(optim::Sgd { momentum: 0.0, weight_decay: 0.0 });
    for codec in ["ef21", "ef21:momentum_log2=2"].map(|text| text.parse::<Codec>().unwrap()) {
        let n = 300;
        for nonfinite in [NonFinite::Fail, NonFinite::Skip] {
            let moves = fleet(2, |_, communicator| {
                let mut parameters = vec![0.0; n];
                let config = Config { nonfinite, optimizer, ..config(codec) };
                let mut synchronizer = Synchronizer::new(communicator, config, &parameters).unwrap();
                let steady = gradient(0, 1, n);
                let mut wild: Vec<f32> = steady.iter().map(|value| 8.0 - value).collect();
                wild[7] = f32::NAN;
                let taken = synchronizer.step(&wild, 1, 1.0, &mut parameters);
                assert!(taken.is_err() || taken.unwrap().skipped, "one element is not finite");
                let mut moved = Vec::new();
                for _ in 0..40 {
                    let before = parameters.clone();
                    synchronizer.step(&steady, 1, 1.0, &mut parameters).unwrap();
                    moved = before.iter().zip(&parameters).map(|(before, after)| before - after).collect();
                }
                farthest(&moved, &steady)
            });
            assert!(
                moves.iter().all(|far| *far < 0.01),
                "{moves:?} from the gradient, {nonfinite:?}, {codec:?}"
            );
        }
        // The guard: an owner that had not followed would be off by the step's codes for ever.
        assert!(tracked(codec, true) < 0.01, "{codec:?}: {}", tracked(codec, true));
        assert!(tracked(codec, false) > 0.3, "{codec:?}: {}", tracked(codec, false));
    }
}

/// Every rank's error when rank 1 of three starts with another configuration or length.
fn mismatch(other: Config, n: usize) -> Vec<String> {
    fleet(3, |rank, communicator| {
        let (config, n) = if rank == 1 { (other.clone(), n) } else { (config(fixed()), 100) };
        Synchronizer::new(communicator, config, &initial(n)).map(|_| ()).unwrap_err().to_string()
    })
}

#[test]
fn ranks_that_differ_in_length_or_settings_are_named_before_the_first_step() {
    let errors = mismatch(config(fixed()), 101);
    assert!(errors[0].contains("rank 1 has parameters (low word) 101, ours is 100"), "{errors:?}");
    assert!(errors[1].contains("has parameters (low word)"), "{errors:?}");
    let errors = mismatch(config(Codec::F32), 100);
    assert!(errors[0].contains("rank 1 has codec"), "{errors:?}");
}

#[test]
fn callers_mistakes_are_told_with_both_numbers() {
    fleet(1, |_, communicator| {
        let error = Synchronizer::new(communicator, config(fixed()), &[]).map(|_| ()).unwrap_err();
        assert!(matches!(error, SyncError::Empty));
    });
    let call = |gradient: usize, parameters: usize, samples: u32, learning_rate: f32| {
        let mut messages = fleet(1, |_, communicator| {
            let mut synchronizer = Synchronizer::new(communicator, config(fixed()), &initial(10)).unwrap();
            let mut out = vec![0.0; parameters];
            synchronizer.step(&vec![0.0; gradient], samples, learning_rate, &mut out).unwrap_err().to_string()
        });
        messages.remove(0)
    };
    assert_eq!(call(9, 10, 1, 0.1), "caller's gradient has 9 elements, the synchronizer was made for 10");
    assert_eq!(call(10, 11, 1, 0.1), "caller's parameters has 11 elements, the synchronizer was made for 10");
    assert!(call(10, 10, 0, 0.1).contains("all 1 weights are 0"));
    assert!(call(10, 10, 1 << 21, 0.1).contains("16777216"));
    assert!(call(10, 10, 1, f32::NAN).contains("learning rate is NaN"));
    let scale = Codec::Loco(loco::Config { scale_log2: 65, ..loco_config() });
    fleet(1, |_, communicator| {
        let error = Synchronizer::new(communicator, config(scale), &[0.0]).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("65"), "{error}");
    });
}

#[test]
fn a_rank_that_leaves_is_named_by_all_others() {
    let errors = fleet(4, |rank, communicator| {
        let mut parameters = initial(100);
        let mut synchronizer = Synchronizer::new(communicator, config(fixed()), &parameters).unwrap();
        for step in 1.. {
            if rank == 2 && step == 3 {
                return None;
            }
            let result = synchronizer.step(&gradient(rank, step, 100), 1, 0.1, &mut parameters);
            if let Err(error) = result {
                return Some(error);
            }
        }
        None
    });
    for (rank, error) in errors.iter().enumerate().filter(|(rank, _)| *rank != 2) {
        let culprit = error.as_ref().and_then(|error| error.culprit(Rank(rank as u32)));
        assert_eq!(culprit, Some(Rank(2)), "rank {rank}: {error:?}");
    }
}

#[test]
fn a_failure_on_one_rank_is_told_to_all_with_its_reason() {
    let errors = fleet(3, |rank, communicator| {
        let mut parameters = initial(100);
        let mut synchronizer = Synchronizer::new(communicator, config(fixed()), &parameters).unwrap();
        let length = if rank == 1 { 99 } else { 100 };
        let result = synchronizer.step(&gradient(rank, 1, length), 1, 0.1, &mut parameters);
        result.unwrap_err().to_string()
    });
    for rank in [0, 2] {
        assert!(errors[rank].contains("rank 1 failed: caller's gradient has 99 elements"), "{errors:?}");
    }
}

#[test]
fn a_rank_that_aborts_is_named_by_all_others_with_its_reason() {
    let errors = fleet(3, |rank, communicator| {
        let mut parameters = initial(100);
        let mut synchronizer = Synchronizer::new(communicator, config(fixed()), &parameters).unwrap();
        synchronizer.step(&gradient(rank, 1, 100), 1, 0.1, &mut parameters).unwrap();
        if rank == 1 {
            synchronizer.abort("was interrupted");
            return None;
        }
        let error = synchronizer.step(&gradient(rank, 2, 100), 1, 0.1, &mut parameters).unwrap_err();
        assert_eq!(error.culprit(Rank(rank)), Some(Rank(1)), "{error}");
        Some(error.to_string())
    });
    for rank in [0, 2] {
        let error = errors[rank].as_ref().unwrap();
        assert!(error.contains("rank 1 was interrupted"), "{error}");
    }
}

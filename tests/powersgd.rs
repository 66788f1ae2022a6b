//! PowerSGD over the in-process mesh: against a reference in double precision that knows neither shards nor ranks, and
//! against peers that lie.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

#[path = "common/fleet.rs"]
mod fleet;
#[path = "common/random.rs"]
mod random;

use bytes::Bytes;
use fleet::fleet;
use gradwire::codec::Codec;
use gradwire::optim;
use gradwire::sync::packet::{HEAD_BYTES, TAIL_BYTES};
use gradwire::sync::powersgd::{self, Shape, State, table};
use gradwire::sync::{Checkpoint, Config, NonFinite, StepReport, SyncError, Synchronizer, settings};
use gradwire::transport::{Communicator, Operation, Rank, Tag};
use random::Random;

const SEED: u64 = 0x7067_6432_6772_6164;

fn random(length: usize, seed: u64) -> Vec<f32> {
    let mut random = Random(SEED ^ seed);
    (0..length).map(|_| random.unit() as f32).collect()
}

fn gradient(rank: u32, step: u64, n: usize) -> Vec<f32> {
    random(n, (u64::from(rank) << 32) ^ (step << 8))
}

fn samples(rank: u32) -> u32 {
    [3, 1, 7, 2, 12, 5, 2][rank as usize]
}

const fn shape(offset: usize, rows: usize, columns: usize) -> Shape {
    Shape { offset, rows, columns }
}

fn method(low_rank: u8) -> powersgd::Config {
    powersgd::Config { low_rank, ..powersgd::Config::default() }
}

/// Parameters are then minus the sum of the mean gradients, times the learning rate.
fn sgd() -> optim::Config {
    optim::Config::Sgd(optim::Sgd { momentum: 0.0, weight_decay: 0.0 })
}

fn config(low_rank: u8, shapes: &[Shape]) -> Config {
    Config { shapes: shapes.to_vec(), ..Config::new(method(low_rank), sgd()) }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// What is left of a run on one rank.
struct Rest {
    parameters: Vec<f32>,
    state: State,
    checkpoint: Checkpoint,
    reports: Vec<StepReport>,
}

fn state(synchronizer: &mut Synchronizer) -> State {
    synchronizer.checkpoint().unwrap().powersgd.unwrap()
}

/// Steps from zero parameters with learning rate 1, on every rank.
fn train(
    world_size: u32,
    n: usize,
    steps: u64,
    config: &Config,
    gradient: impl Fn(u32, u64) -> Vec<f32> + Sync,
) -> Vec<Rest> {
    fleet(world_size, |rank, communicator| {
        let mut parameters = vec![0.0; n];
        let mut synchronizer = Synchronizer::new(communicator, config.clone(), &parameters).unwrap();
        let reports = (1..=steps)
            .map(|step| {
                synchronizer.step(&gradient(rank, step), samples(rank), 1.0, &mut parameters).unwrap()
            })
            .collect();
        let checkpoint = synchronizer.checkpoint().unwrap();
        synchronizer.finish().unwrap();
        Rest { parameters, state: checkpoint.powersgd.clone().unwrap(), checkpoint, reports }
    })
}

/// Shape tables around every boundary: single rows and columns, matrices too small, gaps, and n that nothing divides.
fn tables() -> Vec<(usize, Vec<Shape>)> {
    vec![
        (1, vec![shape(0, 1, 1)]),
        (29, vec![shape(0, 1, 29)]),
        (29, vec![shape(0, 29, 1)]),
        (15, vec![shape(0, 3, 5)]),
        (153, vec![shape(0, 17, 9)]),
        (153, vec![shape(0, 9, 17)]),
        (211, vec![shape(5, 17, 9), shape(160, 1, 7), shape(170, 3, 5)]),
        (1000, vec![shape(1, 33, 16), shape(529, 13, 1), shape(542, 16, 28)]),
        (26 * 26, vec![shape(0, 26, 26)]),
    ]
}

/// PowerSGD as the paper writes it, in f64: the sum of the mean gradients of `steps` steps.
fn reference(
    world_size: u32,
    n: usize,
    steps: u64,
    low_rank: usize,
    shapes: &[Shape],
    mut factors: &[f32],
) -> Vec<f64> {
    let weights: Vec<f64> = (0..world_size).map(|rank| f64::from(samples(rank))).collect();
    let total: f64 = weights.iter().sum();
    let compressed = |s: &&Shape| 2 * low_rank * (s.rows + s.columns) < s.rows * s.columns;
    // The error only ever enters by its mean, and that of all ranks is one matrix.
    let mut matrices: Vec<(Shape, Vec<Vec<f64>>, Vec<f64>)> = Vec::new();
    for s in shapes.iter().filter(compressed) {
        let (own, rest) = factors.split_at(low_rank * s.columns);
        factors = rest;
        let q = own.chunks(s.columns).map(|c| c.iter().map(|v| f64::from(*v)).collect()).collect();
        matrices.push((*s, q, vec![0.0; s.rows * s.columns]));
    }
    assert!(factors.is_empty(), "{} factors left over", factors.len());
    let mut sum = vec![0.0; n];
    for step in 1..=steps {
        let mut mean = vec![0.0; n];
        for (rank, weight) in (0..).zip(&weights) {
            for (mean, g) in mean.iter_mut().zip(gradient(rank, step, n)) {
                *mean += weight * f64::from(g) / total;
            }
        }
        for (Shape { offset, rows, columns }, q, error) in &mut matrices {
            let (rows, columns) = (*rows, *columns);
            let own = &mut mean[*offset..*offset + rows * columns];
            let m: Vec<f64> = own.iter().zip(&*error).map(|(g, e)| g + e).collect();
            let mut p: Vec<Vec<f64>> = Vec::new();
            for q in &*q {
                let mut v: Vec<f64> =
                    (0..rows).map(|i| (0..columns).map(|j| m[i * columns + j] * q[j]).sum()).collect();
                for u in &p {
                    let along: f64 = u.iter().zip(&v).map(|(u, v)| u * v).sum();
                    v.iter_mut().zip(u).for_each(|(v, u)| *v -= along * u);
                }
                let norm = v.iter().map(|v| v * v).sum::<f64>().sqrt();
                p.push(v.iter().map(|v| v / norm).collect());
            }
            *q = p
                .iter()
                .map(|p| (0..columns).map(|j| (0..rows).map(|i| m[i * columns + j] * p[i]).sum()).collect())
                .collect();
            for i in 0..rows {
                for j in 0..columns {
                    let carried: f64 = p.iter().zip(&*q).map(|(p, q)| p[i] * q[j]).sum();
                    own[i * columns + j] = carried;
                    error[i * columns + j] = m[i * columns + j] - carried;
                }
            }
        }
        sum.iter_mut().zip(&mean).for_each(|(sum, mean)| *sum += mean);
    }
    sum
}

/// Trains four steps, and compares every rank with the others to the bit and with the paper up to rounding.
fn follows_the_paper(world_size: u32, n: usize, shapes: &[Shape], low_rank: u8) {
    let case = format!("{world_size} ranks, {n} parameters, {shapes:?}, rank {low_rank}");
    let config = config(low_rank, shapes);
    let first = train(1, n, 0, &config, |_, _| Vec::new());
    let ranks = train(world_size, n, 4, &config, |rank, step| gradient(rank, step, n));
    for rest in &ranks {
        assert_eq!(bits(&rest.parameters), bits(&ranks[0].parameters), "{case}");
        assert_eq!(bits(&rest.state.factors), bits(&ranks[0].state.factors), "{case}");
    }
    let expected = reference(world_size, n, 4, low_rank.into(), shapes, &first[0].state.factors);
    for (i, (got, want)) in ranks[0].parameters.iter().zip(&expected).enumerate() {
        assert!((f64::from(-got) - want).abs() < 1e-4, "element {i}: {got} for {want}, {case}");
    }
}

#[test]
fn every_rank_has_the_same_bits_and_they_are_the_papers_up_to_rounding() {
    for world_size in [1, 2, 3, 5, 7] {
        for (n, shapes) in tables() {
            for low_rank in [1, 2, 4] {
                follows_the_paper(world_size, n, &shapes, low_rank);
            }
        }
    }
}

#[test]
fn tensors_may_lie_anywhere() {
    println!("seed {SEED:#x}");
    let mut random = Random(SEED);
    for _ in 0..40 {
        let (mut shapes, mut next) = (Vec::new(), 0);
        for _ in 0..=random.below(5) {
            // Every other tensor touches the one before.
            next += (random.below(2) * random.below(20)) as usize;
            let (rows, columns) = (1 + random.below(24) as usize, 1 + random.below(24) as usize);
            shapes.push(shape(next, rows, columns));
            next += rows * columns;
        }
        let n = next + (random.below(2) * random.below(20)) as usize;
        follows_the_paper(1 + random.below(7) as u32, n, &shapes, 1 + random.below(4) as u8);
    }
}

#[test]
fn what_goes_uncompressed_has_the_bits_of_f32() {
    // The matrix is in the middle of vectors, and its neighbours are in the same shards.
    let (n, shapes) = (211, [shape(5, 17, 9), shape(160, 1, 7), shape(170, 3, 5)]);
    let run = |config: &Config| {
        fleet(3, |rank, communicator| {
            let mut parameters = vec![0.0; n];
            let mut synchronizer = Synchronizer::new(communicator, config.clone(), &parameters).unwrap();
            synchronizer.step(&gradient(rank, 1, n), samples(rank), 1.0, &mut parameters).unwrap();
            bits(&parameters)
        })
        .remove(0)
    };
    let (got, want) = (run(&config(2, &shapes)), run(&Config::new(Codec::F32, sgd())));
    assert_eq!(got[..5], want[..5]);
    assert_eq!(got[158..], want[158..]);
    assert_ne!(got[5..158], want[5..158], "the matrix is compressed");
}

#[test]
fn matrices_of_the_low_rank_are_reproduced_in_one_step() {
    for (rows, columns, low_rank) in [(17, 9, 1), (40, 24, 3), (24, 40, 4)] {
        let r = usize::from(low_rank);
        // The column space is shared, as the mean's must be of rank r; the rest is each rank's own.
        let a = random(rows * r, 1);
        let of_rank = |rank: u32, step: u64| {
            let b = random(columns * r, 2 + u64::from(rank) + (step << 20));
            let at = |i: usize| (0..r).map(|k| a[i / columns * r + k] * b[i % columns * r + k]).sum();
            (0..rows * columns).map(at).collect::<Vec<f32>>()
        };
        let n = rows * columns;
        for steps in [1, 2] {
            let ranks = train(3, n, steps, &config(low_rank, &[shape(0, rows, columns)]), of_rank);
            let mut expected = vec![0.0_f32; n];
            for step in 1..=steps {
                for rank in 0..3 {
                    let weight = samples(rank) as f32 / 11.0;
                    expected.iter_mut().zip(of_rank(rank, step)).for_each(|(sum, g)| *sum += weight * g);
                }
            }
            for (got, want) in ranks[0].parameters.iter().zip(&expected) {
                assert!((got + want).abs() < 2e-5, "{got} for {want}, {rows} x {columns}, step {steps}");
            }
        }
    }
}

#[test]
fn what_was_not_carried_is_the_error_and_stays_bounded_over_a_thousand_steps() {
    let (rows, columns) = (12, 20);
    let n = rows * columns;
    let shapes = [shape(0, rows, columns)];
    // What all ranks learn alike, and noise of each.
    let common = random(n, 77);
    let of_rank = |rank: u32, step: u64| -> Vec<f32> {
        gradient(rank, step, n).iter().zip(&common).map(|(g, c)| g + 0.25 * c).collect()
    };
    for world_size in [1, 3] {
        let ranks = fleet(world_size, |rank, communicator| {
            let mut parameters = vec![0.0; n];
            let mut synchronizer = Synchronizer::new(communicator, config(2, &shapes), &parameters).unwrap();
            let (mut sent, mut largest) = (vec![0.0_f64; n], 0.0_f32);
            for step in 1..=1000 {
                let gradient = of_rank(rank, step);
                synchronizer.step(&gradient, samples(rank), 2.0_f32.powi(-10), &mut parameters).unwrap();
                sent.iter_mut().zip(&gradient).for_each(|(sum, g)| *sum += f64::from(*g));
                let errors = state(&mut synchronizer).errors;
                largest = errors.iter().fold(largest, |largest, error| largest.max(error.abs()));
            }
            // The parameters are minus the sum of what was decoded, by the learning rate.
            let errors = state(&mut synchronizer).errors;
            for ((sum, parameter), error) in sent.iter().zip(&parameters).zip(&errors) {
                let owed = sum + 1024.0 * f64::from(*parameter);
                assert!((owed - f64::from(*error)).abs() < 0.01, "rank {rank}: {owed} owed, {error} kept");
            }
            (errors, largest)
        });
        // A rank's own error has its distance from the others in it; the weighted mean is what is owed to the model.
        let total: f32 = (0..world_size).map(|rank| samples(rank) as f32).sum();
        for i in 0..n {
            let weighted = (0..).zip(&ranks).map(|(rank, (errors, _))| samples(rank) as f32 * errors[i]);
            let mean = weighted.sum::<f32>() / total;
            assert!(mean.abs() < 8.0, "{mean} owed of element {i} in a world of {world_size}");
        }
        println!("{world_size} ranks: largest error {}", ranks[0].1);
        assert!(world_size > 1 || ranks[0].1 < 8.0, "an error of {} in a world of one", ranks[0].1);
    }
}

#[test]
fn a_gradient_of_zeros_gives_zeros_and_the_next_one_is_found() {
    let (n, shapes) = (211, [shape(5, 17, 9), shape(160, 1, 7)]);
    let ranks = train(3, n, 3, &config(2, &shapes), |_, _| vec![0.0; n]);
    for rest in &ranks {
        assert!(rest.parameters.iter().all(|value| *value == 0.0), "{:?}", rest.parameters);
        assert!(rest.state.errors.iter().all(|value| *value == 0.0), "{:?}", rest.state.errors);
        assert!(rest.state.factors.iter().any(|value| *value != 0.0), "a dead factor");
    }
    // One column alone, after zeros, then another one: each is of rank 1 and must come through at once.
    let column = |step: u64| {
        let mut gradient = vec![0.0; n];
        (0..17).for_each(|i| gradient[5 + 9 * i + step as usize] = 1.0 + i as f32);
        gradient
    };
    let find = |_, step| if step <= 2 { vec![0.0; n] } else { column(step) };
    let ranks = train(2, n, 6, &config(2, &shapes), find);
    let expected: Vec<f32> = (0..n).map(|i| -(3..=6).map(|step| column(step)[i]).sum::<f32>()).collect();
    for (got, want) in ranks[0].parameters.iter().zip(&expected) {
        assert!((got - want).abs() < 1e-4, "{got} for {want}");
    }
}

#[test]
fn elements_beyond_the_clamp_are_counted_and_nothing_becomes_infinite() {
    let (n, shapes) = (160, [shape(0, 17, 9)]);
    let huge = |rank: u32, _| {
        let mut gradient = random(n, u64::from(rank));
        gradient[20] = f32::MAX;
        gradient[21] = f32::MIN;
        gradient[40] = 1e19;
        gradient
    };
    for rest in train(2, n, 5, &config(2, &shapes), huge) {
        assert_eq!(rest.reports[0].saturated, [2; 2]);
        assert!(rest.parameters.iter().chain(&rest.state.errors).all(|value| value.is_finite()), "infinite");
    }
}

#[test]
fn a_gradient_that_is_not_finite_is_the_same_error_on_every_rank_and_leaves_no_trace() {
    let (n, shapes) = (211, vec![shape(5, 17, 9), shape(160, 1, 7)]);
    // In the matrix, in a vector, in a gap.
    for at in [[20, 30], [20, 161], [0, 210]] {
        for nonfinite in [NonFinite::Fail, NonFinite::Skip] {
            let run = |poison: bool| {
                fleet(3, |rank, communicator| {
                    let config = Config { nonfinite, ..config(2, &shapes) };
                    let mut parameters = vec![0.0; n];
                    let mut synchronizer = Synchronizer::new(communicator, config, &parameters).unwrap();
                    let mut step = |gradient: &[f32], parameters: &mut [f32]| {
                        synchronizer.step(gradient, samples(rank), 1.0, parameters)
                    };
                    step(&gradient(rank, 1, n), &mut parameters).unwrap();
                    if poison {
                        let mut poisoned = gradient(rank, 2, n);
                        if rank == 1 {
                            poisoned[at[0]] = f32::NAN;
                            poisoned[at[1]] = f32::NEG_INFINITY;
                        }
                        let before = bits(&parameters);
                        match step(&poisoned, &mut parameters) {
                            Err(error @ SyncError::NonFinite { .. }) => {
                                assert_eq!(nonfinite, NonFinite::Fail);
                                let due = "step 2: rank 1 has 2 of 211 gradient elements not finite";
                                assert_eq!(error.to_string(), due);
                            }
                            Ok(report) => {
                                assert_eq!(nonfinite, NonFinite::Skip);
                                assert!(report.skipped, "{report:?}");
                                assert_eq!(report.nonfinite, [0, 2, 0]);
                            }
                            Err(error) => panic!("{error}"),
                        }
                        assert_eq!(bits(&parameters), before);
                    }
                    step(&gradient(rank, 3, n), &mut parameters).unwrap();
                    (bits(&parameters), bits(&state(&mut synchronizer).errors))
                })
            };
            assert_eq!(run(true), run(false), "{at:?}");
        }
    }
}

#[test]
fn a_rank_without_samples_is_not_in_the_mean_and_keeps_its_error() {
    let (n, shapes) = (211, vec![shape(5, 17, 9)]);
    let run = |other: u64| {
        fleet(3, |rank, communicator| {
            let mut parameters = vec![0.0; n];
            let mut synchronizer = Synchronizer::new(communicator, config(2, &shapes), &parameters).unwrap();
            for step in 1..=3 {
                let (seed, weight) = if rank == 2 && step == 2 { (other, 0) } else { (step, samples(rank)) };
                let before = state(&mut synchronizer).errors;
                synchronizer.step(&gradient(rank, seed, n), weight, 1.0, &mut parameters).unwrap();
                let after = state(&mut synchronizer).errors;
                assert_eq!(bits(&before) == bits(&after), weight == 0, "rank {rank}, step {step}");
            }
            bits(&parameters)
        })
    };
    assert_eq!(run(100), run(200));
    let errors = fleet(2, |_, communicator| {
        let mut parameters = vec![0.0; n];
        let mut synchronizer = Synchronizer::new(communicator, config(2, &shapes), &parameters).unwrap();
        synchronizer.step(&gradient(0, 1, n), 0, 1.0, &mut parameters).unwrap_err().to_string()
    });
    assert!(errors.iter().all(|error| error.contains("all 2 weights are 0")), "{errors:?}");
}

#[test]
fn reports_count_the_bytes_of_all_four_rounds() {
    // 2 * (17 + 9) = 52 factor elements in groups of 8: P has 34 of them, Q 18; 58 elements are not compressed.
    let (n, shapes) = (211, vec![shape(5, 17, 9), shape(160, 1, 7)]);
    let ranks = train(3, n, 2, &config(2, &shapes), |rank, step| gradient(rank, step, n));
    // 27 groups over 3 ranks are 9 each: 0..72, 72..144, 144..211, of which 5, 0 and 53 are plain.
    let (p, q, plain) = ([16, 16, 2], [8, 8, 2], [5, 0, 53]);
    let sum = |of: [u64; 3]| of.iter().sum::<u64>();
    for (rank, rest) in ranks.iter().enumerate() {
        for report in &rest.reports {
            let shares = sum(p) - p[rank] + sum(plain) - plain[rank] + sum(q) - q[rank];
            let means = 2 * (p[rank] + q[rank]);
            assert_eq!(report.gradient_packet_bytes, 2 * 32 + 4 * (shares + means), "rank {rank}");
            assert!(report.frame_bytes > report.gradient_packet_bytes + report.parameter_packet_bytes);
            assert_eq!((report.scale_log2, report.reset), (None, false));
        }
    }
    // Nothing to compress: one round.
    let ranks = train(3, 29, 1, &config(2, &[shape(0, 29, 1)]), |rank, step| gradient(rank, step, 29));
    // 4 groups: 16, 8, 5.
    let bytes: Vec<u64> = ranks.iter().map(|rest| rest.reports[0].gradient_packet_bytes).collect();
    assert_eq!(bytes, [64 + 4 * 13, 64 + 4 * 21, 64 + 4 * 24]);
}

#[test]
fn shapes_and_settings_that_do_not_fit_are_told_with_both_numbers() {
    let start = |config: &Config| {
        let mut messages = fleet(1, |_, communicator| {
            Synchronizer::new(communicator, config.clone(), &[0.0; 100]).map(|_| ()).unwrap_err().to_string()
        });
        messages.remove(0)
    };
    let long = start(&config(2, &[shape(0, 10, 9), shape(90, 11, 1)]));
    assert_eq!(long, "tensor 1 ends at element 101, the parameters end at 100");
    let overlap = start(&config(2, &[shape(0, 10, 9), shape(89, 11, 1)]));
    assert_eq!(overlap, "tensor 1 starts at element 89, the one before it ends at 90");
    let missing = start(&config(2, &[]));
    assert_eq!(missing, "caller gave 0 tensor shapes for 100 parameters, powersgd needs at least 1");
    assert_eq!(start(&config(65, &[shape(0, 10, 10)])), "low_rank is 65, powersgd takes 1 to 64");

    let shapes = [shape(0, 10, 10)];
    let differ = |other: Config| {
        let mut errors = fleet(2, |rank, communicator| {
            let config = if rank == 1 { other.clone() } else { config(2, &shapes) };
            Synchronizer::new(communicator, config, &[0.0; 100]).map(|_| ()).unwrap_err().to_string()
        });
        errors.remove(0)
    };
    assert_eq!(differ(config(3, &shapes)), "rank 1 has low_rank 3, ours is 2");
    assert_eq!(differ(Config::new(Codec::F32, sgd())), "rank 1 has codec f32, ours is powersgd");
    let seed = powersgd::Config { seed: 9, ..method(2) };
    assert_eq!(differ(Config { scheme: seed.into(), ..config(2, &shapes) }), "rank 1 has seed 9, ours is 0");
    assert!(differ(config(2, &[shape(0, 5, 20)])).starts_with("rank 1 has digest of the tensor shapes "));
    assert_eq!(
        differ(config(2, &[shape(0, 5, 10), shape(50, 5, 10)])),
        "rank 1 has number of tensor shapes 2, ours is 1"
    );
}

#[test]
fn a_run_that_goes_on_from_its_state_has_the_bits_of_one_that_never_stopped() {
    let (n, shapes) = (211, vec![shape(5, 17, 9), shape(160, 1, 7)]);
    let run = |stop: Option<u64>| {
        let first = stop.unwrap_or(6);
        let mut halves = train(3, n, first, &config(2, &shapes), |rank, step| gradient(rank, step, n));
        if stop.is_some() {
            halves = fleet(3, |rank, communicator| {
                let Rest { parameters, checkpoint, .. } = &halves[rank as usize];
                let mut parameters = parameters.clone();
                let mut synchronizer =
                    Synchronizer::new(communicator, config(2, &shapes), &parameters).unwrap();
                synchronizer.restore(checkpoint).unwrap();
                for step in first + 1..=6 {
                    synchronizer.step(&gradient(rank, step, n), samples(rank), 1.0, &mut parameters).unwrap();
                }
                let checkpoint = synchronizer.checkpoint().unwrap();
                let state = checkpoint.powersgd.clone().unwrap();
                Rest { parameters, state, checkpoint, reports: Vec::new() }
            });
        }
        halves.iter().map(|rest| (bits(&rest.parameters), bits(&rest.state.errors))).collect::<Vec<_>>()
    };
    assert_eq!(run(Some(2)), run(None));
    fleet(1, |_, communicator| {
        let mut synchronizer = Synchronizer::new(communicator, config(2, &shapes), &[0.0; 211]).unwrap();
        let mut checkpoint = synchronizer.checkpoint().unwrap();
        let before = checkpoint.powersgd.replace(State { errors: Vec::new(), factors: Vec::new() });
        let error = synchronizer.restore(&checkpoint).unwrap_err();
        assert_eq!(error.to_string(), "powersgd state of 0 errors, this configuration has 153");
        assert_eq!(synchronizer.checkpoint().unwrap().powersgd, before);
    });
}

#[test]
fn half_gradients_are_their_widened_copies() {
    let (n, shapes) = (211, vec![shape(5, 17, 9), shape(160, 1, 7)]);
    let run = |half: bool| {
        fleet(2, |rank, communicator| {
            let mut parameters = vec![0.0; n];
            let mut synchronizer = Synchronizer::new(communicator, config(2, &shapes), &parameters).unwrap();
            for step in 1..=2 {
                let short: Vec<half::bf16> =
                    gradient(rank, step, n).into_iter().map(half::bf16::from_f32).collect();
                let wide: Vec<f32> = short.iter().map(|value| value.to_f32()).collect();
                if half {
                    synchronizer.step(&short, 1, 1.0, &mut parameters).unwrap();
                } else {
                    synchronizer.step(&wide, 1, 1.0, &mut parameters).unwrap();
                }
            }
            bits(&parameters)
        })
    };
    assert_eq!(run(true), run(false));
}

/// Linear regression of 12 outputs on 20 inputs plus an intercept, each rank with samples of its own.
fn regression(config: &Config) -> f64 {
    const INPUTS: usize = 20;
    const OUTPUTS: usize = 12;
    const N: usize = INPUTS * OUTPUTS + OUTPUTS;
    let truth = random(N, 1);
    let predict = |w: &[f32], x: &[f32], o: usize| -> f32 {
        w[INPUTS * OUTPUTS + o] + (0..INPUTS).map(|i| w[i * OUTPUTS + o] * x[i]).sum::<f32>()
    };
    let losses = fleet(3, |rank, communicator| {
        let mut random = Random(SEED ^ u64::from(rank));
        let mut parameters = vec![0.0; N];
        let mut synchronizer = Synchronizer::new(communicator, config.clone(), &parameters).unwrap();
        let (batch, mut last) = (8, 0.0);
        for step in 0..600 {
            let (mut gradient, mut loss) = (vec![0.0; N], 0.0);
            for _ in 0..batch {
                let x: Vec<f32> = (0..INPUTS).map(|_| random.unit() as f32).collect();
                for o in 0..OUTPUTS {
                    // A tenth of noise, so that the loss has a floor for both to reach.
                    let y = predict(&truth, &x, o) + 0.1 * random.unit() as f32;
                    let off = predict(&parameters, &x, o) - y;
                    loss += f64::from(off * off) / f64::from(batch);
                    gradient[INPUTS * OUTPUTS + o] += off / batch as f32;
                    (0..INPUTS).for_each(|i| gradient[i * OUTPUTS + o] += off * x[i] / batch as f32);
                }
            }
            synchronizer.step(&gradient, batch, 0.1, &mut parameters).unwrap();
            if step >= 500 {
                last += loss / 100.0;
            }
        }
        last
    });
    losses.iter().sum::<f64>() / 3.0
}

#[test]
fn least_squares_come_out_as_without_compression() {
    let shapes = table([&[20_usize, 12][..], &[12]]);
    let whole = regression(&Config::new(Codec::F32, sgd()));
    for low_rank in [1, 2, 3] {
        let compressed = regression(&config(low_rank, &shapes));
        println!("rank {low_rank}: {compressed}, uncompressed {whole}");
        assert!(compressed < 1.1 * whole, "rank {low_rank}: {compressed}, uncompressed {whole}");
    }
}

/// The settings that a rank with this configuration sends, for one that has none.
fn greeting(config: &Config, n: usize) -> Bytes {
    let all = fleet(2, |rank, mut communicator| {
        if rank == 0 {
            let started = Synchronizer::new(communicator, config.clone(), &vec![0.0; n]);
            assert!(started.is_err(), "settings of zeros were taken");
            return None;
        }
        let operation = Operation { step: 0, tag: Tag(0) };
        let zeros = vec![0; settings::BYTES].into();
        let all = communicator.all_gather(operation, zeros, &[settings::BYTES as u64; 2]).unwrap();
        all.into_iter().next()
    });
    all.into_iter().flatten().next().unwrap()
}

/// Which message of rank 1 is a lie.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lie {
    Shares,
    Mean,
    SecondShares,
    SecondMean,
}

/// What rank 0 says of rank 1, which is honest until the message `lie`, changed by `change`.
fn told(lie: Lie, change: impl Fn(&mut Vec<u8>) + Sync) -> SyncError {
    let (n, shapes) = (160, [shape(0, 17, 9)]);
    let config = config(2, &shapes);
    let greeting = greeting(&config, n);
    let operation = |step, tag| Operation { step, tag: Tag(tag) };
    let words = |count: usize| vec![0_u8; 4 * count];
    let results = fleet(2, |rank, mut communicator: Communicator| {
        if rank == 0 {
            let mut parameters = vec![0.0; n];
            let mut synchronizer = Synchronizer::new(communicator, config.clone(), &parameters).unwrap();
            return Some(synchronizer.step(&gradient(0, 1, n), 1, 1.0, &mut parameters).unwrap_err());
        }
        let tell = |message: Lie, mut bytes: Vec<u8>| {
            if message == lie {
                change(&mut bytes);
            }
            Bytes::from(bytes)
        };
        // 34 elements of P are 24 and 10, 18 of Q are 16 and 2; the 7 plain ones are in the second shard.
        let packet = |elements: u8, mut body: Vec<u8>| {
            let mut packet = vec![0; HEAD_BYTES];
            (packet[0], packet[4], packet[8]) = (14, 1, elements);
            packet.append(&mut body);
            packet.extend([0; TAIL_BYTES]);
            packet
        };
        let run = |communicator: &mut Communicator| {
            communicator.all_gather(operation(0, 0), greeting.clone(), &[settings::BYTES as u64; 2])?;
            let outgoing = vec![tell(Lie::Shares, packet(24, words(24))), packet(17, words(17)).into()];
            communicator.all_to_all(operation(1, 2), outgoing, &[32 + 4 * 17; 2])?;
            communicator.all_gather(operation(1, 4), tell(Lie::Mean, words(10)), &[4 * 24, 4 * 10])?;
            let outgoing = vec![tell(Lie::SecondShares, words(16)), words(2).into()];
            communicator.all_to_all(operation(1, 5), outgoing, &[8; 2])?;
            communicator.all_gather(operation(1, 6), tell(Lie::SecondMean, words(2)), &[4 * 16, 4 * 2])
        };
        // The lie may end it here or there.
        let _ = run(&mut communicator);
        // Stay until rank 0 has said what it found.
        let _ = communicator.barrier(operation(9, 0));
        None
    });
    results.into_iter().flatten().next().unwrap()
}

#[test]
fn a_peer_that_lies_is_named_with_both_numbers() {
    let put = |at: usize, value: f32| {
        move |bytes: &mut Vec<u8>| bytes[at..at + 4].copy_from_slice(&value.to_le_bytes())
    };
    let check = |error: SyncError, expected: &str| {
        assert_eq!(error.culprit(Rank(0)), Some(Rank(1)), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    };
    let of = "must be a number of at most 1.2676506e30 in magnitude";
    check(told(Lie::Shares, |bytes| bytes.truncate(124)), "rank 1");
    check(told(Lie::Shares, |bytes| bytes[0] = 1), "packet of codec f32, ours is powersgd");
    check(told(Lie::Shares, |bytes| bytes[0] = 99), "peer names codec 99");
    check(told(Lie::Shares, |bytes| bytes[8] = 23), "packet of 23 elements, the shard has 24");
    check(told(Lie::Shares, |bytes| bytes[1] = 7), "packet of scale 2^7, ours is 2^0");
    check(
        told(Lie::Shares, put(HEAD_BYTES + 4 * 5, f32::NAN)),
        &format!("rank 1 in step 1: word 5 is NaN, {of}"),
    );
    check(told(Lie::Shares, put(HEAD_BYTES, 1.3e30)), &format!("word 0 is 1.3e30, {of}"));
    check(told(Lie::Mean, put(36, f32::INFINITY)), &format!("word 9 is inf, {of}"));
    check(told(Lie::Mean, |bytes| bytes.truncate(36)), "rank 1");
    check(told(Lie::SecondShares, put(60, f32::NAN)), &format!("word 15 is NaN, {of}"));
    check(told(Lie::SecondMean, put(4, f32::NEG_INFINITY)), &format!("word 1 is -inf, {of}"));
}

#![allow(clippy::unwrap_used, reason = "tests")]

use super::super::{Config, State};
use super::*;

const SIZES: [usize; 3] = [5, 1, 10];

fn config(warmup: u32) -> OneBitLamb {
    OneBitLamb { warmup: NonZeroU32::new(warmup).unwrap(), ..OneBitLamb::default() }
}

fn gradient(step: u64) -> [f32; 16] {
    std::array::from_fn(|i| {
        // A cycle of 251, so that no two elements have the same gradients; element 15 has none.
        let x = ((i as u64 * 97 + step * 31) % 251) as f32 / 251.0 - 0.4;
        if i == 15 { 0.0 } else { x * [1.0, 30.0, 0.01][i % 3] }
    })
}

fn initial() -> [f32; 16] {
    std::array::from_fn(|i| ((i * 89) % 251) as f32 / 100.0 - 1.0)
}

/// Steps shards of the vector that end at `cuts`, as their owners would.
fn step_shards(states: &mut [(Range<usize>, State)], rate: f32, mean: &[f32], x: &mut [f32]) {
    let counts: Vec<usize> = states.iter().map(|(shard, state)| state.partials_of(shard)).collect();
    let said: Vec<Partials> = states
        .iter_mut()
        .map(|(shard, state)| state.partials(&mean[shard.clone()], &x[shard.clone()]))
        .collect();
    for (count, said) in counts.iter().zip(&said) {
        assert_eq!(*count, said.values.len(), "announced and said");
    }
    for (shard, state) in states {
        state.apply(rate, &said, &mut x[shard.clone()]);
    }
}

fn shards(config: OneBitLamb, cuts: &[usize]) -> Vec<(Range<usize>, State)> {
    let starts = [&[0], cuts].concat();
    let ends = [cuts, &[16]].concat();
    let tensors = Tensors::new(&SIZES);
    let shards = starts.into_iter().zip(ends).map(|(start, end)| start..end);
    shards.map(|shard| (shard.clone(), Config::OneBitLamb(config).shard_state(&tensors, shard))).collect()
}

/// Both stages as in the module's documentation, in f64, on whole tensors.
#[derive(Default)]
struct Reference {
    m: [f64; 16],
    v: [f64; 16],
    w: [f64; 16],
    average: [(f64, f64); 3],
    factors: [f64; 3],
}

impl Reference {
    fn step(&mut self, config: &OneBitLamb, t: i32, mean: &[f32; 16], x: &mut [f64; 16]) {
        let (b1, b2) = (f64::from(config.adam.beta1), f64::from(config.adam.beta2));
        let (eps, decay) = (f64::from(config.adam.epsilon), f64::from(config.adam.weight_decay));
        let warmup = i32::try_from(config.warmup.get()).unwrap();
        let warm = t <= warmup;
        let bias = 1.0 - b2.powi(t.min(warmup));
        let mut start = 0;
        for (tensor, size) in SIZES.into_iter().enumerate() {
            let range = start..start + size;
            start += size;
            let (mut xx, mut uu, mut factor) = (0.0, 0.0, 0.0_f64);
            let mut u = [0.0; 16];
            for i in range.clone() {
                let given = f64::from(mean[i]);
                if warm {
                    self.m[i] = b1 * self.m[i] + (1.0 - b1) * given;
                    self.v[i] = b2 * self.v[i] + (1.0 - b2) * given * given;
                    self.w[i] = self.v[i];
                } else {
                    let given = if self.v[i] == 0.0 { 0.0 } else { given };
                    let g = (given - b1 * self.m[i]) / (1.0 - b1);
                    self.m[i] = given;
                    self.w[i] = b2 * self.w[i] + (1.0 - b2) * g * g;
                    let w = (self.w[i] / (1.0 - b2.powi(t))).sqrt() + eps;
                    if self.v[i] != 0.0 {
                        factor = factor.max(((self.v[i] / bias).sqrt() + eps) / w);
                    }
                }
                u[i] = self.m[i] / (1.0 - b1.powi(t)) / ((self.v[i] / bias).sqrt() + eps) + decay * x[i];
                xx += x[i] * x[i];
                uu += u[i] * u[i];
            }
            let c = if warm {
                self.factors[tensor] = 1.0;
                let c = (xx / uu).sqrt().clamp(config.ratio_min.into(), config.ratio_max.into());
                let d = f64::from(config.ratio_decay);
                let (sum, weight) = self.average[tensor];
                self.average[tensor] = (d * sum + (1.0 - d) * c, d * weight + 1.0 - d);
                c
            } else {
                let last = self.factors[tensor];
                let change = f64::from(config.factor_change);
                let factor = factor.clamp(config.factor_min.into(), config.factor_max.into());
                self.factors[tensor] = factor.max(last * (1.0 - change)).min(last * (1.0 + change));
                let (sum, weight) = self.average[tensor];
                sum / weight * self.factors[tensor]
            };
            for i in range {
                x[i] -= 0.01 * c * u[i];
            }
        }
    }
}

#[test]
fn both_stages_follow_the_definition_in_double_precision_however_tensors_are_cut() {
    for cuts in [&[][..], &[8], &[3, 5, 5, 14], &[0, 6, 16]] {
        let config = config(10);
        let mut states = shards(config, cuts);
        let (mut x, mut expected) = (initial(), initial().map(f64::from));
        let mut reference = Reference::default();
        let mut momentum = [0.0_f32; 16];
        for t in 1..=40 {
            let g = gradient(t);
            for (m, g) in momentum.iter_mut().zip(g) {
                *m = 0.9 * *m + 0.1 * g;
            }
            let mean = if t <= 10 { g } else { momentum };
            step_shards(&mut states, 0.01, &mean, &mut x);
            reference.step(&config, i32::try_from(t).unwrap(), &mean, &mut expected);
            for (i, (x, expected)) in x.iter().zip(&expected).enumerate() {
                let error = (f64::from(*x) - expected).abs();
                assert!(error < 2e-5, "element {i} in step {t} cut at {cuts:?}: {x}, not {expected}");
            }
        }
        assert!(reference.factors.iter().any(|factor| (factor - 1.0).abs() > 0.05), "no factor moved");
    }
}

#[test]
fn all_owners_have_the_same_ratios_to_the_bit() {
    let config = config(4);
    let mut states = shards(config, &[3, 8, 14]);
    let mut x = initial();
    for t in 1..=12 {
        step_shards(&mut states, 0.01, &gradient(t), &mut x);
        let scalars: Vec<Vec<u64>> = states
            .iter_mut()
            .map(|(_, state)| {
                let saved = state.save(&Config::OneBitLamb(config));
                saved.scalars.iter().map(|scalar| scalar.to_bits()).collect()
            })
            .collect();
        assert!(scalars.iter().all(|of_one| *of_one == scalars[0]), "step {t}");
    }
}

#[test]
fn the_variance_is_frozen_and_a_masked_element_takes_no_noise() {
    let adam = AdamW { weight_decay: 0.0, ..AdamW::default() };
    let config = OneBitLamb { adam, ..config(3) };
    let mut states = shards(config, &[]);
    let mut x = initial();
    let mut frozen = Vec::new();
    for t in 1..=20 {
        let mut mean = gradient(t);
        if t > 3 {
            mean[15] = if t % 2 == 0 { 0.5 } else { -0.5 };
        }
        let before = x;
        step_shards(&mut states, 0.01, &mean, &mut x);
        assert_eq!(x[15], before[15], "step {t}");
        assert!((0..15).all(|i| x[i] != before[i]), "step {t}");
        let square = states[0].1.save(&Config::OneBitLamb(config)).vectors[1].clone();
        if t <= 3 {
            frozen = square;
        } else {
            assert_eq!(square, frozen, "step {t}");
        }
    }
}

#[test]
fn a_tensor_of_zeros_moves_by_the_learning_rate_and_has_no_say_in_the_average() {
    let config = config(5);
    let mut state = Config::OneBitLamb(config).state(2);
    let mut x = [0.0_f32; 2];
    state.step(0.5, &[1.0, -1.0], &mut x);
    assert!((x[0] + 0.5).abs() < 1e-6 && (x[1] - 0.5).abs() < 1e-6, "{x:?}");
    let saved = state.save(&Config::OneBitLamb(config));
    assert_eq!(saved.scalars[3..], [0.0, 0.0, 1.0]);
}

#[test]
fn a_factor_stays_within_its_bounds_and_near_the_last_one() {
    let config = OneBitLamb { factor_max: 1.5, ..config(1) };
    let mut state = Config::OneBitLamb(config).state(1);
    let mut x = [1.0_f32];
    state.step(0.01, &[1.0], &mut x);
    // No gradient any more: the variance falls, the factor wants to grow without end.
    let mut factors = Vec::new();
    let mut m = 0.1;
    for _ in 0..60 {
        m *= 0.9;
        state.step(0.01, &[m], &mut x);
        factors.push(state.save(&Config::OneBitLamb(config)).scalars[5]);
    }
    let change = f64::from(config.factor_change);
    assert!(factors.windows(2).all(|pair| pair[1] <= pair[0] * (1.0 + change) + 1e-12), "{factors:?}");
    assert!(factors.iter().all(|factor| *factor <= 1.5) && factors.contains(&1.5), "{factors:?}");
    // A storm: the factor falls to its least value.
    for step in 0..60 {
        state.step(0.01, &[if step % 2 == 0 { 9.0 } else { -9.0 }], &mut x);
    }
    assert_eq!(state.save(&Config::OneBitLamb(config)).scalars[5], 0.5);
}

#[test]
fn parameters_outside_their_range_are_refused_by_name() {
    let refused = |config: OneBitLamb| config.validate().map_err(|error| error.name);
    let base = OneBitLamb::default();
    assert_eq!(refused(base), Ok(()));
    assert_eq!(refused(OneBitLamb { ratio_decay: 1.0, ..base }), Err("ratio_decay"));
    assert_eq!(refused(OneBitLamb { ratio_min: 0.0, ..base }), Err("ratio_min"));
    assert_eq!(refused(OneBitLamb { ratio_max: 0.001, ..base }), Err("ratio_max"));
    assert_eq!(refused(OneBitLamb { factor_min: 1.1, ..base }), Err("factor_min"));
    assert_eq!(refused(OneBitLamb { factor_max: 0.9, ..base }), Err("factor_max"));
    assert_eq!(refused(OneBitLamb { factor_change: f32::NAN, ..base }), Err("factor_change"));
    let adam = AdamW { beta1: 1.0, ..AdamW::default() };
    assert_eq!(refused(OneBitLamb { adam, ..base }), Err("beta1"));
}

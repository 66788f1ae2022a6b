//! 1-bit LAMB (arXiv 2104.06069): LAMB (arXiv 1904.00962) for a warm-up, then momenta in the codec under a frozen variance.
//!
//! LAMB scales Adam's update `u` of every tensor to the norm of the tensor: by the ratio `|x| / |u|`. That ratio can't be
//! measured once the variance is frozen, since `u` is then no longer what Adam's would be; but it is stable late in the
//! warm-up and follows the variance. So:
//!
//! ```text
//! warm-up      mean of the gradients in f32; m and v as in Adam, corrected for their bias
//!              u = m / (sqrt(v) + epsilon) + weight_decay * x
//!              c = clamp(|x| / |u|, ratio_min, ratio_max), 1 if a norm is 0      per tensor
//!              average c over the steps where neither norm is 0, with ratio_decay
//! afterwards   m = mean over ranks of decode(encode(m_j)), each rank's own momentum
//!              g = (m - beta1 * last m) / (1 - beta1), and from it w, the variance as it would be
//!              factor = max over the tensor's elements of (sqrt(v) + epsilon) / (sqrt(w) + epsilon)
//!              factor clamped to factor_min..factor_max, and to a change of factor_change from the step before
//!              c = average c of the warm-up * factor
//! both         x = x - lr * c * u
//! ```
//!
//! The notes on momenta, bias, mask and cut in [`OneBitAdam`](super::OneBitAdam) hold here too; masked elements do not count in a
//! factor. Where this is not the paper: the average of `c` starts without bias instead of at 0, and `w` is corrected for its
//! own bias. The paper scales the momenta of all tensors to a common root mean square before they are encoded, because
//! its codec has one scale for all of them; here that is the codec's business, which has a scale per block.
//!
//! **Exactness.** A tensor may lie in several shards. Every owner sums the squares of its part in f64, in order; the sums are
//! added in rank order, by every rank alike, so that all have the same ratio to the bit. With another world size the
//! sums are cut differently, and their last bits may differ.

use std::num::NonZeroU32;
use std::ops::Range;

use super::config::{ConfigError, in_range};
use super::saved::{Allowed, Part, Parts};
use super::{AdamW, Exchanged, Tensors, adam};

/// Parameters of 1-bit LAMB.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OneBitLamb {
    /// Adam's.
    pub adam: AdamW,
    /// Steps of LAMB on f32 gradients before the variance is frozen. Default 1000; the paper takes about a sixth of a run.
    /// With `u32::MAX` this is LAMB.
    pub warmup: NonZeroU32,
    /// Weight of the old average of the ratio in the new one, 0 <= ratio_decay < 1. Default 0.9.
    pub ratio_decay: f32,
    /// Least ratio in the warm-up, > 0. Default 0.01.
    pub ratio_min: f32,
    /// Greatest ratio in the warm-up, >= `ratio_min`. Default 10.
    pub ratio_max: f32,
    /// Least factor of the frozen ratio, in 0..=1 but not 0. Default 0.5.
    pub factor_min: f32,
    /// Greatest factor of the frozen ratio, >= 1. Default 4.
    pub factor_max: f32,
    /// By how much of itself a factor may change in a step, >= 0. Default 0.1.
    pub factor_change: f32,
}

impl Default for OneBitLamb {
    fn default() -> Self {
        Self {
            adam: AdamW::default(),
            warmup: const { NonZeroU32::new(1000).expect("not zero") },
            ratio_decay: 0.9,
            ratio_min: 0.01,
            ratio_max: 10.0,
            factor_min: 0.5,
            factor_max: 4.0,
            factor_change: 0.1,
        }
    }
}

impl OneBitLamb {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        self.adam.validate()?;
        in_range("ratio_decay", self.ratio_decay, (0.0..1.0).contains(&self.ratio_decay), "0..1")?;
        let Self { ratio_min, ratio_max, factor_min, factor_max, factor_change, .. } = *self;
        in_range("ratio_min", ratio_min, ratio_min > 0.0 && ratio_min.is_finite(), "above 0")?;
        in_range(
            "ratio_max",
            ratio_max,
            ratio_max >= ratio_min && ratio_max.is_finite(),
            "ratio_min or above",
        )?;
        in_range("factor_min", factor_min, factor_min > 0.0 && factor_min <= 1.0, "above 0, up to 1")?;
        in_range("factor_max", factor_max, factor_max >= 1.0 && factor_max.is_finite(), "1 or above")?;
        let inside = factor_change >= 0.0 && factor_change.is_finite();
        in_range("factor_change", factor_change, inside, "0 or above")
    }
}

/// What the owner of a shard says of its parts of tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct Partials {
    /// Which tensors have a part in the shard.
    pub tensors: Range<usize>,
    /// For each of them, in the warm-up the sums of squares of parameters and of update; afterwards the factor, 0 where
    /// no element has one. Finite and not negative.
    pub values: Vec<f64>,
}

/// The average ratio and the last factor of one tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Ratio {
    /// Sum of the weighted ratios of the warm-up.
    sum: f64,
    /// Sum of their weights, below 1; 0 as long as no step had a ratio.
    weight: f64,
    /// The last factor.
    factor: f64,
}

/// Moments of one shard, and the ratios of all tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    config: OneBitLamb,
    tensors: Tensors,
    shard: Range<usize>,
    /// Steps of which the mean has been taken in.
    taken: u64,
    mean: Vec<f32>,
    square: Vec<f32>,
    /// The variance as it would be if it had not been frozen.
    fresh: Vec<f32>,
    /// Scratch between the halves of a step.
    update: Vec<f32>,
    ratios: Vec<Ratio>,
    beta1_power: f64,
    beta2_power: f64,
    fresh_power: f64,
}

impl State {
    pub(super) fn new(config: OneBitLamb, tensors: Tensors, shard: Range<usize>) -> Self {
        let zeros = vec![0.0; shard.len()];
        Self {
            config,
            taken: 0,
            mean: zeros.clone(),
            square: zeros.clone(),
            fresh: zeros.clone(),
            update: zeros,
            ratios: vec![Ratio { sum: 0.0, weight: 0.0, factor: 1.0 }; tensors.count()],
            beta1_power: 1.0,
            beta2_power: 1.0,
            fresh_power: 1.0,
            tensors,
            shard,
        }
    }

    pub(super) fn elements(&self) -> usize {
        self.shard.len()
    }

    pub(super) fn config(&self) -> &OneBitLamb {
        &self.config
    }

    pub(super) fn exchanged(&self) -> Exchanged {
        if self.warm(self.taken.saturating_add(1)) { Exchanged::ExactGradient } else { Exchanged::Momentum }
    }

    pub(super) fn partials_of(&self, shard: &Range<usize>) -> usize {
        let each = if self.warm(self.taken.saturating_add(1)) { 2 } else { 1 };
        each * self.tensors.within(shard).len()
    }

    pub(super) fn partials(&mut self, mean: &[f32], parameters: &[f32]) -> Partials {
        assert_eq!(mean.len(), self.mean.len(), "mean of another shard");
        self.taken = self.taken.saturating_add(1);
        self.beta1_power *= f64::from(self.config.adam.beta1);
        self.fresh_power *= f64::from(self.config.adam.beta2);
        let tensors = self.tensors.within(&self.shard);
        let mut values = Vec::new();
        if self.warm(self.taken) {
            self.beta2_power = self.fresh_power;
            for tensor in tensors.clone() {
                values.extend(self.measure(self.tensors.part(tensor, &self.shard), mean, parameters));
            }
            self.fresh.copy_from_slice(&self.square);
        } else {
            for tensor in tensors.clone() {
                values.push(self.follow(self.tensors.part(tensor, &self.shard), mean, parameters));
            }
        }
        Partials { tensors, values }
    }

    pub(super) fn apply(&mut self, learning_rate: f32, partials: &[Partials], parameters: &mut [f32]) {
        assert_eq!(parameters.len(), self.update.len(), "parameters of another shard");
        let coefficients =
            if self.warm(self.taken) { self.ratios(partials) } else { self.frozen_ratios(partials) };
        for tensor in self.tensors.within(&self.shard) {
            let part = self.tensors.part(tensor, &self.shard);
            #[expect(
                clippy::cast_possible_truncation,
                reason = "rounded once, to the type of the parameters"
            )]
            let step_size = (f64::from(learning_rate) * coefficients[tensor]) as f32;
            for (parameter, update) in parameters[part.clone()].iter_mut().zip(&self.update[part]) {
                *parameter -= step_size * *update;
            }
        }
    }

    pub(super) fn parts(&mut self) -> Parts<'_> {
        let OneBitLamb { ratio_decay, ratio_max, factor_min, factor_max, .. } = self.config;
        let mut scalars = vec![
            Part::new("power of beta1", Allowed::Power, &mut self.beta1_power),
            Part::new("power of beta2", Allowed::Power, &mut self.beta2_power),
            Part::new("power of beta2 of the fresh variance", Allowed::Power, &mut self.fresh_power),
        ];
        // Roundings of an average over many steps may add up to some 2^-29 of it.
        let sum = Allowed::Between(0.0, 1.000_001 * f64::from(ratio_max));
        let weight = Allowed::ZeroOr(1.0 - f64::from(ratio_decay), 1.0);
        let factor = Allowed::Between(factor_min.into(), factor_max.into());
        for (tensor, ratio) in self.ratios.iter_mut().enumerate() {
            let parts = [
                Part::new("sum of ratios", sum, &mut ratio.sum),
                Part::new("weight of ratios", weight, &mut ratio.weight),
                Part::new("factor of ratios", factor, &mut ratio.factor),
            ];
            scalars.extend(parts.map(|part| Part { tensor, ..part }));
        }
        Parts {
            counters: vec![&mut self.taken],
            scalars,
            vectors: vec![
                Part::new("mean", Allowed::Finite, &mut self.mean),
                Part::new("square", Allowed::NotNegative, &mut self.square),
                Part::new("fresh square", Allowed::NotNegative, &mut self.fresh),
            ],
            elements: self.shard.len(),
        }
    }

    fn warm(&self, step: u64) -> bool {
        step <= u64::from(self.config.warmup.get())
    }

    #[expect(clippy::cast_possible_truncation, reason = "the bias corrections are wanted in f32")]
    fn scales(&self) -> [f32; 3] {
        [self.beta1_power, self.beta2_power, self.fresh_power].map(|power| (1.0 / (1.0 - power)) as f32)
    }

    /// Moments and update of one tensor's part from a gradient; the sums of squares of parameters and update.
    fn measure(&mut self, part: Range<usize>, gradient: &[f32], parameters: &[f32]) -> [f64; 2] {
        let [mean_scale, square_scale, _] = self.scales();
        let AdamW { beta1, beta2, epsilon, weight_decay } = self.config.adam;
        let moments = self.mean[part.clone()].iter_mut().zip(&mut self.square[part.clone()]);
        let given = gradient[part.clone()].iter().zip(&parameters[part.clone()]);
        let mut sums = [0.0_f64; 2];
        for (((mean, square), (&g, &x)), update) in moments.zip(given).zip(&mut self.update[part]) {
            *mean = beta1 * *mean + (1.0 - beta1) * g;
            *square = beta2 * *square + (1.0 - beta2) * (g * g);
            let root = (*square * square_scale).sqrt() + epsilon;
            *update = *mean * mean_scale / root + weight_decay * x;
            sums[0] += f64::from(x) * f64::from(x);
            sums[1] += f64::from(*update) * f64::from(*update);
        }
        sums
    }

    /// Update of one tensor's part from a momentum; the greatest factor, 0 if all elements are masked.
    fn follow(&mut self, part: Range<usize>, momentum: &[f32], parameters: &[f32]) -> f64 {
        let [mean_scale, square_scale, fresh_scale] = self.scales();
        let AdamW { beta1, beta2, epsilon, weight_decay } = self.config.adam;
        let moments = self.mean[part.clone()].iter_mut().zip(&mut self.fresh[part.clone()]);
        let given = momentum[part.clone()].iter().zip(&parameters[part.clone()]);
        let kept = self.square[part.clone()].iter().zip(&mut self.update[part]);
        let most = (1.0 - beta1) / (1.0 - beta2).sqrt();
        let mut greatest = 0.0_f32;
        for (((mean, fresh), (&m, &x)), (&square, update)) in moments.zip(given).zip(kept) {
            let masked = square == 0.0;
            let root = (square * square_scale).sqrt() + epsilon;
            let m = if masked { 0.0 } else { adam::believable(m, most * root) };
            let g = (m - beta1 * *mean) / (1.0 - beta1);
            *mean = m;
            *fresh = beta2 * *fresh + (1.0 - beta2) * (g * g);
            let fresh_root = (*fresh * fresh_scale).sqrt() + epsilon;
            *update = m * mean_scale / root + weight_decay * x;
            // Of two infinite roots nothing is known: `max` passes over the NaN.
            greatest = greatest.max(if masked { 0.0 } else { root / fresh_root });
        }
        let OneBitLamb { factor_min, factor_max, .. } = self.config;
        if greatest > 0.0 { f64::from(greatest.clamp(factor_min, factor_max)) } else { 0.0 }
    }

    /// The ratio of every tensor in the warm-up; averages it.
    fn ratios(&mut self, partials: &[Partials]) -> Vec<f64> {
        let mut sums = vec![[0.0_f64; 2]; self.ratios.len()];
        for Partials { tensors, values } in partials {
            let values = values.as_chunks::<2>().0;
            assert_eq!(values.len(), tensors.len(), "two sums for each tensor");
            for (sum, value) in sums[tensors.clone()].iter_mut().zip(values) {
                *sum = [sum[0] + value[0], sum[1] + value[1]];
            }
        }
        let OneBitLamb { ratio_decay, ratio_min, ratio_max, .. } = self.config;
        let decay = f64::from(ratio_decay);
        let ratios = sums.iter().zip(&mut self.ratios).map(|([x, u], average)| {
            if *x == 0.0 || *u == 0.0 {
                return 1.0;
            }
            let ratio = (x / u).sqrt().clamp(f64::from(ratio_min), f64::from(ratio_max));
            average.sum = decay * average.sum + (1.0 - decay) * ratio;
            average.weight = decay * average.weight + (1.0 - decay);
            ratio
        });
        ratios.collect()
    }

    /// The frozen ratio of every tensor times its factor.
    fn frozen_ratios(&mut self, partials: &[Partials]) -> Vec<f64> {
        let mut greatest = vec![0.0_f64; self.ratios.len()];
        for Partials { tensors, values } in partials {
            assert_eq!(values.len(), tensors.len(), "one factor for each tensor");
            for (greatest, value) in greatest[tensors.clone()].iter_mut().zip(values) {
                *greatest = greatest.max(*value);
            }
        }
        let OneBitLamb { factor_min, factor_max, factor_change, .. } = self.config;
        let (least, most, change) = (f64::from(factor_min), f64::from(factor_max), f64::from(factor_change));
        let frozen = greatest.iter().zip(&mut self.ratios).map(|(greatest, ratio)| {
            if *greatest > 0.0 {
                let factor = greatest.clamp(least, most);
                let (low, high) = (ratio.factor * (1.0 - change), ratio.factor * (1.0 + change));
                ratio.factor = factor.max(low).min(high);
            }
            let average = if ratio.weight > 0.0 { ratio.sum / ratio.weight } else { 1.0 };
            average * ratio.factor
        });
        frozen.collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
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
}

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
mod tests;

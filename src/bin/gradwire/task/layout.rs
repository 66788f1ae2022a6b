//! Between the flat vector that is exchanged and the shaped variables that the model works on.

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, Var};

use gradwire::sync::powersgd::{self, Shape};

use super::random::Random;
use crate::failure::Failure;

/// How a variable starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Start {
    /// All elements equal.
    Constant(f32),
    /// Uniform in plus and minus this bound.
    Uniform(f32),
}

/// One variable of the model.
#[derive(Clone, Debug)]
struct Variable {
    name: String,
    shape: Vec<usize>,
    start: Start,
}

/// Names and shapes of a model's variables, in the order of the flat vector.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layout {
    variables: Vec<Variable>,
}

impl Layout {
    /// Appends a variable.
    pub(crate) fn push(&mut self, name: impl Into<String>, shape: &[usize], start: Start) {
        self.variables.push(Variable { name: name.into(), shape: shape.to_vec(), start });
    }

    /// A weight matrix of `inputs` rows, uniform with variance gain / inputs.
    ///
    /// Uniform and not normal: only a multiplication and a square root, which IEEE rounds the same everywhere.
    pub(crate) fn push_weight(&mut self, name: impl Into<String>, inputs: usize, outputs: usize, gain: f32) {
        let fan_in = f32::from(u16::try_from(inputs).unwrap_or(u16::MAX));
        self.push(name, &[inputs, outputs], Start::Uniform((3.0 * gain / fan_in).sqrt()));
    }

    /// Values in the flat vector.
    pub(crate) fn elements(&self) -> usize {
        self.variables.iter().map(Variable::elements).sum()
    }

    /// Where each variable lies in the flat vector, as matrices.
    pub(crate) fn shapes(&self) -> Vec<Shape> {
        powersgd::table(self.variables.iter().map(|variable| variable.shape.as_slice()))
    }

    /// BLAKE3 over every name and shape in order: two ranks with another value train another model.
    pub(crate) fn hash(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        for Variable { name, shape, .. } in &self.variables {
            hasher.update(&(name.len() as u64).to_le_bytes());
            hasher.update(name.as_bytes());
            hasher.update(&(shape.len() as u64).to_le_bytes());
            for &dimension in shape {
                hasher.update(&(dimension as u64).to_le_bytes());
            }
        }
        *hasher.finalize().as_bytes()
    }

    /// The flat vector that training starts from.
    pub(crate) fn start(&self, seed: u64) -> Vec<f32> {
        let mut flat = Vec::with_capacity(self.elements());
        for (variable, purpose) in self.variables.iter().zip(0..) {
            let mut random = Random::new(seed, purpose);
            flat.extend((0..variable.elements()).map(|_| match variable.start {
                Start::Constant(value) => value,
                Start::Uniform(bound) => random.symmetric() * bound,
            }));
        }
        flat
    }

    /// The flat vector as variables to differentiate by.
    pub(crate) fn variables(&self, flat: &[f32]) -> Result<Vec<Var>, Failure> {
        self.slices(flat)?
            .map(|(variable, values)| {
                let tensor = Tensor::from_slice(values, variable.shape.as_slice(), &Device::Cpu)?;
                Ok(Var::from_tensor(&tensor)?)
            })
            .collect()
    }

    /// The flat vector as tensors that nothing is differentiated by.
    pub(crate) fn tensors(&self, flat: &[f32]) -> Result<Vec<Tensor>, Failure> {
        self.slices(flat)?
            .map(|(variable, values)| {
                Ok(Tensor::from_slice(values, variable.shape.as_slice(), &Device::Cpu)?)
            })
            .collect()
    }

    /// Writes the gradients of `variables` into the flat vector `out`; a variable without one gives zeros.
    pub(crate) fn gather(
        &self,
        variables: &[Var],
        gradients: &GradStore,
        out: &mut [f32],
    ) -> Result<(), Failure> {
        let mut rest = out;
        for (variable, of) in self.variables.iter().zip(variables) {
            let Some((own, after)) = rest.split_at_mut_checked(variable.elements()) else {
                return Err(Failure::Work(format!(
                    "model: the gradient buffer is shorter than the {} parameters",
                    self.elements()
                )));
            };
            match gradients.get(of.as_tensor()) {
                Some(gradient) => own.copy_from_slice(&gradient.flatten_all()?.to_vec1::<f32>()?),
                None => own.fill(0.0),
            }
            rest = after;
        }
        Ok(())
    }

    /// The flat vector as a safetensors file, variables by name.
    pub(crate) fn to_safetensors(&self, flat: &[f32]) -> Result<Vec<u8>, Failure> {
        let bytes: Vec<(&Variable, Vec<u8>)> = self
            .slices(flat)?
            .map(|(variable, values)| (variable, values.iter().flat_map(|x| x.to_le_bytes()).collect()))
            .collect();
        let views = bytes
            .iter()
            .map(|(variable, bytes)| {
                let view = safetensors::tensor::TensorView::new(
                    safetensors::Dtype::F32,
                    variable.shape.clone(),
                    bytes.as_slice(),
                );
                Ok((variable.name.as_str(), view.map_err(Failure::work)?))
            })
            .collect::<Result<Vec<_>, Failure>>()?;
        safetensors::serialize(views, None).map_err(Failure::work)
    }

    fn slices<'a>(
        &'a self,
        flat: &'a [f32],
    ) -> Result<impl Iterator<Item = (&'a Variable, &'a [f32])> + 'a, Failure> {
        if flat.len() != self.elements() {
            return Err(Failure::Work(format!(
                "model: {} parameters given, the model has {}",
                flat.len(),
                self.elements()
            )));
        }
        let mut next = 0;
        Ok(self.variables.iter().map(move |variable| {
            let first = next;
            next += variable.elements();
            (variable, &flat[first..next])
        }))
    }
}

impl Variable {
    fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// The mean cross entropy in nats of `logits` (N x C, f32) against `targets` (N, u32).
///
/// Written in operations that candle differentiates; its fused softmax has no backward pass.
pub(crate) fn cross_entropy(logits: &Tensor, targets: &Tensor) -> Result<Tensor, Failure> {
    debug_assert_eq!(logits.dtype(), DType::F32, "losses are computed in f32");
    Ok(candle_nn::loss::cross_entropy(logits, targets)?)
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::super::{Draw, Task};
    use super::*;

    fn two_variables() -> Layout {
        let mut layout = Layout::default();
        layout.push_weight("a", 3, 2, 1.0);
        layout.push("b", &[2], Start::Constant(0.5));
        layout
    }

    #[test]
    fn the_hash_sees_names_shapes_and_order() {
        let mut renamed = two_variables();
        renamed.variables[0].name = "c".into();
        let mut reshaped = two_variables();
        reshaped.variables[0].shape = vec![2, 3];
        let mut reordered = two_variables();
        reordered.variables.swap(0, 1);
        for other in [renamed, reshaped, reordered] {
            assert_ne!(other.hash(), two_variables().hash(), "{other:?}");
        }
        assert_eq!(two_variables().hash(), two_variables().hash());
    }

    #[test]
    fn a_saved_model_holds_the_same_bits_under_its_names() {
        let layout = two_variables();
        let flat = layout.start(9);
        let file = layout.to_safetensors(&flat).unwrap();
        let read = safetensors::SafeTensors::deserialize(&file).unwrap();
        let a: Vec<u8> = flat[..6].iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!(read.tensor("a").unwrap().data(), a);
        assert_eq!(read.tensor("b").unwrap().shape(), [2]);
    }

    /// Compares the gradient with central differences along random directions.
    pub(crate) fn gradient_agrees_with_differences(task: &mut dyn Task) {
        let draw = Draw { step: 0, rank: 0, world_size: 1, batch: 4 };
        let elements = task.layout().elements();
        let start = task.parameters();
        let mut gradient = vec![0.0; elements];
        task.gradient(&start, draw, &mut gradient).unwrap();
        let mut ignored = vec![0.0; elements];
        for seed in 0..3 {
            let mut random = Random::new(seed, 77);
            let direction: Vec<f32> = (0..elements).map(|_| random.symmetric()).collect();
            let along: f64 =
                gradient.iter().zip(&direction).map(|(g, d)| f64::from(*g) * f64::from(*d)).sum();
            // Smaller, and f32 has too few digits; larger, and too many rectifiers change sides.
            let step = 1e-4_f32;
            let mut at = |sign: f32| {
                let moved: Vec<f32> =
                    start.iter().zip(&direction).map(|(p, d)| p + sign * step * d).collect();
                f64::from(task.gradient(&moved, draw, &mut ignored).unwrap())
            };
            let measured = (at(1.0) - at(-1.0)) / (2.0 * f64::from(step));
            assert!(
                (measured - along).abs() <= 0.03 * along.abs() + 0.003,
                "direction {seed}: gradient says {along}, differences say {measured}"
            );
        }
    }
}

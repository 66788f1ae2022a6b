//! Bytes of a file: a small causal transformer that predicts the next one.
//!
//! Two layers with pre-normalisation (RMS), learned positions and squared rectifiers (So et al. 2021),
//! written in operations that candle differentiates: its fused norms and softmax have no backward pass.

use std::path::Path;

use candle_core::{D, Device, Tensor};
use gradwire::transport::file::read_bounded;

use super::layout::{Start, cross_entropy};
use super::sampler::Sampler;
use super::{Draw, Evaluation, Layout, Score, Task};
use crate::failure::Failure;

/// The longest file: all of it is held in memory, by every rank.
const MAX_BYTES: u64 = 1 << 30;

/// Bytes that the model looks back at.
pub(crate) const CONTEXT: usize = 64;
const WIDTH: usize = 96;
const HEADS: usize = 4;
const LAYERS: usize = 2;
/// Variables of one layer: two norms, query-key-value, output, and the two of the perceptron.
const PER_LAYER: usize = 6;
/// Evaluation reads at most this many windows of the last tenth (64 KiB), 16 at a time.
const EVALUATION_WINDOWS: usize = 1024;
const EVALUATION_BATCH: usize = 16;
const VOCABULARY: usize = 256;

/// The task.
pub(crate) struct Text {
    layout: Layout,
    seed: u64,
    train: Vec<u8>,
    evaluation: Vec<u8>,
    mask: Tensor,
    sampler: Sampler,
    /// Length and BLAKE3 of the file.
    identity: String,
}

impl Text {
    /// Reads `path`, a file of at most 1 GiB; its last tenth is for evaluation.
    ///
    /// Fails if the file can't be read, or if either part is too short: one global batch of windows for
    /// training, one window for evaluation.
    pub(crate) fn new(path: &Path, seed: u64, world_size: u32, batch: u32) -> Result<Self, Failure> {
        let bytes = read_bounded(path, MAX_BYTES).map_err(|error| Failure::file(path, error))?;
        let windows = world_size as usize * batch as usize;
        let need = smallest_file(windows);
        if bytes.len() < need {
            return Err(Failure::Work(format!(
                "{}: {} bytes, one batch of {world_size} nodes x {batch} windows of {CONTEXT} bytes and the \
                 evaluation part need {need}",
                path.display(),
                bytes.len()
            )));
        }
        let identity = format!("{} bytes, BLAKE3 {}", bytes.len(), blake3::hash(&bytes).to_hex());
        let (train, evaluation) = bytes.split_at(bytes.len() - bytes.len() / 10);
        let sampler = Sampler::new(seed, windows_in(train));
        let (train, evaluation) = (train.to_vec(), evaluation.to_vec());
        Ok(Self { layout: layout(), seed, train, evaluation, mask: causal_mask()?, sampler, identity })
    }

    /// Logits of every position of `inputs` (B x T bytes), (B T) x 256.
    fn logits(&self, variables: &[Tensor], inputs: &Tensor) -> Result<Tensor, Failure> {
        let (batch, length) = inputs.dims2()?;
        let [tokens, positions, layers @ .., norm, head] = variables else {
            return Err(Failure::Work(format!("model: {} variables", variables.len())));
        };
        let mut x = tokens.index_select(&inputs.flatten_all()?, 0)?.reshape((batch, length, WIDTH))?;
        x = x.broadcast_add(&positions.narrow(0, 0, length)?)?;
        for layer in layers.chunks_exact(PER_LAYER) {
            x = (&x + self.attention(&layer[0], &layer[1], &layer[2], &x)?)?;
            let hidden = linear(&normalise(&x, &layer[3])?, &layer[4])?.relu()?.sqr()?;
            x = (&x + linear(&hidden, &layer[5])?)?;
        }
        Ok(linear(&normalise(&x, norm)?, head)?.reshape((batch * length, VOCABULARY))?)
    }

    fn attention(
        &self,
        norm: &Tensor,
        input: &Tensor,
        output: &Tensor,
        x: &Tensor,
    ) -> Result<Tensor, Failure> {
        let (batch, length, _) = x.dims3()?;
        let all = linear(&normalise(x, norm)?, input)?;
        let part = |index: usize| -> Result<Tensor, Failure> {
            let heads = all.narrow(D::Minus1, index * WIDTH, WIDTH)?.reshape((
                batch,
                length,
                HEADS,
                WIDTH / HEADS,
            ))?;
            Ok(heads.transpose(1, 2)?.contiguous()?)
        };
        let (query, key, value) = (part(0)?, part(1)?, part(2)?);
        let scale = 1.0 / ((WIDTH / HEADS) as f64).sqrt();
        let scores = (query.matmul(&key.t()?.contiguous()?)? * scale)?;
        let scores = scores.broadcast_add(&self.mask.narrow(0, 0, length)?.narrow(1, 0, length)?)?;
        let mixed = candle_nn::ops::softmax(&scores, D::Minus1)?.matmul(&value)?;
        linear(&mixed.transpose(1, 2)?.contiguous()?.reshape((batch, length, WIDTH))?, output)
    }
}

impl Task for Text {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn data(&self) -> String {
        self.identity.clone()
    }

    fn parameters(&self) -> Vec<f32> {
        self.layout.start(self.seed)
    }

    fn gradient(&mut self, parameters: &[f32], draw: Draw, gradient: &mut [f32]) -> Result<f32, Failure> {
        let (inputs, targets) = windows(&self.train, &self.sampler.draw(draw))?;
        let variables = self.layout.variables(parameters)?;
        let weights: Vec<Tensor> = variables.iter().map(|v| v.as_tensor().clone()).collect();
        let loss = cross_entropy(&self.logits(&weights, &inputs)?, &targets)?;
        self.layout.gather(&variables, &loss.backward()?, gradient)?;
        Ok(loss.to_scalar::<f32>()?)
    }

    fn evaluate(&self, parameters: &[f32]) -> Result<Evaluation, Failure> {
        let weights = self.layout.tensors(parameters)?;
        let count = windows_in(&self.evaluation).min(EVALUATION_WINDOWS);
        let all: Vec<u32> = (0..).take(count).collect();
        let mut sum = 0.0;
        for batch in all.chunks(EVALUATION_BATCH) {
            let (inputs, targets) = windows(&self.evaluation, batch)?;
            let loss = cross_entropy(&self.logits(&weights, &inputs)?, &targets)?.to_scalar::<f32>()?;
            sum += f64::from(loss) * batch.len() as f64;
        }
        let loss = sum / count as f64;
        Ok(Evaluation { loss, score: Score::BitsPerByte(loss / std::f64::consts::LN_2) })
    }
}

/// Whole windows of inputs that have a next byte each.
fn windows_in(bytes: &[u8]) -> usize {
    bytes.len().saturating_sub(1) / CONTEXT
}

/// The fewest bytes that hold `windows` windows in their first nine tenths and one in the rest.
fn smallest_file(windows: usize) -> usize {
    let train = windows * CONTEXT + 1;
    let mut length = (train * 10).div_ceil(9).max(10 * (CONTEXT + 1));
    while length - length / 10 < train {
        length += 1;
    }
    length
}

/// Windows `indices` of `bytes`: inputs (B x T) and, one byte further, targets (B T).
fn windows(bytes: &[u8], indices: &[u32]) -> Result<(Tensor, Tensor), Failure> {
    let (mut inputs, mut targets) = (Vec::new(), Vec::new());
    for &index in indices {
        let first = index as usize * CONTEXT;
        inputs.extend(bytes[first..first + CONTEXT].iter().map(|&byte| u32::from(byte)));
        targets.extend(bytes[first + 1..=first + CONTEXT].iter().map(|&byte| u32::from(byte)));
    }
    let inputs = Tensor::from_vec(inputs, (indices.len(), CONTEXT), &Device::Cpu)?;
    Ok((inputs, Tensor::from_vec(targets, indices.len() * CONTEXT, &Device::Cpu)?))
}

/// 0 where a position may look, -1e9 where it would see the future; not minus infinity, which a softmax
/// turns into NaN in a row without anything else.
fn causal_mask() -> Result<Tensor, Failure> {
    let mask: Vec<f32> = (0..CONTEXT * CONTEXT)
        .map(|place| if place % CONTEXT > place / CONTEXT { -1e9 } else { 0.0 })
        .collect();
    Ok(Tensor::from_vec(mask, (CONTEXT, CONTEXT), &Device::Cpu)?)
}

/// B x T x I times I x O, as one matrix product: candle would otherwise copy the matrix B times.
fn linear(x: &Tensor, weight: &Tensor) -> Result<Tensor, Failure> {
    let (batch, length, inputs) = x.dims3()?;
    let flat = x.reshape((batch * length, inputs))?.matmul(weight)?;
    Ok(flat.reshape((batch, length, weight.dim(1)?))?)
}

/// RMS norm (Zhang and Sennrich 2019) over the last dimension.
fn normalise(x: &Tensor, weight: &Tensor) -> Result<Tensor, Failure> {
    let size = (x.sqr()?.mean_keepdim(D::Minus1)? + 1e-6)?.sqrt()?;
    Ok(x.broadcast_div(&size)?.broadcast_mul(weight)?)
}

fn layout() -> Layout {
    let mut layout = Layout::default();
    layout.push("tokens", &[VOCABULARY, WIDTH], Start::Uniform(0.05));
    layout.push("positions", &[CONTEXT, WIDTH], Start::Uniform(0.05));
    for layer in 0..LAYERS {
        let name = |part: &str| format!("layer{layer}.{part}");
        layout.push(name("attention.norm"), &[WIDTH], Start::Constant(1.0));
        layout.push_weight(name("attention.input"), WIDTH, 3 * WIDTH, 1.0);
        layout.push_weight(name("attention.output"), WIDTH, WIDTH, 0.25);
        layout.push(name("perceptron.norm"), &[WIDTH], Start::Constant(1.0));
        layout.push_weight(name("perceptron.input"), WIDTH, 4 * WIDTH, 1.0);
        layout.push_weight(name("perceptron.output"), 4 * WIDTH, WIDTH, 0.25);
    }
    layout.push("norm", &[WIDTH], Start::Constant(1.0));
    layout.push_weight("head", WIDTH, VOCABULARY, 0.1);
    layout
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::super::layout::tests::gradient_agrees_with_differences;
    use super::*;

    fn file(bytes: usize) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text: Vec<u8> = (0..bytes).map(|i| b'a' + u8::try_from(i * i % 23).unwrap()).collect();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    #[test]
    fn the_gradient_agrees_with_differences() {
        gradient_agrees_with_differences(&mut Text::new(file(4000).path(), 1, 1, 4).unwrap());
    }

    #[test]
    fn a_position_does_not_see_what_follows_it() {
        let text = Text::new(file(4000).path(), 1, 1, 1).unwrap();
        let weights = text.layout.tensors(&text.parameters()).unwrap();
        let logits = |last: u32| {
            let mut bytes: Vec<u32> = (0..).take(CONTEXT).collect();
            bytes[CONTEXT - 1] = last;
            let inputs = Tensor::from_vec(bytes, (1, CONTEXT), &Device::Cpu).unwrap();
            text.logits(&weights, &inputs).unwrap().to_vec2::<f32>().unwrap()
        };
        let (one, other) = (logits(5), logits(200));
        assert_eq!(one[..CONTEXT - 1], other[..CONTEXT - 1]);
        assert_ne!(one[CONTEXT - 1], other[CONTEXT - 1]);
    }

    #[test]
    fn the_smallest_file_is_enough_and_one_byte_less_is_refused_with_both_numbers() {
        for (world_size, batch) in [(1, 1), (4, 8), (3, 5)] {
            let need = smallest_file(world_size as usize * batch as usize);
            let mut text = Text::new(file(need).path(), 0, world_size, batch).unwrap();
            let draw = Draw { step: 0, rank: 0, world_size, batch };
            let parameters = text.parameters();
            assert!(text.gradient(&parameters, draw, &mut vec![0.0; parameters.len()]).is_ok());
            assert!(text.evaluate(&parameters).is_ok());
            let refused = Text::new(file(need - 1).path(), 0, world_size, batch).err().unwrap().to_string();
            assert!(refused.contains(&format!("{} bytes", need - 1)), "{refused}");
            assert!(refused.contains(&need.to_string()), "{refused}");
        }
    }
}

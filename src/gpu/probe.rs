//! Does an adapter give the bits of the CPU definition? Asked before it may join a run.
//!
//! **What.** Some thousand elements aimed at rounding ties, saturation, subnormals and non-finite values, encoded and
//! averaged on both sides by every codec that has kernels. A driver that passes is not proven right, but every driver
//! fault seen so far (comparison of NaN, overflow of a conversion, packing with constant lanes, flushed subnormals) would
//! show here.
//!
//! **Cost.** For each codec one compilation of both kernels, and a few milliseconds.

use std::fmt;
use std::num::NonZeroU32;

use half::{bf16, f16};

use super::{Average, Encode, Gpu, GpuError};
use crate::codec::loco::Config;
use crate::codec::{Codec, CodecId, Gradient, Input, Stats, Step};

mod aim;

/// The first place where an adapter is not the definition.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Difference {
    /// Which codec.
    pub codec: Codec,
    /// Element type of the gradient.
    pub input: Input,
    /// `packet`, `state`, `counts`, `mean` or `mean state`.
    pub what: &'static str,
    /// Word of the packet or state, element of the mean; of `counts`: 0 non-finite, 1 saturated.
    pub index: usize,
    /// What the definition gives, as bits.
    pub expected: u64,
    /// What the adapter gives, as bits.
    pub found: u64,
}

impl fmt::Display for Difference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { codec, input, what, index, expected, found } = self;
        let (codec, input) = (codec.id(), input.name());
        write!(
            formatter,
            "{what}[{index}] of codec {codec} ({input}) is {found:#x} on the adapter, {expected:#x} by definition"
        )
    }
}

/// Compares `gpu` with the CPU definition of every codec; `None` if all are exact.
///
/// # Errors
///
/// Those of a failing device.
pub fn difference(gpu: &Gpu) -> Result<Option<Difference>, GpuError> {
    let more = CONFIGS.map(Codec::Loco);
    for codec in CodecId::ALL.map(Codec::new).iter().chain(&more) {
        if let Some(difference) = difference_for(gpu, codec)? {
            return Ok(Some(difference));
        }
    }
    // How gradients of half types are read is the same for all codecs: once, with every value that there is.
    let f16: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
    let bf16: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).collect();
    for gradient in [Gradient::from(&f16), Gradient::from(&bf16)] {
        let codec = Codec::Loco(Config { scale_log2: 0, ..Config::default() });
        let mut encode = Encode::new(gpu, &codec, gradient.input(), gradient.len())?;
        let mut run = Run::new(&codec, gradient);
        if let Err(difference) = run.step(&mut encode, Step::FIRST, gradient)? {
            return Ok(Some(difference));
        }
    }
    Ok(None)
}

/// Compares `gpu` with the CPU definition of one codec with its parameters; `None` if it is exact.
///
/// # Errors
///
/// Those of a failing device.
pub fn difference_for(gpu: &Gpu, codec: &Codec) -> Result<Option<Difference>, GpuError> {
    difference_of(&mut |codec, elements| Encode::new(gpu, codec, Input::F32, elements), gpu, codec)
}

/// Parameters of LoCo that take other paths than the defaults.
const CONFIGS: [Config; 3] = [
    Config { scale_log2: 19, residual_scale_log2: 4, decay: 205, reset_every: NonZeroU32::new(3) },
    Config { scale_log2: 0, residual_scale_log2: 6, decay: 192, reset_every: None },
    Config { scale_log2: -40, residual_scale_log2: 0, decay: 0, reset_every: None },
];

fn difference_of(
    encode: &mut dyn FnMut(&Codec, usize) -> Result<Encode, GpuError>,
    gpu: &Gpu,
    codec: &Codec,
) -> Result<Option<Difference>, GpuError> {
    let mut gradient = aim::gradient(codec);
    let mut on_device = encode(codec, gradient.len())?;
    let mut run = Run::new(codec, (&gradient).into());
    for step in (1..=4).filter_map(Step::new) {
        if let Err(difference) = run.step(&mut on_device, step, (&gradient).into())? {
            return Ok(Some(difference));
        }
        // Another residual meets each value next time; by 64, so that blocks stay what they are, and by 7.
        gradient.rotate_left(if step == Step::FIRST { 64 } else { 7 });
    }
    drop(on_device);
    let mut average = Average::new(gpu, codec, gradient.len())?;
    Ok(run.means(&mut average)?.err())
}

/// The definition at work, and what it sent.
struct Run<'a> {
    codec: &'a Codec,
    input: Input,
    elements: usize,
    state: Vec<u32>,
    packets: Vec<Vec<u32>>,
}

/// Whether both sides are the same so far.
type Same = Result<(), Difference>;

impl<'a> Run<'a> {
    fn new(codec: &'a Codec, gradient: Gradient<'_>) -> Self {
        let elements = gradient.len();
        let state = vec![0; codec.state_words(elements)];
        Self { codec, input: gradient.input(), elements, state, packets: Vec::new() }
    }

    fn step(&mut self, on_device: &mut Encode, step: Step, gradient: Gradient<'_>) -> Result<Same, GpuError> {
        let mut expected = vec![0; self.codec.packet_words(self.elements)];
        let mut found = expected.clone();
        let expected_stats = self.codec.encode(step, gradient, &mut self.state, &mut expected);
        let found_stats = on_device.encode(self.codec, step, gradient, &mut found)?;
        let found_state = on_device.state()?;
        let counts = |stats: Stats| [stats.nonfinite, stats.saturated];
        let same = self
            .same("packet", expected.iter().copied(), found)
            .and_then(|()| self.same("counts", counts(expected_stats), counts(found_stats)))
            .and_then(|()| self.same("state", self.state.iter().copied(), found_state));
        self.packets.push(expected);
        Ok(same)
    }

    /// The packets of all steps as if each came from a rank; twice, for codecs whose means have a state.
    fn means(&self, on_device: &mut Average) -> Result<Same, GpuError> {
        // An inexact product almost everywhere: the total has no factor that a float divides exactly.
        const WEIGHTS: [u32; 4] = [3, 100_003, 7, 65_536];
        let mut packets: Vec<&[u32]> = self.packets.iter().map(Vec::as_slice).collect();
        let mut state = vec![0; self.codec.mean_state_words(packets.len(), self.elements)];
        for _ in 0..2 {
            let mut expected = vec![0.0; self.elements];
            let mut found = expected.clone();
            self.codec.average(&packets, &WEIGHTS, &mut state, &mut expected)?;
            on_device.average(self.codec, &packets, &WEIGHTS, &mut found)?;
            let found_state = on_device.state()?;
            let bits = |value: &f32| value.to_bits();
            let same = self
                .same("mean", expected.iter().map(bits), found.iter().map(bits))
                .and_then(|()| self.same("mean state", state.iter().copied(), found_state));
            if same.is_err() {
                return Ok(same);
            }
            packets.rotate_left(1);
        }
        Ok(Ok(()))
    }

    fn same<T: Into<u64>>(
        &self,
        what: &'static str,
        expected: impl IntoIterator<Item = T>,
        found: impl IntoIterator<Item = T>,
    ) -> Same {
        let pairs = expected.into_iter().zip(found).map(|(expected, found)| (expected.into(), found.into()));
        let place = pairs.enumerate().find(|(_, (expected, found))| expected != found);
        let (codec, input) = (*self.codec, self.input);
        place.map_or(Ok(()), |(index, (expected, found))| {
            Err(Difference { codec, input, what, index, expected, found })
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code")]

    use std::io::Write;

    use super::super::source::{LOCO_ENCODE, TOPK_ENCODE};
    use super::super::{AdapterChoice, Limits};
    use super::*;

    #[test]
    fn an_exact_adapter_passes_and_a_wrong_shader_is_named_with_its_place() {
        let Ok(gpu) = Gpu::open(&AdapterChoice::default()) else {
            let required = std::env::var("GRADWIRE_REQUIRE_GPU").is_ok_and(|value| value == "1");
            assert!(!required, "GRADWIRE_REQUIRE_GPU is 1, but no adapter opens");
            #[allow(
                clippy::explicit_write,
                reason = "the test harness swallows eprintln of a test that passes"
            )]
            writeln!(std::io::stderr(), "SKIPPED, nothing was tested on a GPU: no adapter").unwrap();
            return;
        };
        let start = std::time::Instant::now();
        assert_eq!(difference(&gpu).unwrap(), None, "{}", gpu.info().label());
        println!("{}: probed in {:.2} s", gpu.info().label(), start.elapsed().as_secs_f64());

        let loco = CONFIGS.map(Codec::Loco).to_vec();
        let topk = vec![Codec::new(CodecId::TopK)];
        for (codecs, shader, right, wrong, what) in [
            (&loco, LOCO_ENCODE, "- vec4<i32>(1) + odd)", ")", "packet"),
            (&loco, LOCO_ENCODE, "vec4<i32>(127));", "vec4<i32>(126));", "state"),
            (&loco, LOCO_ENCODE, "(code != rounded)", "(code == rounded)", "counts"),
            // The lower of equal indices.
            (&topk, TOPK_ENCODE, "equal < at_key", "equal + 1u < at_key", "packet"),
        ] {
            let source = shader.source(Input::F32);
            let edited = source.replace(right, wrong);
            assert_ne!(edited, source, "{right} is no longer in the shader: edit this test");
            let limits = Limits::of(&gpu);
            let mut encode = |codec: &Codec, elements| {
                Encode::with_source(&gpu, codec, Input::F32, elements, limits, &edited)
            };
            let found = codecs.iter().find_map(|codec| difference_of(&mut encode, &gpu, codec).unwrap());
            assert_eq!(found.map(|difference| difference.what), Some(what), "{wrong}");
        }
    }
}

//! Adapters under test, aimed input, and the bitwise comparison of one encoder with the definition.
//!
//! Included by path: the tests that need a GPU share one answer to "and if there is none?".

#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "test code")]
#![allow(clippy::cast_possible_truncation, reason = "random bits are cut to size, values rounded to f32")]

use std::io::Write;

#[path = "random.rs"]
mod random;

use gradwire::codec::fp8::Kind;
use gradwire::codec::loco::{Config, Variant, variants};
use gradwire::codec::{
    AverageError, Codec, CodecId, Gradient, Input, Stats, Step, ef, fp8, intsgd, loco_block, topk,
};
use gradwire::gpu::{AdapterChoice, Average, Encode, Gpu, GpuError, Limits, adapters};
use half::{bf16, f16};
pub(crate) use random::Random;

/// Every adapter of this machine, opened.
///
/// Without any: a failure if `GRADWIRE_REQUIRE_GPU` is 1, else a line that says so and no adapter.
pub(crate) fn gpus() -> Vec<Gpu> {
    let mut gpus = Vec::new();
    for info in adapters() {
        let gpu = Gpu::open(&AdapterChoice { name: Some(info.label()) }).unwrap();
        println!("adapter: {}, {}", gpu.info().label(), gpu.info().driver);
        gpus.push(gpu);
    }
    if gpus.is_empty() {
        let reason = Gpu::open(&AdapterChoice::default()).unwrap_err();
        let required = std::env::var("GRADWIRE_REQUIRE_GPU").is_ok_and(|value| value == "1");
        assert!(!required, "GRADWIRE_REQUIRE_GPU is 1, but: {reason}");
        #[allow(clippy::explicit_write, reason = "the test harness swallows eprintln of a test that passes")]
        writeln!(std::io::stderr(), "SKIPPED, nothing was tested on a GPU: {reason}").unwrap();
    }
    gpus
}

/// That `check` fails on every adapter with the shader `source` in which `right` is replaced by `wrong`.
pub(crate) fn notices(
    source: &str,
    right: &str,
    wrong: &str,
    check: impl Fn(&Gpu, &str) -> Result<(), String>,
) {
    let edited = source.replace(right, wrong);
    assert_ne!(edited, source, "{right} is no longer in the shader: edit this test");
    for gpu in gpus() {
        let result = check(&gpu, &edited);
        assert!(result.is_err(), "{wrong} in place of {right} went unnoticed on {}", gpu.info().name);
    }
}

/// The slowest variant, which is the definition itself.
pub(crate) fn definition() -> Variant {
    variants()[0]
}

/// Small limits, so that the cutting shows at small sizes: parts of 64 elements and 3 workgroups a row.
pub(crate) const TINY: Limits = Limits { binding_bytes: 256, workgroups_per_dimension: 3 };

/// One workgroup in a row, so that every dispatch beyond 2,048 elements is two-dimensional.
pub(crate) fn narrow(gpu: &Gpu) -> Limits {
    Limits { workgroups_per_dimension: 1, ..Limits::of(gpu) }
}

/// Every codec that has kernels, each in the configurations that take different paths.
pub(crate) fn codecs() -> Vec<Codec> {
    let mut codecs = Vec::new();
    codecs.extend(configs().into_iter().map(Codec::Loco));
    codecs.extend(topk_configs().into_iter().map(Codec::TopK));
    codecs.extend([Codec::F32, Codec::F16, Codec::Bf16]);
    for (kind, block) in [(Kind::E4M3, 128), (Kind::E5M2, 32), (Kind::E4M3, 40), (Kind::E5M2, 1024)] {
        codecs.push(Codec::Fp8(fp8::Config { kind, block }));
    }
    codecs.push(Codec::Ef(ef::Config { scale_log2: 3, residual_scale_log2: 2 }));
    codecs.extend([0, 22, -64, 64].map(|scale_log2| Codec::IntSgd(intsgd::Config { scale_log2 })));
    codecs.extend(
        ["ef21", "ef21:momentum_log2=3", "sign:block=64,reset_every=3"]
            .map(|text| text.parse::<Codec>().unwrap()),
    );
    codecs.extend([
        Codec::LocoBlock(loco_block::Config::default()),
        "loco-block:bits=2,block=40,base_log2=-30,decay=205,reset_every=2".parse().unwrap(),
        "loco-block:bits=8,block=136,base_log2=0,decay=0,reset_every=0".parse().unwrap(),
        Codec::new(CodecId::Block8),
        Codec::new(CodecId::Block4),
    ]);
    codecs
}

/// Each kind of residual, mean and clip; the smallest, largest and odd layouts; both ends of the scale.
pub(crate) fn topk_configs() -> Vec<topk::Config> {
    use topk::{Clip, Mean, Residual};
    let config = topk::Config::default();
    let (residual, mean, clip) = (Residual::Bits8, Mean::Contributors, Clip::MedianNorm);
    vec![
        config,
        topk::Config { chunk: 64, k: 1, decay: 256, residual, ..config },
        topk::Config { chunk: 256, k: 37, scale_log2: 0, residual, mean, clip, ..config },
        topk::Config { chunk: 512, k: 255, scale_log2: 64, mean, ..config },
        topk::Config { chunk: 1024, k: 513, scale_log2: -64, decay: 0, residual, clip, ..config },
        topk::Config { k: 4096, residual, ..config },
    ]
}

/// The configurations of LoCo's golden vectors.
pub(crate) fn configs() -> Vec<Config> {
    let config = |scale_log2, residual_scale_log2, decay, reset: u32| Config {
        scale_log2,
        residual_scale_log2,
        decay,
        reset_every: std::num::NonZeroU32::new(reset),
    };
    vec![
        Config::default(),
        config(17, 2, 0, 0),
        config(0, 4, 240, 3),
        config(-3, 6, 192, 2),
        config(30, 0, 128, 5),
        config(-64, 0, 255, 2),
        config(64, 6, 255, 2),
    ]
}

/// Every `step`-th of `all`, begun at another place for every `index`: what is too much for each of many codecs is spread
/// over them, and nothing of `all` is left out by `step` of them in a row.
pub(crate) fn spread<T: Copy>(all: &[T], index: usize, step: usize) -> Vec<T> {
    all.iter().copied().skip(index % step).step_by(step).collect()
}

/// Each codec, and whether it is the first of [`codecs`] with its name: those are tested at every length, the others, which
/// differ from them in numbers, at some.
pub(crate) fn codecs_and_first_of_each() -> Vec<(Codec, bool)> {
    let mut seen = Vec::new();
    let first = |codec: Codec| {
        let first = !seen.contains(&codec.id());
        seen.push(codec.id());
        (codec, first)
    };
    codecs().into_iter().map(first).collect()
}

/// The step before the first that resets the state, so that a run of a few crosses it.
pub(crate) fn before_reset(codec: &Codec) -> u64 {
    let reset = (2..600).find(|step| codec.is_reset(Step::new(*step).unwrap()));
    reset.map_or(1, |step| step - 1)
}

/// A gradient in one of the input types.
#[derive(Clone, Debug)]
pub(crate) enum Values {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
}

impl Values {
    /// `values`, rounded to `input`.
    pub(crate) fn new(input: Input, values: &[f32]) -> Self {
        match input {
            Input::F32 => Self::F32(values.to_vec()),
            Input::F16 => Self::F16(values.iter().copied().map(f16::from_f32).collect()),
            Input::Bf16 => Self::Bf16(values.iter().copied().map(bf16::from_f32).collect()),
        }
    }

    pub(crate) fn gradient(&self) -> Gradient<'_> {
        match self {
            Self::F32(values) => values.into(),
            Self::F16(values) => values.into(),
            Self::Bf16(values) => values.into(),
        }
    }

    pub(crate) fn widened(&self) -> Vec<f32> {
        let mut widened = vec![0.0; self.gradient().len()];
        self.gradient().widen(&mut widened);
        widened
    }
}

/// Gradient aimed at the places where implementations differ: ties and their neighbours, saturation, subnormals, the
/// ends of the range, any bits at all, and non-finite values.
pub(crate) fn gradient(random: &mut Random, elements: usize, codec: &Codec, input: Input) -> Values {
    const SPECIAL: [u32; 12] = [
        0,
        0x8000_0000,
        1,
        0x807F_FFFF,
        0x0080_0000,
        0x7F7F_FFFF,
        0xFF7F_FFFF,
        0x7FC0_0000,
        0x7F80_0000,
        0xFF80_0000,
        0x7F80_0001,
        0xFFFF_FFFF,
    ];
    let unit = 2_f64.powi(-i32::from(codec.scale_log2().unwrap_or(0)));
    let value = |random: &mut Random| match random.below(100) {
        0..45 => ((random.unit() + random.unit() + random.unit()) * 3.0 * unit) as f32,
        45..65 => {
            let tie = ((random.below(20) as f64 - 9.5) * unit) as f32;
            f32::from_bits(tie.to_bits().wrapping_add((random.below(3) as u32).wrapping_sub(1)))
        }
        // Ties of the fixed point itself, twelve digits further down.
        65..80 => ((random.below(1 << 17) as f64 - f64::from(1 << 16) + 0.5) / 4096.0 * unit) as f32,
        80..90 => (random.unit() * 90.0 * unit) as f32,
        90..95 => f32::from_bits(random.bits() as u32),
        _ => f32::from_bits(SPECIAL[random.below(12) as usize]),
    };
    let values: Vec<f32> = (0..elements).map(|_| value(random)).collect();
    let mut values = Values::new(input, &values);
    // Few f32 round to a subnormal or a signalling NaN of a half type: a tenth is any bits at all.
    let mut any_bits = || (random.below(10) == 0).then(|| random.bits() as u16);
    match &mut values {
        Values::F32(_) => {}
        Values::F16(values) => {
            values.iter_mut().for_each(|value| *value = any_bits().map_or(*value, f16::from_bits));
        }
        Values::Bf16(values) => {
            values.iter_mut().for_each(|value| *value = any_bits().map_or(*value, bf16::from_bits));
        }
    }
    values
}

/// One encoder under test, with its state.
pub(crate) trait Encoder {
    fn encode(&mut self, codec: &Codec, step: Step, gradient: Gradient<'_>, packet: &mut [u32]) -> Stats;
    fn state(&mut self) -> Vec<u32>;
}

impl Encoder for Encode {
    fn encode(&mut self, codec: &Codec, step: Step, gradient: Gradient<'_>, packet: &mut [u32]) -> Stats {
        Encode::encode(self, codec, step, gradient, packet).unwrap()
    }

    fn state(&mut self) -> Vec<u32> {
        Encode::state(self).unwrap()
    }
}

/// The CPU function of any codec with its state; of LoCo one of its variants.
pub(crate) struct Cpu {
    loco: Variant,
    state: Vec<u32>,
}

impl Cpu {
    /// With a zero state for `elements`.
    pub(crate) fn new(loco: Variant, codec: &Codec, elements: usize) -> Self {
        Self { loco, state: vec![0; codec.state_words(elements)] }
    }
}

impl Encoder for Cpu {
    fn encode(&mut self, codec: &Codec, step: Step, gradient: Gradient<'_>, packet: &mut [u32]) -> Stats {
        match codec {
            Codec::Loco(config) => {
                let mut values = vec![0.0; gradient.len()];
                gradient.widen(&mut values);
                let residual = &mut bytemuck::cast_slice_mut(&mut self.state)[..values.len()];
                (self.loco.encode)(config, step, &values, residual, packet)
            }
            _ => codec.encode(step, gradient, &mut self.state, packet),
        }
    }

    fn state(&mut self) -> Vec<u32> {
        self.state.clone()
    }
}

/// Runs `under_test` beside the definition over `steps` gradients and says where packets, states or counts differ.
pub(crate) fn compare(
    codec: &Codec,
    first_step: u64,
    steps: &[Values],
    under_test: &mut dyn Encoder,
) -> Result<(), String> {
    let elements = steps[0].gradient().len();
    let unit = codec.unit();
    let mut expected = Cpu::new(definition(), codec, elements);
    let mut want = vec![0; codec.packet_words(elements)];
    for (number, values) in (first_step..).zip(steps) {
        let step = Step::new(number).unwrap();
        // Painted, so that a word that nobody writes shows.
        let mut got = vec![0x5A5A_5A5A; want.len()];
        let before = expected.state();
        let want_stats = expected.encode(codec, step, values.gradient(), &mut want);
        let got_stats = under_test.encode(codec, step, values.gradient(), &mut got);
        let context = |at: usize| {
            let first = at * unit.elements;
            let bits: Vec<String> = values.widened()[first..elements.min(first + unit.elements)]
                .iter()
                .take(16)
                .map(|value| format!("{:#010x}", value.to_bits()))
                .collect();
            let state = &before[at * unit.state_words..][..unit.state_words.min(8)];
            format!(
                "{codec:?} step {number}, unit {at} of {elements} elements, {}, which begin {}, state {state:x?}",
                values.gradient().input().name(),
                bits.join(" "),
            )
        };
        let (want_state, got_state) = (expected.state(), under_test.state());
        for (what, want, got, words) in
            [("packet", &want, &got, unit.words), ("state", &want_state, &got_state, unit.state_words)]
        {
            if want.len() != got.len() {
                return Err(format!("{what} of {} words, not {}", got.len(), want.len()));
            }
            if let Some(word) = (0..want.len()).find(|&word| want[word] != got[word]) {
                return Err(format!(
                    "{what} word {} is {:#010x}, not {:#010x}: {}",
                    word % words,
                    got[word],
                    want[word],
                    context(word / words)
                ));
            }
        }
        if want_stats != got_stats {
            return Err(format!(
                "{got_stats:?}, not {want_stats:?}: {codec:?} step {number}, {elements} elements"
            ));
        }
    }
    Ok(())
}

/// An average under test beside the definition, each with its state.
pub(crate) struct Means {
    pub(crate) average: Average,
    state: Vec<u32>,
}

impl Means {
    pub(crate) fn new(average: Average) -> Self {
        Self { average, state: Vec::new() }
    }

    /// Compares the mean of `packets`, and the state after it; both sides may also refuse a packet for the same reason.
    ///
    /// A state of another number of ranks is replaced by zeros.
    pub(crate) fn compare(
        &mut self,
        codec: &Codec,
        packets: &[Vec<u32>],
        weights: &[u32],
    ) -> Result<(), String> {
        let elements = self.average.elements();
        let state_words = codec.mean_state_words(packets.len(), elements);
        if self.state.len() != state_words {
            self.state = vec![0; state_words];
            self.average.set_state(&[]).unwrap();
        }
        let packets: Vec<&[u32]> = packets.iter().map(Vec::as_slice).collect();
        let mut want = vec![0.0; elements];
        let wanted = match codec {
            Codec::Loco(config) => (definition().average)(config, &packets, weights, &mut want),
            _ => codec.average(&packets, weights, &mut self.state, &mut want),
        };
        let mut got = vec![f32::NAN; elements];
        let result: Result<(), AverageError> = match self.average.average(codec, &packets, weights, &mut got)
        {
            Ok(()) => Ok(()),
            Err(GpuError::Average(error)) => Err(error),
            Err(error) => panic!("{error}"),
        };
        let context =
            || format!("{elements} elements, {} ranks, weights {weights:?}, {codec:?}", packets.len());
        if result != wanted {
            return Err(format!("{result:?}, not {wanted:?}: {}", context()));
        }
        let place = (0..elements).find(|&at| got[at].to_bits() != want[at].to_bits());
        if let Some(at) = place.filter(|_| wanted.is_ok()) {
            let (got, want) = (got[at], want[at]);
            return Err(format!(
                "mean[{at}] is {got} ({:#010x}), not {want} ({:#010x}): {}",
                got.to_bits(),
                want.to_bits(),
                context()
            ));
        }
        let state = self.average.state().unwrap();
        // Before the first mean the device has none.
        if !state.is_empty() && state != self.state {
            return Err(format!("another state: {}", context()));
        }
        Ok(())
    }
}

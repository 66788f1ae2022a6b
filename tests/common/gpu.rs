//! Adapters under test, aimed input, and the bitwise comparison of one encoder with the definition.
//!
//! Included by path: the tests that need a GPU share one answer to "and if there is none?".

#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "test code")]
#![allow(clippy::cast_possible_truncation, reason = "random bits are cut to size, values rounded to f32")]

use std::io::Write;

#[path = "random.rs"]
mod random;

use gradwire::codec::loco::{Config, Variant, packet_words, variants};
use gradwire::codec::{Stats, Step};
use gradwire::gpu::loco::{Average, Encode};
use gradwire::gpu::{AdapterChoice, Gpu, GpuError, Limits, adapters};
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

/// The configurations of the golden vectors.
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

/// Gradient aimed at the places where implementations differ: ties and their neighbours, saturation, subnormals, the
/// ends of the range, any bits at all, and non-finite values.
pub(crate) fn gradient(random: &mut Random, elements: usize, config: &Config) -> Vec<f32> {
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
    let unit = 2_f64.powi(-i32::from(config.scale_log2));
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
    (0..elements).map(|_| value(random)).collect()
}

/// One encoder under test: a state with a residual.
pub(crate) trait Encoder {
    fn encode(&mut self, config: &Config, step: Step, gradient: &[f32], packet: &mut [u32]) -> Stats;
    fn residual(&mut self) -> Vec<i8>;
}

impl Encoder for Encode {
    fn encode(&mut self, config: &Config, step: Step, gradient: &[f32], packet: &mut [u32]) -> Stats {
        Encode::encode(self, config, step, gradient, packet).unwrap()
    }

    fn residual(&mut self) -> Vec<i8> {
        Encode::residual(self).unwrap()
    }
}

/// A CPU variant with its residual.
pub(crate) struct Cpu(pub(crate) Variant, pub(crate) Vec<i8>);

impl Encoder for Cpu {
    fn encode(&mut self, config: &Config, step: Step, gradient: &[f32], packet: &mut [u32]) -> Stats {
        (self.0.encode)(config, step, gradient, &mut self.1, packet)
    }

    fn residual(&mut self) -> Vec<i8> {
        self.1.clone()
    }
}

/// Runs `under_test` beside the definition over `steps` gradients and says where packets, residuals or counts differ.
pub(crate) fn compare(
    config: &Config,
    first_step: u64,
    steps: &[Vec<f32>],
    under_test: &mut dyn Encoder,
) -> Result<(), String> {
    let elements = steps[0].len();
    let mut expected = Cpu(definition(), vec![0; elements]);
    let mut want = vec![0; packet_words(elements)];
    // Painted, so that a word that nobody writes shows.
    let mut got = vec![0x5A5A_5A5A; packet_words(elements)];
    for (number, gradient) in (first_step..).zip(steps) {
        let step = Step::new(number).unwrap();
        let before = expected.residual();
        let want_stats = expected.encode(config, step, gradient, &mut want);
        let got_stats = under_test.encode(config, step, gradient, &mut got);
        let (want_residual, got_residual) = (expected.residual(), under_test.residual());
        let context = |index: usize| {
            let bits = gradient.get(index).map_or(0, |value| value.to_bits());
            let before = before.get(index).copied().unwrap_or(0);
            format!(
                "{config:?} step {number}, element {index} of {elements}, bits {bits:#010x}, residual {before}"
            )
        };
        if let Some(word) = (0..want.len()).find(|&word| want[word] != got[word]) {
            let nibble = (want[word] ^ got[word]).trailing_zeros() as usize / 4;
            return Err(format!(
                "packet {:#010x}, not {:#010x}: {}",
                got[word],
                want[word],
                context(word * 8 + nibble)
            ));
        }
        if let Some(at) = (0..elements).find(|&at| want_residual[at] != got_residual[at]) {
            return Err(format!("residual {}, not {}: {}", got_residual[at], want_residual[at], context(at)));
        }
        if want_stats != got_stats {
            return Err(format!(
                "{got_stats:?}, not {want_stats:?}: {config:?} step {number}, {elements} elements"
            ));
        }
    }
    Ok(())
}

/// Bits of the mean from the device and from the definition.
pub(crate) fn means(
    average: &mut Average,
    config: &Config,
    packets: &[Vec<u32>],
    weights: &[u32],
) -> Result<(Vec<u32>, Vec<u32>), GpuError> {
    let packets: Vec<&[u32]> = packets.iter().map(Vec::as_slice).collect();
    let mut want = vec![0.0; average.elements()];
    (definition().average)(config, &packets, weights, &mut want).unwrap();
    let mut got = vec![f32::NAN; average.elements()];
    average.average(config, &packets, weights, &mut got)?;
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect();
    Ok((bits(got), bits(want)))
}

//! Does an adapter give the bits of the CPU definition? Asked before it may join a run.
//!
//! **What.** A few thousand elements aimed at rounding ties, saturation, subnormals and non-finite values, encoded and
//! averaged on both sides. A driver that passes is not proven right, but every driver fault seen so far (comparison of
//! NaN, overflow of a conversion, packing with constant lanes, flushed subnormals) would show here.
//!
//! **Cost.** One compilation of both kernels, and a few milliseconds.

use std::fmt;
use std::num::NonZeroU32;

use super::{Average, Encode, Gpu, GpuError};
use crate::codec::loco::Config;
use crate::codec::{Codec, Input, Step};

/// The first place where an adapter is not the definition.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Difference {
    /// `packet`, `state`, `counts` or `mean`.
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
        let Self { what, index, expected, found } = self;
        write!(formatter, "{what}[{index}] is {found:#x} on the adapter, {expected:#x} by definition")
    }
}

/// Compares `gpu` with the CPU definition; `None` if it is exact.
///
/// # Errors
///
/// Those of a failing device.
pub fn difference(gpu: &Gpu) -> Result<Option<Difference>, GpuError> {
    difference_of(&mut |codec, elements| Encode::new(gpu, codec, Input::F32, elements), gpu)
}

const CONFIGS: [Config; 3] = [
    Config { scale_log2: 19, residual_scale_log2: 4, decay: 205, reset_every: NonZeroU32::new(3) },
    Config { scale_log2: 0, residual_scale_log2: 6, decay: 192, reset_every: None },
    Config { scale_log2: -40, residual_scale_log2: 0, decay: 0, reset_every: None },
];

fn difference_of(
    encode: &mut dyn FnMut(&Codec, usize) -> Result<Encode, GpuError>,
    gpu: &Gpu,
) -> Result<Option<Difference>, GpuError> {
    for config in &CONFIGS {
        let codec = Codec::Loco(*config);
        let mut gradient = gradient(config);
        let elements = gradient.len();
        let mut on_device = encode(&codec, elements)?;
        let mut state = vec![0; codec.state_words(elements)];
        let mut packets = Vec::new();
        for step in (1..=4).filter_map(Step::new) {
            let mut expected = vec![0; codec.packet_words(elements)];
            let mut found = expected.clone();
            let expected_stats = codec.encode(step, (&gradient).into(), &mut state, &mut expected);
            let found_stats = on_device.encode(&codec, step, (&gradient).into(), &mut found)?;
            let counts = |stats: crate::codec::Stats| [stats.nonfinite, stats.saturated];
            let difference = first("packet", expected.iter().copied(), found.iter().copied())
                .or_else(|| first("counts", counts(expected_stats), counts(found_stats)));
            let found_state = on_device.state()?;
            let difference = difference.or_else(|| first("state", state.iter().copied(), found_state));
            if difference.is_some() {
                return Ok(difference);
            }
            packets.push(expected);
            // Another residual meets each value next time.
            gradient.rotate_left(7);
        }
        let packets: Vec<&[u32]> = packets.iter().map(Vec::as_slice).collect();
        // An inexact product almost everywhere: the total has no factor that a float divides exactly.
        let weights = [3, 100_003, 7, 65_536];
        let mut expected = vec![0.0; elements];
        let mut found = expected.clone();
        codec.average(&packets, &weights, &mut [], &mut expected)?;
        Average::new(gpu, &codec, elements)?.average(&codec, &packets, &weights, &mut found)?;
        let bits = |value: &f32| value.to_bits();
        let difference = first("mean", expected.iter().map(bits), found.iter().map(bits));
        if difference.is_some() {
            return Ok(difference);
        }
    }
    Ok(None)
}

fn first<T: Into<u64>>(
    what: &'static str,
    expected: impl IntoIterator<Item = T>,
    found: impl IntoIterator<Item = T>,
) -> Option<Difference> {
    let pairs = expected.into_iter().zip(found).map(|(expected, found)| (expected.into(), found.into()));
    pairs
        .enumerate()
        .find(|(_, (expected, found))| expected != found)
        .map(|(index, (expected, found))| Difference { what, index, expected, found })
}

/// Ties of code and fixed point with their neighbours, every exponent, and non-finite values.
fn gradient(config: &Config) -> Vec<f32> {
    let exponent = u32::from((127 - i16::from(config.scale_log2)).cast_unsigned());
    let unit = f32::from_bits(exponent << 23);
    let mut values = Vec::new();
    let mut around = |value: f32| {
        for bits in [value.to_bits(), value.to_bits().wrapping_add(1), value.to_bits().wrapping_sub(1)] {
            values.extend([f32::from_bits(bits), -f32::from_bits(bits)]);
        }
    };
    for halves in 0_u8..40 {
        around(f32::from(halves) * 0.5 * unit);
        around((f32::from(halves) + 0.5) * unit / 4096.0);
        // One code and a half, and half of the last fixed-point digit.
        around((1.5 + (f32::from(halves) + 0.5) / 4096.0) * unit);
    }
    for top in 0..512 {
        values.extend([0, 1, 0x40_0000, 0x7F_FFFF].map(|mantissa| f32::from_bits(top << 23 | mantissa)));
    }
    values
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code")]

    use std::io::Write;

    use super::super::source::LOCO_ENCODE;
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
        assert_eq!(difference(&gpu).unwrap(), None, "{}", gpu.info().label());

        let source = LOCO_ENCODE.source(Input::F32);
        for (right, wrong, what) in [
            ("- vec4<i32>(1) + odd)", ")", "packet"),
            ("vec4<i32>(127));", "vec4<i32>(126));", "state"),
            ("(code != rounded)", "(code == rounded)", "counts"),
        ] {
            let edited = source.replace(right, wrong);
            assert_ne!(edited, source, "{right} is no longer in the shader: edit this test");
            let limits = Limits::of(&gpu);
            let mut encode = |codec: &Codec, elements| {
                Encode::with_source(&gpu, codec, Input::F32, elements, limits, &edited)
            };
            let found = difference_of(&mut encode, &gpu).unwrap();
            assert_eq!(found.map(|difference| difference.what), Some(what), "{wrong}");
        }
    }
}

//! The CPU functions on one core, against a copy, on the input that kernels are measured with too.

use std::hint::black_box;

use gradwire::codec::{AverageError, Codec, Gradient, Input, Step};
use gradwire::gpu::throughput::{RANKS, Rate, WEIGHTS, average_bytes, encode_bytes};
use half::{bf16, f16};

/// What one core does per run.
pub(crate) struct Rates {
    pub(crate) encode: Rate,
    pub(crate) average: Rate,
    /// A copy that moves as many bytes as the encode.
    pub(crate) copy: Rate,
}

/// A gradient to measure with, in one of the input types.
pub(crate) enum Values {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
}

impl Values {
    /// `elements` values with a root mean square of 1, as bell-shaped as four uniforms make them.
    pub(crate) fn new(input: Input, elements: usize) -> Self {
        let mut state = 20_261_129_u32;
        let mut uniform = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 - 0.5
        };
        // The sum of four uniforms on -1/2..1/2 has variance 1/3.
        let root = 3.0_f32.sqrt();
        let mut value = || root * (uniform() + uniform() + uniform() + uniform());
        match input {
            Input::F32 => Self::F32((0..elements).map(|_| value()).collect()),
            Input::F16 => Self::F16((0..elements).map(|_| f16::from_f32(value())).collect()),
            Input::Bf16 => Self::Bf16((0..elements).map(|_| bf16::from_f32(value())).collect()),
        }
    }

    pub(crate) fn gradient(&self) -> Gradient<'_> {
        match self {
            Self::F32(values) => values.into(),
            Self::F16(values) => values.into(),
            Self::Bf16(values) => values.into(),
        }
    }
}

/// `codec` as an automatic scale would set it for a gradient with a root mean square of 1.
pub(crate) fn scaled(mut codec: Codec) -> Codec {
    codec.set_scale_log2(codec.rms_log2());
    codec
}

/// Measures `codec` on this core.
///
/// # Errors
///
/// Parameters out of range.
pub(crate) fn measure(codec: &Codec, gradient: Gradient<'_>) -> Result<Rates, AverageError> {
    codec.validate()?;
    let elements = gradient.len();
    let mut state = vec![0; codec.state_words(elements)];
    let mut packet = vec![0; codec.packet_words(elements)];
    let bytes = encode_bytes(codec, gradient.input(), elements);
    let encode = Rate::measure(|times| {
        for _ in 0..times {
            codec.encode(Step::FIRST, black_box(gradient), &mut state, &mut packet);
        }
        Ok::<_, AverageError>(bytes)
    })?;
    // Packets of their own, so that a rank's bytes are not in a cache because another's were read.
    let packets = vec![packet; RANKS];
    let packets: Vec<&[u32]> = packets.iter().map(Vec::as_slice).collect();
    let mut state = vec![0; codec.mean_state_words(RANKS, elements)];
    let mut mean = vec![0.0; elements];
    let average = Rate::measure(|times| {
        for _ in 0..times {
            codec.average(black_box(&packets), &WEIGHTS, &mut state, &mut mean)?;
        }
        Ok::<_, AverageError>(average_bytes(codec, RANKS, elements))
    })?;
    Ok(Rates { encode, average, copy: copy(bytes)? })
}

/// A copy that reads and writes `bytes` together.
fn copy(bytes: u64) -> Result<Rate, AverageError> {
    let half = usize::try_from(bytes / 2).unwrap_or(usize::MAX).max(1);
    let source = vec![1_u8; half];
    let mut target = vec![0_u8; half];
    Rate::measure(|times| {
        for _ in 0..times {
            target.copy_from_slice(black_box(&source));
            black_box(&mut target);
        }
        Ok(2 * half as u64)
    })
}

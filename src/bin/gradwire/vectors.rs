//! Golden vectors: the file format, and the comparison of an implementation with it, bit for bit.
//!
//! `gradwire verify` and `tests/golden.rs` both use this file, so that format and comparison exist once.
//! The format is described in `tests/golden/README.md`.

use std::fmt::Display;

use gradwire::codec::loco::Variant;
use gradwire::codec::{AverageError, Codec, Gradient, Stats, Step};
use serde::Serialize;

// By its path, as tests include this file by its own.
#[path = "vectors/file.rs"]
mod file;

pub(crate) use file::VectorFile;
use file::{Case, Encoded};

/// Something that claims to be the codec: a CPU variant or an adapter.
pub(crate) trait Implementation {
    /// Why it could not compute at all.
    type Error: Display;

    /// Forgets what it keeps of earlier means: another case comes.
    fn begin(&mut self) {}

    /// As [`Codec::encode`].
    fn encode(
        &mut self,
        codec: &Codec,
        step: Step,
        gradient: Gradient<'_>,
        state: &mut [u32],
        packet: &mut [u32],
    ) -> Result<Stats, Self::Error>;

    /// As [`Codec::average`], with a state of its own.
    fn average(
        &mut self,
        codec: &Codec,
        packets: &[&[u32]],
        weights: &[u32],
        mean: &mut [f32],
    ) -> Result<(), Self::Error>;
}

/// The functions that users call.
#[derive(Default)]
pub(crate) struct Cpu {
    mean_state: Vec<u32>,
}

impl Implementation for Cpu {
    type Error = AverageError;

    fn begin(&mut self) {
        self.mean_state.clear();
    }

    fn encode(
        &mut self,
        codec: &Codec,
        step: Step,
        gradient: Gradient<'_>,
        state: &mut [u32],
        packet: &mut [u32],
    ) -> Result<Stats, AverageError> {
        Ok(codec.encode(step, gradient, state, packet))
    }

    fn average(
        &mut self,
        codec: &Codec,
        packets: &[&[u32]],
        weights: &[u32],
        mean: &mut [f32],
    ) -> Result<(), AverageError> {
        self.mean_state.resize(codec.mean_state_words(packets.len(), mean.len()), 0);
        codec.average(packets, weights, &mut self.mean_state, mean)
    }
}

/// One of LoCo's variants; another codec's vectors are the fault of whoever asks it.
impl Implementation for Variant {
    type Error = String;

    fn encode(
        &mut self,
        codec: &Codec,
        step: Step,
        gradient: Gradient<'_>,
        state: &mut [u32],
        packet: &mut [u32],
    ) -> Result<Stats, String> {
        let (Codec::Loco(config), Gradient::F32(gradient)) = (codec, gradient) else {
            return Err(format!("a variant of loco was asked for {codec}"));
        };
        let residual = &mut bytemuck::cast_slice_mut(state)[..gradient.len()];
        Ok((self.encode)(config, step, gradient, residual, packet))
    }

    fn average(
        &mut self,
        codec: &Codec,
        packets: &[&[u32]],
        weights: &[u32],
        mean: &mut [f32],
    ) -> Result<(), String> {
        let Codec::Loco(config) = codec else {
            return Err(format!("a variant of loco was asked for {codec}"));
        };
        (self.average)(config, packets, weights, mean).map_err(|error| error.to_string())
    }
}

/// The outcome over a whole file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Comparison {
    /// Cases compared.
    pub(crate) cases: usize,
    /// Cases with at least one differing number.
    pub(crate) different: usize,
    /// The first differing number of the first such case.
    pub(crate) first_difference: Option<Difference>,
}

/// One number that came out differently. Bits are shown as the unsigned integers of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Difference {
    /// Index of the case in the file.
    pub(crate) case: usize,
    /// Rank; `None` for a mean, which belongs to all.
    pub(crate) rank: Option<usize>,
    /// Step number.
    pub(crate) step: u64,
    /// `words`, `residual`, `state`, `nonfinite`, `saturated` or `mean_bits`.
    pub(crate) field: &'static str,
    /// Place in that field; 0 for a single number.
    pub(crate) index: usize,
    /// The number in the file.
    pub(crate) expected: i64,
    /// The number that came out.
    pub(crate) got: i64,
}

/// Runs every case and compares packets, residuals, counts and means by their bits.
///
/// # Errors
///
/// The implementation's own error if it cannot compute; a wrong number is not an error but a difference.
pub(crate) fn compare<I: Implementation>(
    file: &VectorFile,
    implementation: &mut I,
) -> Result<Comparison, I::Error> {
    let mut comparison = Comparison { cases: file.cases.len(), different: 0, first_difference: None };
    for (index, case) in file.cases.iter().enumerate() {
        if let Some(difference) = first_difference(index, case, implementation)? {
            comparison.different += 1;
            comparison.first_difference.get_or_insert(difference);
        }
    }
    Ok(comparison)
}

fn first_difference<I: Implementation>(
    index: usize,
    case: &Case,
    implementation: &mut I,
) -> Result<Option<Difference>, I::Error> {
    implementation.begin();
    let codec = &case.codec;
    let mut states = vec![vec![0; codec.state_words(case.n)]; case.ranks.len()];
    for (k, average) in case.averages.iter().enumerate() {
        let step = average.step;
        let mut packets = Vec::new();
        for (rank, (vectors, state)) in case.ranks.iter().zip(&mut states).enumerate() {
            let expected = &vectors.steps[k];
            let gradient: Vec<f32> =
                expected.gradient_bits.iter().map(|bits| f32::from_bits(*bits)).collect();
            // Painted, so that a word which is never written shows.
            let mut packet = vec![0xA5A5_A5A5; codec.packet_words(case.n)];
            let stats = implementation.encode(codec, step, (&gradient).into(), state, &mut packet)?;
            if let Some((field, (place, expected, got))) = expected.first_difference(&packet, state, stats) {
                let (case, step, rank) = (index, step.get(), Some(rank));
                return Ok(Some(Difference { case, rank, step, field, index: place, expected, got }));
            }
            packets.push(packet);
        }
        let packets: Vec<&[u32]> = packets.iter().map(Vec::as_slice).collect();
        let mut mean = vec![f32::NAN; case.n];
        implementation.average(codec, &packets, &case.weights, &mut mean)?;
        let mean: Vec<u32> = mean.iter().map(|value| value.to_bits()).collect();
        if let Some((place, expected, got)) = first(&average.mean_bits, &mean) {
            let (case, step, field) = (index, step.get(), "mean_bits");
            return Ok(Some(Difference { case, rank: None, step, field, index: place, expected, got }));
        }
    }
    Ok(None)
}

/// A place in a list, the number expected there and the one found.
type Found = (usize, i64, i64);

impl Encoded {
    fn first_difference(&self, packet: &[u32], state: &[u32], stats: Stats) -> Option<(&'static str, Found)> {
        let named = |name| move |found| (name, found);
        let bytes =
            || state.iter().flat_map(|word| word.to_le_bytes()).map(u8::cast_signed).collect::<Vec<_>>();
        let in_bytes = || first(self.residual.as_ref()?, &bytes()).map(named("residual"));
        let in_words = || first(self.state.as_ref()?, state).map(named("state"));
        first(&self.words, packet)
            .map(named("words"))
            .or_else(in_bytes)
            .or_else(in_words)
            .or_else(|| first(&[self.nonfinite], &[stats.nonfinite]).map(named("nonfinite")))
            .or_else(|| first(&[self.saturated?], &[stats.saturated]).map(named("saturated")))
    }
}

/// The first place where two lists differ, with both numbers.
fn first<T: Copy + PartialEq + TryInto<i64>>(expected: &[T], got: &[T]) -> Option<Found> {
    let index = expected.iter().zip(got).position(|(a, b)| a != b)?;
    // Every field fits but a count near 2^64, which saturates: it is shown, not computed with.
    let shown = |value: T| value.try_into().unwrap_or(i64::MAX);
    Some((index, shown(expected[index]), shown(got[index])))
}

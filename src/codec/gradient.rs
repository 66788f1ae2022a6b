//! What a codec reads: a gradient in f32, f16 or bf16, widened exactly.
//!
//! Training in half precision hands over half types. Both widen to f32 without rounding, so a codec is defined on
//! f32 bits alone and a half gradient gives the packet that its widened copy would give.

use std::ops::Range;

use half::{bf16, f16};

use super::convert::widen_f16;

/// Elements that are widened at a time where a codec works on f32: 16 KiB, which stays in the first-level cache.
pub const CHUNK: usize = 4096;

/// One rank's gradient, borrowed from the caller in the type it has there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Gradient<'a> {
    /// 4 bytes per element.
    F32(&'a [f32]),
    /// 2 bytes per element, 11 significant bits.
    F16(&'a [f16]),
    /// 2 bytes per element, 8 significant bits.
    Bf16(&'a [bf16]),
}

/// The element type of a [`Gradient`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// `f32`.
    F32,
    /// [`half::f16`].
    F16,
    /// [`half::bf16`].
    Bf16,
}

impl Input {
    /// Every type, widest first.
    pub const ALL: [Self; 3] = [Self::F32, Self::F16, Self::Bf16];

    /// Bytes of one element.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// `f32`, `f16` or `bf16`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }
}

impl<'a> Gradient<'a> {
    /// Number of elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::F16(values) => values.len(),
            Self::Bf16(values) => values.len(),
        }
    }

    /// Whether there is no element.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The element type.
    #[must_use]
    pub const fn input(&self) -> Input {
        match self {
            Self::F32(_) => Input::F32,
            Self::F16(_) => Input::F16,
            Self::Bf16(_) => Input::Bf16,
        }
    }

    /// The elements of `range`.
    ///
    /// # Panics
    ///
    /// If `range` ends behind the last element.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Gradient<'a> {
        match self {
            Self::F32(values) => Gradient::F32(&values[range]),
            Self::F16(values) => Gradient::F16(&values[range]),
            Self::Bf16(values) => Gradient::Bf16(&values[range]),
        }
    }

    /// The memory of the elements, as a device reads it.
    #[must_use]
    pub fn as_bytes(&self) -> &'a [u8] {
        match self {
            Self::F32(values) => bytemuck::cast_slice(values),
            Self::F16(values) => bytemuck::cast_slice(values),
            Self::Bf16(values) => bytemuck::cast_slice(values),
        }
    }

    /// Calls `take` with consecutive runs of elements, widened to f32, and the index of the first of each.
    ///
    /// Every run but the last has `step` elements; an f32 gradient is handed over without a copy. `step` is at least 1:
    /// a codec takes the largest multiple of its unit below [`CHUNK`], or one unit.
    pub fn for_each_chunk(&self, step: usize, mut take: impl FnMut(usize, &[f32])) {
        let step = step.max(1);
        let mut widened = match self {
            Self::F32(_) => Vec::new(),
            _ => vec![0.0; step.min(self.len())],
        };
        for start in (0..self.len()).step_by(step) {
            let end = self.len().min(start + step);
            match self {
                Self::F32(values) => take(start, &values[start..end]),
                _ => {
                    let out = &mut widened[..end - start];
                    self.slice(start..end).widen(out);
                    take(start, out);
                }
            }
        }
    }

    /// Widens every element into `out`, which has the same length.
    ///
    /// # Panics
    ///
    /// If the lengths differ.
    pub fn widen(&self, out: &mut [f32]) {
        assert_eq!(out.len(), self.len(), "room for {} elements of {}", out.len(), self.len());
        match self {
            Self::F32(values) => out.copy_from_slice(values),
            Self::F16(values) => {
                for (out, value) in out.iter_mut().zip(*values) {
                    *out = f32::from_bits(widen_f16(value.to_bits()));
                }
            }
            Self::Bf16(values) => {
                for (out, value) in out.iter_mut().zip(*values) {
                    *out = f32::from_bits(u32::from(value.to_bits()) << 16);
                }
            }
        }
    }
}

impl<'a> From<&'a [f32]> for Gradient<'a> {
    fn from(values: &'a [f32]) -> Self {
        Self::F32(values)
    }
}

impl<'a> From<&'a [f16]> for Gradient<'a> {
    fn from(values: &'a [f16]) -> Self {
        Self::F16(values)
    }
}

impl<'a> From<&'a [bf16]> for Gradient<'a> {
    fn from(values: &'a [bf16]) -> Self {
        Self::Bf16(values)
    }
}

impl<'a, T, const N: usize> From<&'a [T; N]> for Gradient<'a>
where
    &'a [T]: Into<Gradient<'a>>,
{
    fn from(values: &'a [T; N]) -> Self {
        values.as_slice().into()
    }
}

impl<'a, T> From<&'a Vec<T>> for Gradient<'a>
where
    &'a [T]: Into<Gradient<'a>>,
{
    fn from(values: &'a Vec<T>) -> Self {
        values.as_slice().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_tile_the_gradient_in_every_type() {
        let values: Vec<f32> = (0_u8..=200).map(f32::from).collect();
        let halves: Vec<f16> = values.iter().map(|&value| f16::from_f32(value)).collect();
        let brains: Vec<bf16> = values.iter().map(|&value| bf16::from_f32(value)).collect();
        for gradient in [Gradient::from(&values), Gradient::from(&halves), Gradient::from(&brains)] {
            for step in [1, 7, 200, 201, 202, 4096] {
                let mut seen = Vec::new();
                gradient.for_each_chunk(step, |start, chunk| {
                    assert_eq!(start, seen.len());
                    assert!(chunk.len() == step || start + chunk.len() == gradient.len());
                    seen.extend_from_slice(chunk);
                });
                assert_eq!(seen, values, "{:?} by {step}", gradient.input());
            }
        }
    }
}

//! The crate with one thing changed, for the tests that a wrong twin is noticed by the golden vectors.

#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "tests")]

use gradwire::codec::{AverageError, Codec, Gradient, Stats, Step};

use crate::vectors::{Cpu, Implementation, VectorFile, compare};

/// What goes wrong in a twin that is right otherwise.
pub(crate) enum Mistake {
    /// In the state and packet that `encode` leaves, of this gradient.
    Encode(fn(&Gradient<'_>, &mut [u32], &mut [u32])),
    /// In the weights that `average` takes.
    Weight(fn(u32) -> u32),
    /// In the mean that it leaves.
    Mean(fn(&mut [f32])),
    /// Nowhere.
    None,
}

struct Twin {
    cpu: Cpu,
    mistake: Mistake,
}

impl Implementation for Twin {
    type Error = AverageError;

    fn begin(&mut self) {
        self.cpu.begin();
    }

    fn encode(
        &mut self,
        codec: &Codec,
        step: Step,
        gradient: Gradient<'_>,
        state: &mut [u32],
        packet: &mut [u32],
    ) -> Result<Stats, AverageError> {
        let stats = self.cpu.encode(codec, step, gradient, state, packet)?;
        if let Mistake::Encode(change) = self.mistake {
            change(&gradient, state, packet);
        }
        Ok(stats)
    }

    fn average(
        &mut self,
        codec: &Codec,
        packets: &[&[u32]],
        weights: &[u32],
        mean: &mut [f32],
    ) -> Result<(), AverageError> {
        let mut weights = weights.to_vec();
        if let Mistake::Weight(change) = self.mistake {
            weights.iter_mut().for_each(|weight| *weight = change(*weight));
        }
        self.cpu.average(codec, packets, &weights, mean)?;
        if let Mistake::Mean(change) = self.mistake {
            change(mean);
        }
        Ok(())
    }
}

/// That the vectors in `text` show each of `(name, field, mistake)`, first in that field, and nothing without a mistake.
pub(crate) fn each_is_noticed<const N: usize>(text: &str, mistakes: [(&str, &str, Mistake); N]) {
    let file = VectorFile::parse(text).unwrap();
    let compared = |mistake| compare(&file, &mut Twin { cpu: Cpu::default(), mistake }).unwrap();
    assert_eq!(compared(Mistake::None).first_difference, None, "no mistake");
    for (name, field, mistake) in mistakes {
        let comparison = compared(mistake);
        assert!(comparison.different > 3, "{name}: noticed in {} cases", comparison.different);
        assert_eq!(comparison.first_difference.unwrap().field, field, "{name}");
    }
}

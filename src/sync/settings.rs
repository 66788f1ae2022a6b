//! What must be equal on all ranks, compared before the first step.
//!
//! **Wire layout**: [`BYTES`] bytes, sixteen little-endian `u32` fields, unused ones 0. Each has a name, so that a
//! difference is reported by name, rank and both values instead of as a run that goes wrong.

use gradwire_transport::Rank;

use super::{Codec, Config, NonFinite, Scale, SyncError};
use crate::optim;

/// Bytes of the settings on the wire.
pub const BYTES: usize = 64;

const FIELDS: usize = BYTES / 4;

/// A field's name, and how its bits are shown.
type Field = (&'static str, fn(u32) -> String);

const NAMES: [Field; 14] = [
    ("parameters (low word)", unsigned),
    ("parameters (high word)", unsigned),
    ("codec", unsigned),
    ("automatic scale", unsigned),
    ("scale_log2", signed),
    ("residual_scale_log2", unsigned),
    ("decay", unsigned),
    ("reset_every", unsigned),
    ("policy for non-finite gradients", unsigned),
    ("optimizer", unsigned),
    ("optimizer beta1 or momentum", float),
    ("optimizer beta2", float),
    ("optimizer epsilon", float),
    ("optimizer weight_decay", float),
];

/// One rank's settings, as they travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings([u32; FIELDS]);

impl Settings {
    pub(super) fn new(config: &Config, parameters: usize) -> Self {
        let mut fields = [0; FIELDS];
        let [low, high] = split(parameters as u64);
        fields[0] = low;
        fields[1] = high;
        fields[2] = u32::from(u8::from(config.codec.id()));
        if let Codec::Loco { config, scale } = config.codec {
            fields[3] = u32::from(scale == Scale::Auto);
            fields[4] = if scale == Scale::Fixed { i32::from(config.scale_log2).cast_unsigned() } else { 0 };
            fields[5] = config.residual_scale_log2.into();
            fields[6] = config.decay.into();
            fields[7] = config.reset_every.map_or(0, u32::from);
        }
        fields[8] = u32::from(config.nonfinite == NonFinite::Skip);
        match config.optimizer {
            optim::Config::Sgd(sgd) => {
                fields[9] = 1;
                fields[10] = sgd.momentum.to_bits();
                fields[13] = sgd.weight_decay.to_bits();
            }
            optim::Config::AdamW(adam) => {
                fields[9] = 2;
                fields[10] = adam.beta1.to_bits();
                fields[11] = adam.beta2.to_bits();
                fields[12] = adam.epsilon.to_bits();
                fields[13] = adam.weight_decay.to_bits();
            }
        }
        Self(fields)
    }

    pub(super) fn encode(&self) -> [u8; BYTES] {
        let mut out = [0; BYTES];
        for (bytes, field) in out.as_chunks_mut().0.iter_mut().zip(self.0) {
            *bytes = field.to_le_bytes();
        }
        out
    }

    /// Whether `rank`, which sent `bytes`, has the same settings.
    pub(super) fn compare(&self, rank: Rank, bytes: &[u8]) -> Result<(), SyncError> {
        let (theirs, _) = bytes.as_chunks();
        for (index, (ours, theirs)) in self.0.iter().zip(theirs).enumerate() {
            let theirs = u32::from_le_bytes(*theirs);
            if *ours != theirs {
                let (name, show) = NAMES.get(index).copied().unwrap_or(("reserved field", unsigned));
                return Err(SyncError::Settings { rank, name, theirs: show(theirs), ours: show(*ours) });
            }
        }
        Ok(())
    }
}

fn split(value: u64) -> [u32; 2] {
    let bytes = value.to_le_bytes();
    [
        u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
        u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
    ]
}

fn unsigned(bits: u32) -> String {
    bits.to_string()
}

fn signed(bits: u32) -> String {
    bits.cast_signed().to_string()
}

fn float(bits: u32) -> String {
    f32::from_bits(bits).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::loco;

    fn config() -> Config {
        let codec = Codec::Loco { config: loco::Config::default(), scale: Scale::Fixed };
        Config::new(codec, optim::Config::AdamW(optim::AdamW::default()))
    }

    #[test]
    fn a_difference_is_reported_by_name_and_with_both_values() {
        let ours = Settings::new(&config(), 100);
        assert!(ours.compare(Rank(1), &ours.encode()).is_ok());
        let loco = |scale_log2, decay| Codec::Loco {
            config: loco::Config { scale_log2, decay, ..loco::Config::default() },
            scale: Scale::Fixed,
        };
        let sgd = optim::Config::Sgd(optim::Sgd::default());
        let cases = [
            (config(), 101, "rank 1 has parameters (low word) 101, ours is 100"),
            (Config { codec: Codec::F32, ..config() }, 100, "rank 1 has codec 1, ours is 2"),
            (Config { codec: loco(-3, 205), ..config() }, 100, "rank 1 has scale_log2 -3, ours is 19"),
            (Config { codec: loco(19, 240), ..config() }, 100, "rank 1 has decay 240, ours is 205"),
            (Config { optimizer: sgd, ..config() }, 100, "rank 1 has optimizer 1, ours is 2"),
        ];
        for (config, parameters, message) in cases {
            let theirs = Settings::new(&config, parameters).encode();
            let error = ours.compare(Rank(1), &theirs).map_err(|error| error.to_string());
            assert_eq!(error, Err(message.to_owned()));
        }
    }

    #[test]
    fn every_field_that_is_used_has_a_name() {
        let Settings(fields) = Settings::new(&config(), usize::MAX);
        assert!(fields[NAMES.len()..].iter().all(|field| *field == 0), "{fields:?}");
    }
}

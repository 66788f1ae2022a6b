//! What must be equal on all ranks, compared before the first step.
//!
//! **Wire layout**: [`BYTES`] bytes, 35 little-endian `u32` fields, unused ones 0. Each has a name, so that a
//! difference is reported by name, rank and both values instead of as a run that goes wrong. Codec and optimizer come
//! before their parameters, so that these have the same names on both sides where they are compared.

use gradwire_transport::Rank;

use super::hierarchy::{Sites, fingerprint};
use super::scheme::SchemeId;
use super::{Config, NonFinite, Scale, Shares, SyncError};
use crate::codec::Parameter;
use crate::digest::fnv1a;
use crate::optim::{self, Value};

/// Bytes of the settings on the wire.
pub const BYTES: usize = 4 * FIELDS;

const FIELDS: usize = 35;

/// The scheme's own parameters, in the order of [`Scheme::compared`](super::Scheme::compared).
const PARAMETERS: usize = 5;

/// Behind them: everything else.
const REST: usize = 15;

/// Behind the optimizer: its own parameters, in the order of [`optim::Config::parameters`].
const OPTIMIZER: usize = REST + 2;

/// Behind them: where tensors begin and end, for an optimizer that looks at them.
const TENSORS: usize = 28;

/// Behind that: who is in a site with whom, and the codec inside a site, where there are sites.
const SITES: usize = 29;

/// Behind those: how packets and parameters are cut.
const PIECE: usize = 32;

/// Behind that: which kind of shares, and a number of that kind.
const SHARES: usize = 33;

/// A field's name, and how its bits are shown.
type Field = (&'static str, fn(u32) -> String);

const FIRST: [Field; PARAMETERS] = [
    ("parameters (low word)", unsigned),
    ("parameters (high word)", unsigned),
    ("codec", codec_name),
    ("automatic scale", unsigned),
    ("scale_log2", signed),
];

const MIDDLE: [Field; OPTIMIZER - REST] =
    [("policy for non-finite gradients", unsigned), ("optimizer", unsigned)];

const LAST: [Field; FIELDS - TENSORS] = [
    ("fingerprint of tensor sizes", unsigned),
    ("fingerprint of sites", unsigned),
    ("codec inside a site", codec_name),
    ("fingerprint of parameters of the codec inside a site", unsigned),
    ("bytes of a piece", unsigned),
    ("shares", shares_name),
    ("steps or weights of shares", unsigned),
];

/// One rank's settings, as they travel.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    fields: [u32; FIELDS],
    /// Names and values of the scheme's own parameters.
    own: Vec<Parameter>,
    optimizer: optim::Config,
}

impl Settings {
    pub(super) fn new(config: &Config, parameters: usize) -> Self {
        let mut fields = [0; FIELDS];
        let [low, high] = split(parameters as u64);
        fields[0] = low;
        fields[1] = high;
        fields[2] = u32::from(u8::from(config.scheme.id()));
        if let Some(scale_log2) = config.scheme.scale_log2() {
            let auto = config.scale == Scale::Auto;
            fields[3] = u32::from(auto);
            fields[4] = if auto { 0 } else { i32::from(scale_log2).cast_unsigned() };
        }
        let own = config.scheme.compared(&config.shapes);
        for (field, parameter) in fields[PARAMETERS..REST].iter_mut().zip(&own) {
            // Two's complement: the low word of a negative one, and any `u32`.
            [*field, _] = split(parameter.value.cast_unsigned());
        }
        let rest = &mut fields[REST..];
        rest[0] = u32::from(config.nonfinite == NonFinite::Skip);
        rest[1] = config.optimizer.id();
        for (field, parameter) in fields[OPTIMIZER..TENSORS].iter_mut().zip(config.optimizer.parameters()) {
            *field = match parameter.value {
                Value::Float(value) => value.to_bits(),
                Value::Steps(steps) => steps,
            };
        }
        if config.optimizer.looks_at_tensors() {
            fields[TENSORS] = config.tensors(parameters).fingerprint();
        }
        if let Some(sites) = Sites::new(&config.sites) {
            [fields[SITES], _] = split(fingerprint(&sites.numbers()));
            fields[SITES + 1] = u32::from(u8::from(config.inner.id()));
            [fields[SITES + 2], _] = split(fnv1a(config.inner.to_string().into_bytes()));
        }
        fields[PIECE] = u32::try_from(config.piece_bytes).unwrap_or(u32::MAX);
        let (kind, number) = match &config.shares {
            Shares::Equal => (0, 0),
            Shares::Weights(weights) => (1, fnv1a(weights.iter().flat_map(|weight| weight.to_le_bytes()))),
            Shares::Declared(_) => (2, 0),
            Shares::Learned { steps } => (3, steps.get().into()),
        };
        fields[SHARES] = kind;
        [fields[SHARES + 1], _] = split(number);
        Self { fields, own, optimizer: config.optimizer }
    }

    pub(super) fn encode(&self) -> [u8; BYTES] {
        let mut out = [0; BYTES];
        for (bytes, field) in out.as_chunks_mut().0.iter_mut().zip(self.fields) {
            *bytes = field.to_le_bytes();
        }
        out
    }

    /// Whether `rank`, which sent `bytes`, has the same settings.
    pub(super) fn compare(&self, rank: Rank, bytes: &[u8]) -> Result<(), SyncError> {
        let (theirs, _) = bytes.as_chunks();
        for (index, (ours, theirs)) in self.fields.iter().zip(theirs).enumerate() {
            let theirs = u32::from_le_bytes(*theirs);
            if *ours != theirs {
                let (name, show) = self.field(index);
                return Err(SyncError::Settings { rank, name, theirs: show(theirs), ours: show(*ours) });
            }
        }
        Ok(())
    }

    fn field(&self, index: usize) -> Field {
        const RESERVED: Field = ("reserved field", unsigned);
        match index {
            0..PARAMETERS => FIRST[index],
            PARAMETERS..REST => {
                let parameter = self.own.get(index - PARAMETERS);
                parameter.map_or(RESERVED, |parameter| (parameter.name, signed as fn(u32) -> String))
            }
            REST..OPTIMIZER => MIDDLE[index - REST],
            OPTIMIZER..TENSORS => {
                let parameter = self.optimizer.parameters().get(index - OPTIMIZER).copied();
                parameter.map_or(RESERVED, |parameter| match parameter.value {
                    Value::Float(_) => (parameter.name, float as fn(u32) -> String),
                    Value::Steps(_) => (parameter.name, unsigned),
                })
            }
            _ => LAST[index - TENSORS],
        }
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

fn codec_name(byte: u32) -> String {
    let id = u8::try_from(byte).ok().and_then(|byte| SchemeId::try_from(byte).ok());
    id.map_or_else(|| byte.to_string(), |id| id.to_string())
}

fn shares_name(kind: u32) -> String {
    let names = ["equal", "by weight", "declared", "learned"];
    usize::try_from(kind)
        .ok()
        .and_then(|kind| names.get(kind))
        .map_or_else(|| kind.to_string(), |name| (*name).to_owned())
}

fn float(bits: u32) -> String {
    f32::from_bits(bits).to_string()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::codec::{Codec, loco};

    fn config() -> Config {
        let codec = Codec::Loco(loco::Config::default());
        let optimizer = optim::Config::AdamW(optim::AdamW::default());
        Config { scale: Scale::Fixed, ..Config::new(codec, optimizer) }
    }

    #[test]
    fn a_difference_is_reported_by_name_and_with_both_values() {
        let ours = Settings::new(&config(), 100);
        assert!(ours.compare(Rank(1), &ours.encode()).is_ok());
        let loco =
            |scale_log2, decay| Codec::Loco(loco::Config { scale_log2, decay, ..loco::Config::default() });
        let sgd = optim::Config::Sgd(optim::Sgd::default());
        let slower = optim::Config::AdamW(optim::AdamW { beta1: 0.5, ..optim::AdamW::default() });
        let cases = [
            (config(), 101, "rank 1 has parameters (low word) 101, ours is 100"),
            (Config { scheme: Codec::F32.into(), ..config() }, 100, "rank 1 has codec f32, ours is loco"),
            (
                Config { scheme: loco(-3, 205).into(), ..config() },
                100,
                "rank 1 has scale_log2 -3, ours is 19",
            ),
            (Config { scheme: loco(19, 240).into(), ..config() }, 100, "rank 1 has decay 240, ours is 205"),
            (Config { optimizer: sgd, ..config() }, 100, "rank 1 has optimizer 1, ours is 2"),
            (Config { optimizer: slower, ..config() }, 100, "rank 1 has beta1 0.5, ours is 0.9"),
        ];
        for (config, parameters, message) in cases {
            let theirs = Settings::new(&config, parameters).encode();
            let error = ours.compare(Rank(1), &theirs).map_err(|error| error.to_string());
            assert_eq!(error, Err(message.to_owned()));
        }
    }

    #[test]
    fn the_optimizers_differences_are_reported_by_name_too() {
        let lamb = |warmup, tensors: &[usize]| Config {
            optimizer: optim::Config::OneBitLamb(optim::OneBitLamb {
                warmup: NonZeroU32::new(warmup).unwrap(),
                ..optim::OneBitLamb::default()
            }),
            tensors: tensors.to_vec(),
            ..config()
        };
        let ours = Settings::new(&lamb(7, &[60, 40]), 100);
        let theirs = Settings::new(&lamb(8, &[60, 40]), 100).encode();
        let error = ours.compare(Rank(1), &theirs).unwrap_err();
        assert_eq!(error.to_string(), "rank 1 has warmup 8, ours is 7");
        let theirs = Settings::new(&lamb(7, &[50, 50]), 100).encode();
        let error = ours.compare(Rank(1), &theirs).unwrap_err();
        assert!(error.to_string().starts_with("rank 1 has fingerprint of tensor sizes "), "{error}");
        let whole = Settings::new(&lamb(7, &[]), 100);
        assert!(whole.compare(Rank(1), &Settings::new(&lamb(7, &[100]), 100).encode()).is_ok());
    }

    #[test]
    fn sites_are_compared_where_there_are_some() {
        let named = |sites: &[u32], inner: &str| Config {
            sites: sites.to_vec(),
            inner: inner.parse().unwrap(),
            ..config()
        };
        let ours = Settings::new(&named(&[0, 0, 1], "block8"), 100);
        let say = |theirs: &Config| {
            let theirs = Settings::new(theirs, 100).encode();
            ours.compare(Rank(1), &theirs).map_err(|error| error.to_string())
        };
        assert_eq!(say(&named(&[7, 7, 2], "block8")), Ok(()));
        for sites in [&[0, 1, 1][..], &[0, 1, 0], &[]] {
            let error = say(&named(sites, "block8")).unwrap_err();
            assert!(error.starts_with("rank 1 has fingerprint of sites "), "{error}");
        }
        let error = say(&named(&[0, 0, 1], "bf16"));
        assert_eq!(error, Err("rank 1 has codec inside a site bf16, ours is block8".into()));
        let error = say(&named(&[0, 0, 1], "block8:block=32")).unwrap_err();
        assert!(error.starts_with("rank 1 has fingerprint of parameters of the codec inside"), "{error}");

        let flat = Settings::new(&config(), 100);
        for sites in [&[0, 0, 0][..], &[0, 1, 2]] {
            assert!(flat.compare(Rank(1), &Settings::new(&named(sites, "f32"), 100).encode()).is_ok());
        }
    }

    #[test]
    fn every_field_that_is_used_has_a_name() {
        let optimizers = [
            config().optimizer,
            optim::Config::Sgd(optim::Sgd::default()),
            optim::Config::OneBitAdam(optim::OneBitAdam::default()),
            optim::Config::OneBitLamb(optim::OneBitLamb::default()),
            optim::Config::ZeroOneAdam(optim::ZeroOneAdam::default()),
        ];
        for optimizer in optimizers {
            assert!(optimizer.parameters().len() <= TENSORS - OPTIMIZER, "{optimizer:?}");
            let settings = Settings::new(&Config { optimizer, ..config() }, usize::MAX);
            for (index, field) in settings.fields.iter().enumerate() {
                assert!(
                    *field == 0 || settings.field(index).0 != "reserved field",
                    "field {index} is {field}: {optimizer:?}"
                );
            }
        }
    }
}

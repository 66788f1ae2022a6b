//! Golden vectors against every implementation on this CPU, and the comparison against wrong ones.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../src/bin/gradwire/vectors.rs"]
mod vectors;

use gradwire::codec::fixed::{FRACTION_BITS, fixed, is_finite, rne_shift};
use gradwire::codec::loco::{self, Config, Variant, encode_element};
use gradwire::codec::{AverageError, Codec, CodecId, Gradient, Stats, Step};
use vectors::{Comparison, Cpu, Implementation, VectorFile, compare};

const TEXT: &str = include_str!("golden/loco.json");

fn file() -> VectorFile {
    VectorFile::parse(TEXT).unwrap()
}

fn assert_golden(name: &str, implementation: &mut impl Implementation) {
    let comparison = compare(&file(), implementation).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(comparison, Comparison { cases: 31, different: 0, first_difference: None }, "{name}");
}

#[test]
fn every_variant_gives_the_golden_bits() {
    let variants = loco::variants();
    println!("variants on this CPU: {:?}", variants.iter().map(|v| v.name).collect::<Vec<_>>());
    for mut variant in variants {
        assert_golden(variant.name, &mut variant);
    }
}

/// Every file of vectors, by codec.
const FILES: [(CodecId, &str); 13] = [
    (CodecId::F32, include_str!("golden/f32.json")),
    (CodecId::Loco, TEXT),
    (CodecId::F16, include_str!("golden/f16.json")),
    (CodecId::Bf16, include_str!("golden/bf16.json")),
    (CodecId::Fp8, include_str!("golden/fp8.json")),
    (CodecId::Ef, include_str!("golden/ef.json")),
    (CodecId::LocoBlock, include_str!("golden/loco_block.json")),
    (CodecId::Block8, include_str!("golden/block8.json")),
    (CodecId::Block4, include_str!("golden/block4.json")),
    (CodecId::Ef21, include_str!("golden/ef21.json")),
    (CodecId::Sign, include_str!("golden/sign.json")),
    (CodecId::TopK, include_str!("golden/topk.json")),
    (CodecId::IntSgd, include_str!("golden/intsgd.json")),
];

#[test]
fn every_codec_gives_the_bits_of_its_golden_file() {
    for (id, text) in FILES {
        let file = VectorFile::parse(text).unwrap_or_else(|error| panic!("{id}: {error}"));
        assert_eq!(file.codec(), id);
        let comparison = compare(&file, &mut Cpu::default()).unwrap_or_else(|error| panic!("{id}: {error}"));
        println!("{id}: {} cases", comparison.cases);
        assert_eq!(comparison.first_difference, None, "{id}");
    }
}

#[test]
fn the_dispatching_functions_give_the_golden_bits() {
    assert_golden("dispatching", &mut Cpu::default());
}

/// A twin with one mistake: its element function and its factor on a weighted sum of codes.
struct Wrong {
    element: fn(&Config, bool, u32, i8) -> (i32, i8, bool),
    mean: fn(&Config, i32, u32) -> f32,
}

impl Implementation for Wrong {
    type Error = AverageError;

    fn encode(
        &mut self,
        codec: &Codec,
        step: Step,
        gradient: Gradient<'_>,
        state: &mut [u32],
        packet: &mut [u32],
    ) -> Result<Stats, AverageError> {
        let (Codec::Loco(config), Gradient::F32(gradient)) = (codec, gradient) else { panic!("{codec}") };
        packet.fill(0);
        let mut stats = Stats::default();
        let residuals: &mut [i8] = bytemuck::cast_slice_mut(state);
        for (i, (value, residual)) in gradient.iter().zip(residuals).enumerate() {
            let (code, new, nonfinite) =
                (self.element)(config, config.is_reset(step), value.to_bits(), *residual);
            packet[i / 8] |= (code.cast_unsigned() & 15) << (4 * (i % 8));
            *residual = new;
            stats.nonfinite += u64::from(nonfinite);
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
        let Codec::Loco(config) = codec else { panic!("{codec}") };
        for (i, mean) in mean.iter_mut().enumerate() {
            let code = |packet: &[u32]| (packet[i / 8] << (28 - 4 * (i % 8))).cast_signed() >> 28;
            let sum = packets.iter().zip(weights).map(|(p, w)| w.cast_signed() * code(p)).sum();
            *mean = (self.mean)(config, sum, weights.iter().sum());
        }
        Ok(())
    }
}

fn right_element(config: &Config, reset: bool, bits: u32, residual: i8) -> (i32, i8, bool) {
    let element = encode_element(config, reset, bits, residual);
    (element.code, element.residual, element.nonfinite)
}

fn right_mean(config: &Config, sum: i32, total: u32) -> f32 {
    sum as f32 * config.mean_scale(total)
}

/// The definition written out again with the two roundings as arguments.
fn element_with(
    round_code: fn(i32, u32) -> i32,
    round_residual: fn(i32, u32) -> i32,
    config: &Config,
    reset: bool,
    bits: u32,
    residual: i8,
) -> (i32, i8, bool) {
    if !is_finite(bits) {
        return (0, 0, true);
    }
    let old = i32::from(residual);
    let h = fixed(bits, config.scale_log2) + (old << (FRACTION_BITS - u32::from(config.residual_scale_log2)));
    let code = round_code(h, FRACTION_BITS).clamp(-8, 7);
    let lost = h - (code << FRACTION_BITS);
    let averaged = i32::from(config.decay) * (old << FRACTION_BITS) + config.gain() * lost;
    let new = if reset { 0 } else { round_residual(averaged, FRACTION_BITS + 8).clamp(-128, 127) };
    (code, i8::try_from(new).unwrap(), false)
}

fn half_away(v: i32, n: u32) -> i32 {
    v.signum() * ((v.abs() + (1 << (n - 1))) >> n)
}

fn half_up(v: i32, n: u32) -> i32 {
    (v + (1 << (n - 1))) >> n
}

#[test]
fn the_comparison_passes_the_copy_that_the_wrong_twins_are_made_from() {
    let element: fn(&Config, bool, u32, i8) -> _ =
        |c, reset, b, r| element_with(rne_shift, rne_shift, c, reset, b, r);
    assert_golden("copy of the definition", &mut Wrong { element, mean: right_mean });
}

#[test]
fn the_comparison_catches_each_wrong_twin_and_names_the_field() {
    type Twin = (&'static str, &'static str, fn(&Config, bool, u32, i8) -> (i32, i8, bool));
    let twins: [Twin; 8] = [
        ("codes rounded half away", "words", |c, reset, b, r| {
            element_with(half_away, rne_shift, c, reset, b, r)
        }),
        ("codes rounded half up", "words", |c, reset, b, r| element_with(half_up, rne_shift, c, reset, b, r)),
        ("residual rounded half away", "residual", |c, reset, b, r| {
            element_with(rne_shift, half_away, c, reset, b, r)
        }),
        ("residual rounded half up", "residual", |c, reset, b, r| {
            element_with(rne_shift, half_up, c, reset, b, r)
        }),
        ("no reset", "residual", |c, _, b, r| right_element(c, false, b, r)),
        ("no error feedback", "words", |c, reset, b, _| right_element(c, reset, b, 0)),
        ("non-finite elements not counted", "nonfinite", |c, reset, b, r| {
            let (code, residual, _) = right_element(c, reset, b, r);
            (code, residual, false)
        }),
        ("non-finite elements keep their residual", "residual", |c, reset, b, r| {
            let (code, residual, nonfinite) = right_element(c, reset, b, r);
            (code, if nonfinite { r } else { residual }, nonfinite)
        }),
    ];
    for (name, field, element) in twins {
        let comparison = compare(&file(), &mut Wrong { element, mean: right_mean }).unwrap();
        let difference = comparison.first_difference.unwrap_or_else(|| panic!("{name} passed as right"));
        assert_eq!(difference.field, field, "{name}: {difference:?}");
        assert!((1..=comparison.cases).contains(&comparison.different), "{name}: {comparison:?}");
        assert_ne!(difference.expected, difference.got, "{name}");
        println!(
            "{name}: {} of {} cases differ, first {difference:?}",
            comparison.different, comparison.cases
        );
    }
    let mean: fn(&Config, i32, u32) -> f32 =
        |config, sum, total| sum as f32 / (f32::from(config.scale_log2).exp2() * total as f32);
    let comparison = compare(&file(), &mut Wrong { element: right_element, mean }).unwrap();
    let difference = comparison.first_difference.unwrap();
    assert_eq!((difference.field, difference.rank), ("mean_bits", None), "division instead of the factor");
}

#[test]
fn a_file_that_lies_is_refused_in_one_line_that_says_where() {
    let small =
        r#"{"codec":"loco","cases":[{"n":2,"config":{"scale_log2":19,"residual_scale_log2":4,"decay":205,
        "reset_every":0},"weights":[1],"ranks":[{"steps":[{"step":1,"gradient_bits":[0,0],"words":[0],
        "residual":[0,0],"nonfinite":0}]}],"averages":[{"step":1,"mean_bits":[0,0]}]}]}"#
            .replace(['\n', ' '], "");
    assert!(VectorFile::parse(&small).is_ok());
    let swap = |from: &str, to: &str| {
        assert_eq!(small.matches(from).count(), 1, "{from} is not a unique place");
        small.replace(from, to)
    };
    let huge = "x".repeat(1 << 20);
    let lies = [
        (String::new(), "not a vector file"),
        ("gradwire".into(), "not a vector file"),
        (small[..small.len() / 2].into(), "not a vector file"),
        (swap(r#""codec":"loco""#, r#""codec":"zip""#), r#"codec "zip""#),
        (swap(r#""decay":205"#, r#""rank":4"#), "case 0: loco has no parameter \"rank\" with the value 4"),
        (r#"{"codec":"loco","cases":[]}"#.into(), "no case"),
        (
            swap(
                r#""steps":[{"step":1,"gradient_bits":[0,0],"words":[0],"residual":[0,0],"nonfinite":0}]"#,
                r#""steps":[]"#,
            )
            .replace(r#"{"step":1,"mean_bits":[0,0]}"#, ""),
            "case 0: no step in it",
        ),
        (swap(r#""codec":"loco""#, &format!(r#""codec":"{huge}""#)), "xxx...\", this build"),
        (swap(r#""n":2"#, &format!(r#""n":"{huge}""#)), "xxx..."),
        (swap(r#""n":2"#, r#""n":3"#), "case 0: ranks[0].steps[0].gradient_bits has 2 entries, 3 are needed"),
        (swap(r#""n":2"#, r#""n":18446744073709551615"#), "has 2 entries, 18446744073709551615"),
        (swap(r#""n":2"#, r#""n":-1"#), "invalid value"),
        (swap(r#""n":2"#, r#""n":0"#), "case 0: n is 0, at least 1 is needed"),
        (swap(r#""words":[0]"#, r#""words":[]"#), "ranks[0].steps[0].words has 0 entries, 1 are needed"),
        (swap(r#""residual":[0,0]"#, r#""residual":[0]"#), "ranks[0].steps[0].residual has 1 entries"),
        (swap(r#""residual":[0,0]"#, r#""residual":[0,128]"#), "invalid value: integer `128`, expected i8"),
        (
            swap(r#""residual":[0,0]"#, r#""residual":[0,0],"state":[0,0]"#),
            "case 0: ranks[0].steps[0] has both a residual and a state, must have only one",
        ),
        (swap(r#""mean_bits":[0,0]"#, r#""mean_bits":[]"#), "averages[0].mean_bits has 0 entries"),
        (swap(r#""weights":[1]"#, r#""weights":[1,1]"#), "weights has 2 entries, 1 are needed"),
        (swap(r#""weights":[1]"#, r#""weights":[0]"#), "case 0: all 1 weights are 0"),
        (swap(r#""weights":[1]"#, r#""weights":[2097152]"#), "16777216"),
        (swap(r#""scale_log2":19"#, r#""scale_log2":65"#), "scale_log2 is 65, loco takes -64 to 64"),
        (swap(r#""decay":205"#, r#""decay":256"#), "no parameter \"decay\" with the value 256"),
        (swap(r#"{"step":1,"gradient_bits""#, r#"{"step":0,"gradient_bits""#), "step is 0"),
        (
            swap(r#"{"step":1,"mean_bits""#, r#"{"step":2,"mean_bits""#),
            "averages[0] is of step 2, rank 0 is at step 1",
        ),
    ];
    for (text, message) in lies {
        let error = VectorFile::parse(&text).err().unwrap_or_else(|| panic!("taken: {text}")).to_string();
        assert!(error.contains(message), "{error:?} does not say {message:?}");
        assert!(!error.contains('\n') && error.len() < 250, "{error:?} is more than one short line");
    }
}

#[test]
fn a_variant_is_reported_under_the_name_it_carries() {
    let names: Vec<&str> = loco::variants().iter().map(|variant: &Variant| variant.name).collect();
    assert_eq!(names[..2], ["definition", "blocked"]);
    assert_eq!(names.last().copied(), Some(loco::fastest().name));
}

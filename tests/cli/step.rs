//! `gradwire bench step`: which fields its rows have, and that they belong together. Never how long anything took.

use serde_json::Value;

use crate::{output, text};

/// What `bench step --json` prints with `args`.
fn report(args: &[&str]) -> Value {
    let base = ["bench", "step", "--params=300k", "--repeats=2", "--json"];
    let output = output(&[&base[..], args].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn number(row: &Value, field: &str) -> f64 {
    row[field].as_f64().unwrap_or_else(|| panic!("{field} of {row}"))
}

/// What holds of every row of three ranks with 300,000 parameters, whose codec has `bits` per element.
fn check(row: &Value, codec: &str, bits: u64) {
    assert_eq!((&row["codec"], &row["parameter_codec"]), (&codec.into(), &"f32".into()), "{row}");
    let counts = ["nodes", "params", "repeats"].map(|field| number(row, field));
    assert_eq!(counts, [3.0, 300_000.0, 2.0], "{row}");
    let seconds = &row["seconds"];
    let stages = ["encode", "exchange", "average", "optimizer", "gather"].map(|stage| number(seconds, stage));
    assert!(stages.iter().all(|seconds| *seconds > 0.0), "{row}");
    let [total, min, max] = ["total", "min", "max"].map(|field| number(seconds, field));
    assert!(0.0 < min && min <= total && total <= max, "{row}");
    let longest = stages.into_iter().fold(0.0, f64::max);
    assert!((number(row, "overlap") - total / longest).abs() < 1e-9 * total / longest, "{row}");
    // Each shard goes to its owner from two ranks, each with head and tail, and back to two.
    let bytes = &row["bytes"];
    assert_eq!(bytes["gradient_packets"], 2 * 300_000 * bits / 8 + 6 * 32, "{row}");
    assert_eq!(bytes["parameter_packets"], 2 * 300_000 * 4, "{row}");
    assert!(number(bytes, "frames") > number(bytes, "gradient_packets") + 2_400_000.0, "{row}");
    assert!(number(bytes, "udp") > 0.0, "{row}");
    if cfg!(target_os = "linux") {
        assert!(number(row, "cpu_s") > 0.0 && number(row, "peak_rss_bytes") > 2_400_000.0, "{row}");
    }
}

#[test]
fn a_step_has_a_row_for_the_codec_and_one_for_f32() {
    let report = report(&["--nodes=3", "--codec=block8:block=128"]);
    let [codec, baseline] = &report["rows"].as_array().unwrap()[..] else { panic!("{report}") };
    // A byte of scale for each block, in words for four.
    assert_eq!(codec["codec"], "block8:block=128", "{codec}");
    check(baseline, "f32", 32);
    assert_eq!(baseline["link"], Value::Null, "{baseline}");
    assert_eq!(report["missing"].as_array().unwrap().len(), 0, "{report}");
}

#[test]
fn f32_is_not_measured_against_itself_and_loco_takes_four_bits() {
    let f32_alone = report(&["--nodes=2", "--codec=f32"]);
    assert_eq!(f32_alone["rows"].as_array().unwrap().len(), 1, "{f32_alone}");
    let report = report(&["--nodes=3"]);
    check(&report["rows"][0], "loco", 4);
}

#[cfg(unix)]
#[test]
fn a_step_over_a_link_takes_at_least_its_two_ways() {
    let report = report(&["--nodes=2", "--link=1Gbit,20ms,0%"]);
    for row in report["rows"].as_array().unwrap() {
        assert_eq!(row["link"]["text"], "1Gbit,20ms,0%", "{row}");
        assert!(number(&row["seconds"], "min") >= 0.020, "{row}");
    }
}

#[test]
fn what_cannot_be_measured_is_a_wrong_use() {
    for args in [["--codec=powersgd"], ["--codec=nothing"], ["--params=0"], ["--nodes=0"]] {
        let output = output(&[&["bench", "step"][..], &args].concat());
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", text(&output.stderr));
    }
}

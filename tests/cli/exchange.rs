//! `gradwire bench exchange`: which fields its rows have, and that they belong together. Never how long anything took.

use serde_json::Value;

use crate::{output, text};

/// What `bench exchange --json` prints with `args`.
fn report(args: &[&str]) -> Value {
    let base = ["bench", "exchange", "--bytes=1MiB", "--repeats=3", "--json"];
    let output = output(&[&base[..], args].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn number(row: &Value, field: &str) -> f64 {
    row[field].as_f64().unwrap_or_else(|| panic!("{field} of {row}"))
}

fn same(found: f64, expected: f64) {
    assert!((found - expected).abs() <= 1e-9 * expected, "{found}, expected {expected}");
}

/// What holds of every row of `nodes` ranks with 1 MiB per pair.
fn check(row: &Value, nodes: f64) {
    assert_eq!((number(row, "nodes"), number(row, "repeats")), (nodes, 3.0), "{row}");
    assert_eq!(number(row, "bytes_per_pair"), 1_048_576.0, "{row}");
    let [seconds, min, max] = ["seconds", "min", "max"].map(|field| number(row, field));
    assert!(0.0 < min && min <= seconds && seconds <= max, "{row}");
    same(number(row, "gb_per_s"), 1_048_576.0 * nodes * (nodes - 1.0) / seconds / 1e9);
    assert!((0.0..1.0).contains(&number(row, "retransmitted_share")), "{row}");
    assert_eq!(number(row, "message_bytes"), 1_048_576.0, "{row}");
    assert_eq!(number(row, "received_bytes"), 1_048_576.0 * (nodes - 1.0), "{row}");
    if cfg!(target_os = "linux") {
        assert!(number(row, "cpu_s_per_gb") >= 0.0, "{row}");
        assert!(number(row, "peak_rss_bytes") > 1_048_576.0 * nodes, "{row}");
    }
}

#[test]
fn an_exchange_over_loopback_has_one_row_without_a_link() {
    let report = report(&["--nodes=3"]);
    let [row] = &report["rows"].as_array().unwrap()[..] else { panic!("{report}") };
    check(row, 3.0);
    assert_eq!((&row["congestion"], &row["link_rate"]), (&"paced".into(), &Value::Null), "{row}");
    assert_eq!((&row["link"], &row["goodput_over_link"]), (&Value::Null, &Value::Null), "{row}");
    assert_eq!(
        (&row["steady_over_link"], &row["second_half_over_link"]),
        (&Value::Null, &Value::Null),
        "{row}"
    );
    assert_eq!(report["missing"].as_array().unwrap().len(), 0, "{report}");
}

#[cfg(unix)]
#[test]
fn an_exchange_over_a_link_says_what_was_asked_for_what_was_there_and_how_much_of_it_was_used() {
    let report = report(&["--link=1Gbit,10ms,0.5%,queue=4MB"]);
    assert_eq!(report["missing"].as_array().unwrap().len(), 0, "{report}");
    let [paced, cubic] = &report["rows"].as_array().unwrap()[..] else { panic!("{report}") };
    assert_eq!(
        (&paced["congestion"], &paced["link_rate"]),
        (&"paced".into(), &1_000_000_000.into()),
        "{paced}"
    );
    assert_eq!((&cubic["congestion"], &cubic["link_rate"]), (&"cubic".into(), &Value::Null), "{cubic}");
    check_with_link(paced);
    check_with_link(cubic);
}

/// What holds of a row of the link of the test above.
fn check_with_link(row: &Value) {
    check(row, 2.0);
    let link = &row["link"];
    assert_eq!(link["text"], "1Gbit,10ms,0.5%,queue=4MB", "the link as it was asked for");
    let asked = ["rate_bit_s", "rtt_s", "loss"].map(|field| number(link, field));
    assert_eq!(asked, [1e9, 0.01, 0.005], "{link}");
    same(number(row, "goodput_over_link"), 8.0 * 1_048_576.0 / number(row, "seconds") / 1e9);
    // Of one frame there is no middle.
    assert_eq!(
        (&row["steady_over_link"], &row["second_half_over_link"]),
        (&Value::Null, &Value::Null),
        "{row}"
    );
    // A message takes at least one way and its transmission.
    assert!(number(row, "min") >= 0.005 + 0.008, "{row}");
    let measured = &link["measured"];
    assert!(number(measured, "rtt_s") >= 0.01 && number(measured, "mean_delay_s") >= 0.005, "{measured}");
    assert!(number(measured, "rate_bit_s") > 0.0 && number(measured, "latest_s") > 0.0, "{measured}");
    // Some 5000 packets or more, one in 200 lost.
    let loss = number(measured, "loss");
    assert!((0.001..0.01).contains(&loss), "{measured}");
    for field in ["overflowed", "late"] {
        assert!((0.0..=1.0).contains(&number(measured, field)), "{field}: {measured}");
    }
}

#[cfg(unix)]
#[test]
fn an_exchange_of_several_frames_has_a_middle_and_a_second_half() {
    let line = ["bench", "exchange", "--bytes=8MiB", "--repeats=1", "--link=100Mbit,2ms,0%", "--json"];
    let output = output(&[&line[..], &["--congestion=paced"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let [row] = &report["rows"].as_array().unwrap()[..] else { panic!("{report}") };
    for field in ["steady_over_link", "second_half_over_link"] {
        assert!(number(row, field) > 0.0, "{field}: {row}");
    }
}

#[test]
fn the_table_has_a_line_for_the_way_and_its_progress_goes_to_stderr() {
    let output = output(&["bench", "exchange", "--bytes=64Ki", "--repeats=1"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let told = text(&output.stdout);
    assert!(told.starts_with("2 ranks, 0.062 MiB per pair, loopback, median of 1 repeats\n"), "{told}");
    assert!(told.contains("\n  paced  "), "{told}");
}

#[test]
fn tcp_is_measured_on_the_same_link_or_said_to_be_missing() {
    let report = report(&["--link=200Mbit,10ms,0%", "--congestion=paced", "--tcp"]);
    let tcp = &report["tcp"];
    if let Some(why) = tcp["why"].as_str() {
        eprintln!("skipped, as there is no TCP in network namespaces here: {why}");
        assert!(std::env::var_os("GRADWIRE_REQUIRE_TUNNEL").is_none(), "{why}");
        return;
    }
    let [seconds, min, max] = ["seconds", "min", "max"].map(|field| number(tcp, field));
    assert!(min <= seconds && seconds <= max, "{tcp}");
    // At least one way and the transmission of 1 MiB.
    assert!(min >= 0.005 + 0.04, "{tcp}");
    same(number(tcp, "goodput_over_link"), 8.0 * 1_048_576.0 / seconds / 2e8);
    assert_eq!(number(&tcp["link"], "rate_bit_s"), 2e8, "{tcp}");
}

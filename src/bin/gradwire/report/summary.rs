//! The few lines that a human reads at the end of a run.

use std::fmt::Write;

use super::{Report, Run};

/// A table with one line per run, and what the first one saved against the second.
pub(crate) fn table(report: &Report) -> String {
    let mut rows = vec![
        ["codec", "loss", "eval loss", "", "gradient sent", "sent by UDP", "per step", "total"]
            .map(str::to_owned),
    ];
    for run in &report.runs {
        let (name, score) = run.score.show();
        name.clone_into(&mut rows[0][3]);
        rows.push([
            run.codec.label.clone(),
            loss(run.loss.last),
            loss(run.loss.eval),
            score,
            bytes(run.bytes.gradient_packets),
            if run.bytes.udp == 0 { "none".to_owned() } else { bytes(run.bytes.udp) },
            seconds(run.seconds.step_median),
            seconds(run.seconds.total),
        ]);
    }
    let widths: Vec<usize> = (0..rows[0].len())
        .map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
        .collect();
    let mut text = String::new();
    for row in &rows {
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            // Writing into a string can't fail.
            let _ = match column {
                0 => write!(text, "{cell:<width$}"),
                _ => write!(text, "   {cell:>width$}"),
            };
        }
        text.push('\n');
    }
    if report.settings.inner_codec.is_some() {
        let each =
            report.runs.iter().map(|run| format!("{} {}", run.codec.label, bytes(run.bytes.wan_packets)));
        let _ = writeln!(text, "packets between sites: {}", each.collect::<Vec<_>>().join(", "));
    }
    if let (Some(gradients), Some((all, total))) = (gradient_ratio(report), total_ratio(report)) {
        let second = &report.runs[1].codec.label;
        let total = match total {
            Total::Udp => "UDP",
            Total::Frames => "frames",
        };
        let _ = writeln!(text, "gradient bytes: {} {second}", times(gradients));
        let _ = writeln!(
            text,
            "bytes in all ({total}): {} {second}; parameters travel as f32 with either codec",
            times(all)
        );
    }
    text
}

/// What "bytes in all" counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Total {
    /// At the socket.
    Udp,
    /// Where there is no socket.
    Frames,
}

/// How many times fewer gradient bytes the first run sent than the second; `None` for a single run or node.
pub(crate) fn gradient_ratio(report: &Report) -> Option<f64> {
    ratio(report, |run| run.bytes.gradient_packets)
}

/// The same for all bytes that were sent.
pub(crate) fn total_ratio(report: &Report) -> Option<(f64, Total)> {
    let udp = report.runs.iter().all(|run| run.bytes.udp > 0);
    let (total, of): (Total, fn(&Run) -> u64) =
        if udp { (Total::Udp, |run| run.bytes.udp) } else { (Total::Frames, |run| run.bytes.frames) };
    Some((ratio(report, of)?, total))
}

fn ratio(report: &Report, of: impl Fn(&Run) -> u64) -> Option<f64> {
    let [first, second] = report.runs.as_slice() else { return None };
    (of(first) > 0 && of(second) > 0).then(|| of(second) as f64 / of(first) as f64)
}

/// A ratio of at least 1, and in which direction it goes.
pub(crate) fn more_or_fewer(ratio: f64) -> (String, &'static str) {
    let (figure, word) = if ratio < 1.0 { (1.0 / ratio, "more") } else { (ratio, "fewer") };
    let figure = format!("{figure:.2}");
    let word = if figure == "1.00" { "as many" } else { word };
    (figure, word)
}

/// `7.99 times fewer than`, `as many as`: the name of what is compared with comes behind.
pub(crate) fn times(ratio: f64) -> String {
    match more_or_fewer(ratio) {
        (_, "as many") => "as many as".to_owned(),
        (figure, word) => format!("{figure} times {word} than"),
    }
}

/// `2.3026`, `1.234e7`: a loss in nats, whose digits say nothing where there are many before the point.
pub(crate) fn loss(nats: f64) -> String {
    if nats.abs() < 1e5 { format!("{nats:.4}") } else { format!("{nats:.3e}") }
}

/// `1.23 MB`, in powers of ten.
pub(crate) fn bytes(count: u64) -> String {
    match count {
        0..1_000 => format!("{count} B"),
        1_000..1_000_000 => format!("{:.1} kB", count as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", count as f64 / 1e6),
        _ => format!("{:.2} GB", count as f64 / 1e9),
    }
}

/// `12.3 ms`, `4.56 s`.
pub(crate) fn seconds(value: f64) -> String {
    match value {
        v if v < 1e-3 => format!("{:.0} \u{b5}s", v * 1e6),
        v if v < 1.0 => format!("{:.1} ms", v * 1e3),
        v => format!("{v:.2} s"),
    }
}

/// `50,826`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_below_one_is_said_the_other_way_round() {
        assert_eq!(
            [times(7.994), times(0.125), times(1.005_1), times(1.0), times(0.998)],
            [
                "7.99 times fewer than",
                "8.00 times more than",
                "1.01 times fewer than",
                "as many as",
                "as many as"
            ]
        );
    }

    #[test]
    fn a_loss_that_has_run_away_has_as_few_digits_as_any() {
        assert_eq!(
            [2.345_67, 99_999.0, 1e5, -123_456.0, 3.402_823e38].map(loss),
            ["2.3457", "99999.0000", "1.000e5", "-1.235e5", "3.403e38"]
        );
        assert_eq!(loss(f64::NAN), "NaN");
    }

    #[test]
    fn numbers_come_with_their_units() {
        assert_eq!([bytes(999), bytes(1_500), bytes(2_340_000)], ["999 B", "1.5 kB", "2.3 MB"]);
        assert_eq!([seconds(0.000_2), seconds(0.0123), seconds(4.0)], ["200 \u{b5}s", "12.3 ms", "4.00 s"]);
        assert_eq!([grouped(5), grouped(1_234), grouped(1_234_567)], ["5", "1,234", "1,234,567"]);
    }
}

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
            format!("{:.4}", run.loss.last),
            format!("{:.4}", run.loss.eval),
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
    if let (Some(gradients), Some((all, total))) = (gradient_ratio(report), total_ratio(report)) {
        let second = &report.runs[1].codec.label;
        let total = match total {
            Total::Udp => "UDP",
            Total::Frames => "frames",
        };
        let _ = writeln!(text, "gradient bytes: {} than {second}", times(gradients));
        let _ = writeln!(
            text,
            "bytes in all ({total}): {} than {second}; parameters travel as f32 with either codec",
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
    if ratio < 1.0 { (format!("{:.2}", 1.0 / ratio), "more") } else { (format!("{ratio:.2}"), "fewer") }
}

/// `7.99 times fewer`.
pub(crate) fn times(ratio: f64) -> String {
    let (figure, word) = more_or_fewer(ratio);
    format!("{figure} times {word}")
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
            [times(7.994), times(0.125), times(1.0)],
            ["7.99 times fewer", "8.00 times more", "1.00 times fewer"]
        );
    }

    #[test]
    fn numbers_come_with_their_units() {
        assert_eq!([bytes(999), bytes(1_500), bytes(2_340_000)], ["999 B", "1.5 kB", "2.3 MB"]);
        assert_eq!([seconds(0.000_2), seconds(0.0123), seconds(4.0)], ["200 \u{b5}s", "12.3 ms", "4.00 s"]);
        assert_eq!([grouped(5), grouped(1_234), grouped(1_234_567)], ["5", "1,234", "1,234,567"]);
    }
}

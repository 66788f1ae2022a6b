//! The few lines that a human reads at the end of a run.

use std::fmt::Write;

use super::Report;

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
            run.codec.name().to_owned(),
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
        .map(|column| rows.iter().map(|row| row[column].len()).max().unwrap_or(0))
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
    if let Some(ratio) = ratio(report) {
        let _ = writeln!(text, "gradient bytes: {ratio:.2} times fewer than {}", report.runs[1].codec.name());
    }
    text
}

/// How many times fewer gradient bytes the first run sent than the second; `None` for a single run or node.
pub(crate) fn ratio(report: &Report) -> Option<f64> {
    let [first, second] = report.runs.as_slice() else { return None };
    let (first, second) = (first.bytes.gradient_packets, second.bytes.gradient_packets);
    (first > 0).then(|| second as f64 / first as f64)
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
        v if v < 1e-3 => format!("{:.0} us", v * 1e6),
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
    fn numbers_come_with_their_units() {
        assert_eq!([bytes(999), bytes(1_500), bytes(2_340_000)], ["999 B", "1.5 kB", "2.3 MB"]);
        assert_eq!([seconds(0.000_2), seconds(0.0123), seconds(4.0)], ["200 us", "12.3 ms", "4.00 s"]);
        assert_eq!([grouped(5), grouped(1_234), grouped(1_234_567)], ["5", "1,234", "1,234,567"]);
    }
}

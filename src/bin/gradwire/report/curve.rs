//! Loss curves as inline SVG, drawn here: the report loads nothing.

use std::fmt::Write;

use super::html::escape;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 36.0;
/// More points than pixels only make the file larger.
const MAX_POINTS: usize = 600;

/// One line of the chart.
pub(crate) struct Curve<'a> {
    pub(crate) name: &'a str,
    /// By step; values that are not finite or not above 0 are left out.
    pub(crate) values: &'a [f64],
}

/// The curves over the steps on a logarithmic scale, smoothed by a running mean over a fiftieth of the steps;
/// the values themselves stay behind it as a faint line.
pub(crate) fn chart(curves: &[Curve<'_>]) -> String {
    let steps = curves.iter().map(|curve| curve.values.len()).max().unwrap_or(0);
    let shown = |value: &f64| value.is_finite() && *value > 0.0;
    let all = || curves.iter().flat_map(|curve| curve.values.iter().copied().filter(|value| shown(value)));
    let (low, high) = all().fold((f64::INFINITY, 0.0_f64), |(low, high), v| (low.min(v), high.max(v)));
    if steps == 0 || high == 0.0 {
        return "<p>No loss to draw.</p>".into();
    }
    // Room below the lowest value, so that its tick keeps clear of the steps.
    let margin = 0.02 + 0.06 * (high / low).ln();
    let (low, high) = (low.ln() - margin, high.ln() + margin / 2.0);
    let x = |step: usize| {
        let share = if steps > 1 { step as f64 / (steps - 1) as f64 } else { 0.5 };
        LEFT + share * (WIDTH - LEFT - RIGHT)
    };
    let y = |value: f64| TOP + (high - value.ln()) / (high - low) * (HEIGHT - TOP - BOTTOM);

    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"training loss by step, logarithmic\">\n"
    );
    // Writing into a string can't fail.
    for tick in ticks(low, high) {
        let at = y(tick);
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.0}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{tick}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            at + 5.0
        );
    }
    for quarter in 0..=4 {
        let step = (steps - 1) * quarter / 4;
        if quarter > 0 && step == (steps - 1) * (quarter - 1) / 4 {
            continue;
        }
        let anchor = match quarter {
            0 => "start",
            4 => "end",
            _ => "middle",
        };
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.0}\" text-anchor=\"{anchor}\">{}{}</text>",
            x(step),
            HEIGHT - BOTTOM + 20.0,
            if quarter == 0 { "step " } else { "" },
            step + 1
        );
    }
    for (index, curve) in curves.iter().enumerate() {
        for (class, window) in [("raw", 1), ("smooth", (steps / 50).max(1))] {
            let points = smoothed(curve.values, window);
            let stride = points.len().div_ceil(MAX_POINTS).max(1);
            let mut path = String::new();
            for (step, value) in points.iter().enumerate().step_by(stride).filter(|(_, value)| shown(value)) {
                let command = if path.is_empty() { 'M' } else { 'L' };
                let _ = write!(path, "{command}{:.1} {:.1}", x(step), y(*value));
            }
            let _ = writeln!(
                svg,
                "<path class=\"{class} run{index}\" d=\"{path}\"><title>{}</title></path>",
                escape(curve.name)
            );
        }
    }
    svg.push_str("</svg>\n");
    svg
}

/// The mean of up to `window` values that end at each one.
fn smoothed(values: &[f64], window: usize) -> Vec<f64> {
    let part = |end: usize| &values[(end + 1).saturating_sub(window)..=end];
    (0..values.len()).map(|end| part(end).iter().sum::<f64>() / part(end).len() as f64).collect()
}

/// Round numbers between two logarithms: as many of them as the range can bear, 9 at most.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let mantissas: [&[&str]; 4] = [
        &["1", "1.2", "1.5", "2", "2.5", "3", "4", "5", "6", "8"],
        &["1", "1.5", "2", "3", "5", "7"],
        &["1", "2", "5"],
        &["1"],
    ];
    let of = |mantissas: &&[&str]| -> Vec<f64> {
        // Parsed, because 5.0 * 10^-2 is not 0.05.
        let all = (-9..=9).flat_map(|power| mantissas.iter().map(move |first| format!("{first}e{power}")));
        all.filter_map(|text| text.parse().ok())
            .filter(|tick: &f64| (low..=high).contains(&tick.ln()))
            .collect()
    };
    mantissas.iter().map(of).find(|ticks| ticks.len() <= 9).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_values_neither_panic_nor_leave_their_mark() {
        let odd = [f64::NAN, f64::INFINITY, 0.0, -1.0, 2.0];
        for values in [&odd[..], &odd[4..], &odd[..1], &[]] {
            let svg = chart(&[Curve { name: "<loco>", values }]);
            assert!(!svg.contains("NaN") && !svg.contains("inf") && !svg.contains("<loco>"), "{svg}");
        }
    }

    #[test]
    fn ticks_are_round_numbers_inside_the_range() {
        assert_eq!(ticks(0.04_f64.ln(), 3.0_f64.ln()), [0.05, 0.1, 0.2, 0.5, 1.0, 2.0]);
        assert_eq!(ticks(1.9_f64.ln(), 6.1_f64.ln()), [2.0, 2.5, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!(ticks(1e-7_f64.ln(), 2.0_f64.ln()).len(), 8);
    }
}

//! Loss curves as inline SVG, drawn here: the report loads nothing.

mod ticks;

use std::fmt::Write;

use super::html::escape;
use ticks::ticks;

/// A drawing that is shown at about its own width, so that its letters keep their size.
pub(crate) struct Size {
    /// CSS class, which says when it is shown.
    class: &'static str,
    width: f64,
    height: f64,
    /// Labelled steps below the first one.
    steps: usize,
    /// More points than pixels only make the file larger.
    points: usize,
}

/// For a window, and for a phone.
pub(crate) const SIZES: [Size; 2] = [
    Size { class: "screen", width: 840.0, height: 320.0, steps: 4, points: 600 },
    Size { class: "phone", width: 340.0, height: 260.0, steps: 2, points: 240 },
];

const LEFT: f64 = 48.0;
const RIGHT: f64 = 8.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 30.0;

/// One line of the chart.
pub(crate) struct Curve<'a> {
    pub(crate) name: &'a str,
    /// By step; values that are not finite or not above 0 are left out.
    pub(crate) values: &'a [f64],
}

/// Steps on either side that the running mean of this many steps takes in: a fiftieth of them in all.
pub(crate) fn reach(steps: usize) -> usize {
    steps / 100
}

/// The curves over the steps on a logarithmic scale, smoothed by a centred running mean; the values themselves
/// stay behind it as thin lines.
pub(crate) fn chart(curves: &[Curve<'_>], size: &Size) -> String {
    let steps = curves.iter().map(|curve| curve.values.len()).max().unwrap_or(0);
    let all = || curves.iter().flat_map(|curve| curve.values.iter().copied().filter(shown));
    let (low, high) = all().fold((f64::INFINITY, 0.0_f64), |(low, high), v| (low.min(v), high.max(v)));
    if steps == 0 || high == 0.0 {
        return format!("<p class=\"{}\">No loss to draw.</p>\n", size.class);
    }
    let (low, high) = (low * 0.95, high * 1.05);
    let &Size { class, width, height, .. } = size;
    let x = |step: usize| {
        let share = if steps > 1 { step as f64 / (steps - 1) as f64 } else { 0.5 };
        LEFT + share * (width - LEFT - RIGHT)
    };
    let y = |value: f64| TOP + (high / value).ln() / (high / low).ln() * (height - TOP - BOTTOM);

    let mut svg = format!(
        "<svg class=\"{class}\" viewBox=\"0 0 {width} {height}\" role=\"img\" \
         aria-label=\"training loss by step, logarithmic\">\n"
    );
    // Writing into a string can't fail.
    for tick in ticks(low, high) {
        let at = y(tick.value);
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.0}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            width - RIGHT,
            LEFT - 6.0,
            at + 4.5,
            tick.label
        );
    }
    let mut before = None;
    for part in 0..=size.steps {
        let step = (steps - 1) * part / size.steps;
        if before.replace(step) == Some(step) {
            continue;
        }
        let anchor = match part {
            0 => "start",
            part if part == size.steps => "end",
            _ => "middle",
        };
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.0}\" text-anchor=\"{anchor}\">{}{}</text>",
            x(step),
            height - BOTTOM + 20.0,
            if part == 0 { "step " } else { "" },
            step + 1
        );
    }
    // All thin lines lie below all thick ones.
    for (class, reach) in [("raw", 0), ("smooth", reach(steps))] {
        if class == "raw" && reach == self::reach(steps) {
            continue;
        }
        for (index, curve) in curves.iter().enumerate() {
            let mut path = String::new();
            for step in spread(curve.values.len(), size.points) {
                let Some(value) = mean_around(curve.values, step, reach) else { continue };
                let command = if path.is_empty() { 'M' } else { 'L' };
                let _ = write!(path, "{command}{:.1} {:.1}", x(step), y(value));
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

/// Whether a logarithmic scale has a place for it.
fn shown(value: &f64) -> bool {
    value.is_finite() && *value > 0.0
}

/// Up to `most` of `0..length`, evenly spread, the first and the last one among them.
fn spread(length: usize, most: usize) -> impl Iterator<Item = usize> {
    let count = length.min(most);
    (0..count).map(move |index| index * (length - 1) / (count - 1).max(1))
}

/// The mean of the values at most `reach` away from `middle`, as many on one side as on the other, so that the
/// curve neither lags nor leads; `None` where the middle itself has no place on the chart.
fn mean_around(values: &[f64], middle: usize, reach: usize) -> Option<f64> {
    values.get(middle).filter(|value| shown(value))?;
    let reach = reach.min(middle).min(values.len() - 1 - middle);
    let (sum, count) = values[middle - reach..=middle + reach]
        .iter()
        .filter(|value| shown(value))
        .fold((0.0, 0_u32), |(sum, count), value| (sum + value, count + 1));
    Some(sum / f64::from(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_values_neither_panic_nor_leave_their_mark() {
        let odd = [f64::NAN, f64::INFINITY, 0.0, -1.0, 2.0];
        let long = odd.repeat(100);
        for values in [&odd[..], &odd[4..], &odd[..1], &[], &long] {
            for size in &SIZES {
                let svg = chart(&[Curve { name: "<loco>", values }], size);
                assert!(!svg.contains("NaN") && !svg.contains("inf") && !svg.contains("<loco>"), "{svg}");
            }
        }
    }

    #[test]
    fn a_running_mean_stays_on_a_straight_line_up_to_both_ends() {
        let line: Vec<f64> = (0..50).map(|step| 100.0 - f64::from(step)).collect();
        for reach in [0, 1, 7, 100] {
            for (step, value) in line.iter().enumerate() {
                let mean = mean_around(&line, step, reach);
                assert!(mean.is_some_and(|mean| (mean - value).abs() < 1e-9), "{mean:?} at step {step}");
            }
        }
    }

    #[test]
    fn a_running_mean_takes_in_its_neighbours_and_no_others() {
        let step = [1.0, 1.0, 1.0, 4.0, 4.0, 4.0];
        let means: Vec<Option<f64>> = (0..6).map(|middle| mean_around(&step, middle, 1)).collect();
        assert_eq!(means, [1.0, 1.0, 2.0, 3.0, 4.0, 4.0].map(Some));
        assert_eq!(mean_around(&[1.0, f64::NAN, 3.0], 1, 1), None);
    }

    #[test]
    fn a_long_run_is_thinned_to_its_first_and_last_step() {
        for length in [0, 1, 2, 599, 600, 601, 100_000] {
            let steps: Vec<usize> = spread(length, 600).collect();
            assert_eq!(steps.len(), length.min(600));
            assert!(steps.windows(2).all(|pair| pair[0] < pair[1]));
            assert_eq!((steps.first(), steps.last().map(|last| last + 1)), {
                ((length > 0).then_some(&0), (length > 0).then_some(length))
            });
        }
    }
}

//! Which values a logarithmic axis labels.

/// A labelled line across the chart.
#[derive(Debug, PartialEq)]
pub(super) struct Tick {
    pub(super) value: f64,
    pub(super) label: String,
}

/// More lines are a fence; fewer leave values between them to guesswork. Where no set has so many, 4 must do.
const COUNT: std::ops::RangeInclusive<usize> = 5..=7;

/// First digits of the labels within each power of ten, the coarsest set first.
const DIGITS: [&[f64]; 4] = [&[1.0], &[1.0, 3.0], &[1.0, 2.0, 5.0], &[1.0, 2.0, 3.0, 5.0, 7.0]];

/// 4 to 7 round values from `low` to `high`, which are above 0 and at least a tenth apart.
///
/// Over powers of ten they are about evenly spaced in the logarithm (1, 2, 5, 10), within one in the value itself.
pub(super) fn ticks(low: f64, high: f64) -> Vec<Tick> {
    #[allow(clippy::cast_possible_truncation, reason = "an f64 has at most 324 powers of ten on either side")]
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let decades = (2..=last - first).rev().map(|every| powers(first, last, every, DIGITS[0]));
    let digits = DIGITS.into_iter().map(|digits| powers(first, last, 1, digits));
    // Over more than a power of ten, even steps would leave its lower half bare.
    let even = (first - 4..=last)
        .filter(|_| high / low < 10.0)
        .rev()
        .flat_map(|power| [5.0, 2.5, 2.0, 1.0].map(|digit| multiples(low, high, digit, power)));
    let mut fullest = Vec::new();
    for mut ticks in decades.chain(digits).chain(even) {
        ticks.retain(|tick| (low..=high).contains(&tick.value));
        if COUNT.contains(&ticks.len()) {
            return ticks;
        }
        if (fullest.len()..=*COUNT.end()).contains(&ticks.len()) {
            fullest = ticks;
        }
    }
    fullest
}

/// `digits` times every `every`th power of ten.
fn powers(first: i32, last: i32, every: i32, digits: &[f64]) -> Vec<Tick> {
    (first..=last)
        .filter(|power| power.rem_euclid(every) == 0)
        .flat_map(|power| digits.iter().map(move |digit| (*digit, power)))
        .map(|(digit, power)| {
            let label = format!("{digit}e{power}");
            let value = label.parse().unwrap_or(f64::NAN);
            Tick { value, label: if (1e-4..1e6).contains(&value) { value.to_string() } else { label } }
        })
        .collect()
}

/// Multiples of `digit` times 10^`power` from `low` on; one more than may be shown is enough to refuse them.
fn multiples(low: f64, high: f64, digit: f64, power: i32) -> Vec<Tick> {
    let step = digit * 10.0_f64.powi(power);
    let decimals = usize::try_from(i32::from(digit == 2.5) - power).unwrap_or(0);
    (0..=*COUNT.end())
        .map(|index| ((low / step).ceil() + index as f64) * step)
        .take_while(|value| *value <= high)
        .map(|value| Tick { value, label: format!("{value:.decimals$}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(low: f64, high: f64) -> Vec<String> {
        ticks(low, high).into_iter().map(|tick| tick.label).collect()
    }

    #[test]
    fn labels_are_round_numbers() {
        assert_eq!(labels(0.04, 3.0), ["0.05", "0.1", "0.2", "0.5", "1", "2"]);
        assert_eq!(labels(2.2, 5.7), ["2.5", "3.0", "3.5", "4.0", "4.5", "5.0", "5.5"]);
        assert_eq!(labels(0.95, 1.05), ["0.950", "0.975", "1.000", "1.025", "1.050"]);
        assert_eq!(labels(1e-7, 2.0), ["1e-6", "0.0001", "0.01", "1"]);
    }

    #[test]
    fn every_range_has_four_to_seven_lines_inside_it() {
        for low in (0..2000).map(|index| 1e-6 * 1.011_f64.powi(index)) {
            for high in (0..120).map(|index| low * 1.1 * 1.2_f64.powi(index)) {
                let ticks = ticks(low, high);
                assert!((4..=7).contains(&ticks.len()), "{low} to {high}: {ticks:?}");
                assert!(ticks.windows(2).all(|pair| pair[0].value < pair[1].value), "{ticks:?}");
                assert!(ticks.windows(2).all(|pair| pair[0].label != pair[1].label), "{ticks:?}");
                assert!(ticks.iter().all(|tick| (low..=high).contains(&tick.value)), "{ticks:?}");
            }
        }
    }
}

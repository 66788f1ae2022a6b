//! A line now and then where no bar can be drawn.

use crate::report::summary;

/// Says where a run is whenever it enters another tenth of its `steps`; `step` counts from 1, `loss` is in nats.
pub(crate) fn line(step: u64, steps: u64, loss: f32) -> Option<String> {
    let tenth = |step: u64| u128::from(step) * 10 / u128::from(steps.max(1));
    (step > 0 && tenth(step) > tenth(step - 1)).then(|| text(step, steps, loss))
}

/// Where a run is.
pub(crate) fn text(step: u64, steps: u64, loss: f32) -> String {
    format!("step {step} of {steps}, loss {}", summary::loss(loss.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_ten_lines_or_one_for_each_of_fewer_steps_and_the_last_is_the_last_step() {
        for steps in [1, 3, 10, 11, 99, 600, 1_000_003] {
            let lines: Vec<String> = (1..=steps).filter_map(|step| line(step, steps, 0.5)).collect();
            assert_eq!(lines.len() as u64, steps.min(10), "{lines:?}");
            assert_eq!(lines.last(), Some(&format!("step {steps} of {steps}, loss 0.5000")));
        }
        assert_eq!(line(1, 1, 1e30).as_deref(), Some("step 1 of 1, loss 1.000e30"));
    }
}

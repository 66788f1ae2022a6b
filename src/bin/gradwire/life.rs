//! What a parent and its children agree on besides events: who may be silent for how long.

use std::time::Duration;

/// The line after the identity on a child's stdin. Not a line of PEM.
pub(crate) const END_OF_IDENTITY: &str = "end of identity";

/// How often a child shows its parent that it is not stopped, where a rank that is silent for `deadline` is lost.
pub(crate) fn period(deadline: Duration) -> Duration {
    (deadline / 4).clamp(Duration::from_millis(50), Duration::from_secs(1))
}

/// How long a parent waits for a sign of life: longer than the other ranks, who know more of what is missing.
pub(crate) fn limit(deadline: Duration) -> Duration {
    deadline + Duration::from_secs(1)
}

/// Silence that tells, once something has gone wrong, whom nobody needs to wait for.
pub(crate) fn suspicious(deadline: Duration) -> Duration {
    (deadline.mul_f64(0.6)).max(3 * period(deadline) + Duration::from_millis(100))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_shows_life_several_times_before_anybody_suspects_it() {
        for deadline in [0.1, 0.5, 1.0, 3.0, 10.0, 3600.0].map(Duration::from_secs_f64) {
            assert!(suspicious(deadline) >= 3 * period(deadline), "{deadline:?}");
            assert!(limit(deadline) > suspicious(deadline), "{deadline:?}");
        }
    }
}

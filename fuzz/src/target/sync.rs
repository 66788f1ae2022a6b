//! A rank's steps beside a hostile one: settings, scale, packets of every scheme, norms, parameters.
//!
//! Holds: a step ends with an error whose culprit is the hostile rank, or with parameters; never because of this rank, nor
//! without anyone at fault, but for sample counts, which are everyone's.

use std::sync::atomic::Ordering;

use gradwire::codec::AverageError;
use gradwire::sync::{SyncError, Synchronizer};
use gradwire_transport::{Communicator, ExchangeError, Limits, Rank, World};

use super::fleet::{self, Hostile};
use crate::{Recipe, memory};

const STEPS: u32 = 3;

pub fn run(input: &[u8]) {
    memory::within(16 << 20, || steps(input));
}

fn steps(input: &[u8]) {
    let mut recipe = Recipe::new(input);
    let config = fleet::config(&mut recipe);
    let elements = fleet::elements(&config);
    let Ok(world) = World::new(0, 2, 0) else { return };
    let hostile = Hostile::new(world, recipe.rest());
    let honest = hostile.honest.clone();
    let communicator = Communicator::new(Box::new(hostile), Limits::default());
    let mut parameters = fleet::gradient(elements, 9);
    let judge = |error: &SyncError| {
        assert!(!honest.load(Ordering::Relaxed), "an honest peer, and yet {error}");
        match error {
            SyncError::Average(AverageError::NoSamples { .. } | AverageError::WeightSum { .. }) => return,
            // Who gives up says whose fault it was, and is believed.
            SyncError::Exchange(ExchangeError::Aborted { by, .. }) => {
                return assert_eq!(*by, Rank(1), "{error}");
            }
            _ => {}
        }
        assert_eq!(error.culprit(Rank(0)), Some(Rank(1)), "{error}: {error:?}");
    };
    let mut synchronizer = match Synchronizer::new(communicator, config, &parameters) {
        Ok(synchronizer) => synchronizer,
        Err(error) => return judge(&error),
    };
    for step in 1..=STEPS {
        match synchronizer.step(&fleet::gradient(elements, step), 3, 0.01, &mut parameters) {
            Ok(report) => assert_eq!(report.step, u64::from(step), "{report:?}"),
            Err(error) => {
                judge(&error);
                if !matches!(error, SyncError::NonFinite { .. }) {
                    return;
                }
            }
        }
    }
    assert_eq!(parameters.len(), elements, "parameters");
}

//! A checkpoint that somebody has changed.
//!
//! Holds: one that is taken is there as it was given, and the next step runs, or says that a number has overflowed where some
//! were that large; one that is refused changes nothing.

use gradwire::sync::packet::PacketError;
use gradwire::sync::{Checkpoint, SyncError, Synchronizer};
use gradwire_transport::{Communicator, Limits, memory as mesh};

use super::fleet;
use crate::{Recipe, memory};

pub fn run(input: &[u8]) {
    memory::within(16 << 20, || restore(&mut Recipe::new(input)));
}

fn restore(recipe: &mut Recipe<'_>) {
    let config = fleet::config(recipe);
    let gradient = fleet::gradient(fleet::elements(&config), 1);
    let mut parameters = fleet::gradient(gradient.len(), 9);
    let begin = |parameters: &[f32]| {
        let mesh = mesh::mesh(1, 0).remove(0);
        let communicator = Communicator::new(Box::new(mesh), Limits::default());
        Synchronizer::new(communicator, config.clone(), parameters)
            .unwrap_or_else(|error| panic!("a run of one rank: {error}"))
    };
    let read = |synchronizer: &mut Synchronizer| {
        synchronizer.checkpoint().unwrap_or_else(|error| panic!("a checkpoint on the CPU: {error}"))
    };
    let mut first = begin(&parameters);
    if recipe.u8().is_multiple_of(2) {
        let stepped = first.step(&gradient, 3, 0.01, &mut parameters);
        assert!(stepped.is_ok(), "a step of one rank: {stepped:?}");
    }
    let taken = read(&mut first);
    let mut changed = taken.clone();
    for _ in 0..recipe.u8() % 4 {
        change(recipe, &mut changed);
    }
    let mut second = begin(&parameters);
    let fresh = read(&mut second);
    match second.restore(&changed) {
        Ok(()) => {
            assert!(read(&mut second) == changed, "what was taken is there");
            parameters.copy_from_slice(&changed.parameters);
            match second.step(&gradient, 3, 0.01, &mut parameters) {
                Ok(_) => {}
                // As in a run that diverges: the update of LAMB overflows.
                Err(SyncError::Packet { source: PacketError::Norm { found }, .. })
                    if !found.is_finite() && largest(&changed) > 1e20 => {}
                Err(error) => panic!("no step after a checkpoint that was taken: {error}"),
            }
        }
        Err(error) => {
            assert!(changed != taken, "its own checkpoint was refused: {error}");
            assert!(read(&mut second) == fresh, "what was refused changes nothing: {error}");
        }
    }
}

/// The largest magnitude of all parameters, momenta and moments.
fn largest(checkpoint: &Checkpoint) -> f32 {
    let Checkpoint { parameters, momentum, optimizer, .. } = checkpoint;
    let all = [parameters, momentum].into_iter().chain(&optimizer.vectors).flatten();
    all.fold(0.0, |largest, number| number.abs().max(largest))
}

fn change(recipe: &mut Recipe<'_>, checkpoint: &mut Checkpoint) {
    match recipe.u8() % 16 {
        0 => checkpoint.world_size = recipe.u32(),
        1 => checkpoint.rank = recipe.u32(),
        2 => checkpoint.elements = recipe.u64(),
        3 => checkpoint.scheme = recipe.u8(),
        4 => checkpoint.next_step = recipe.u64(),
        5 => checkpoint.next_step = recipe.u8().into(),
        6 => checkpoint.scale_log2 = (!recipe.u8().is_multiple_of(4)).then(|| recipe.u8().cast_signed()),
        7 => {
            checkpoint.moment = (!recipe.u8().is_multiple_of(4)).then(|| gradwire::sync::scale::Moment {
                sum_of_squares: f64::from_bits(recipe.u64()),
                elements: u64::from(recipe.u16()),
            });
        }
        8 => numbers(recipe, &mut checkpoint.codec_state, |recipe| recipe.u32()),
        9 => numbers(recipe, &mut checkpoint.mean_state, |recipe| recipe.u32()),
        10 => match &mut checkpoint.powersgd {
            None => {
                checkpoint.powersgd =
                    Some(gradwire::sync::powersgd::State { errors: Vec::new(), factors: Vec::new() });
            }
            Some(state) if recipe.u8().is_multiple_of(2) => numbers(recipe, &mut state.errors, float),
            Some(state) => numbers(recipe, &mut state.factors, float),
        },
        11 => numbers(recipe, &mut checkpoint.momentum, float),
        12 => numbers(recipe, &mut checkpoint.parameters, float),
        13 => numbers(recipe, &mut checkpoint.optimizer.counters, |recipe| recipe.u64()),
        14 => numbers(recipe, &mut checkpoint.optimizer.scalars, |recipe| f64::from_bits(recipe.u64())),
        _ => {
            let vectors = &mut checkpoint.optimizer.vectors;
            match recipe.u8() % 8 {
                0 => drop(vectors.pop()),
                1 => checkpoint.optimizer.optimizer = recipe.u32(),
                at => {
                    let count = vectors.len();
                    if let Some(vector) = vectors.get_mut(usize::from(at) % count.max(1)) {
                        numbers(recipe, vector, float);
                    }
                }
            }
        }
    }
}

fn float(recipe: &mut Recipe<'_>) -> f32 {
    f32::from_bits(recipe.u32())
}

/// Other numbers at one place, or everywhere, or one more or fewer.
fn numbers<T>(recipe: &mut Recipe<'_>, numbers: &mut Vec<T>, mut new: impl FnMut(&mut Recipe<'_>) -> T) {
    match recipe.u8() % 8 {
        0 => numbers.push(new(recipe)),
        1 => drop(numbers.pop()),
        2 => numbers.iter_mut().for_each(|number| *number = new(recipe)),
        _ if numbers.is_empty() => {}
        _ => {
            let at = recipe.below(numbers.len());
            numbers[at] = new(recipe);
        }
    }
}

//! Every target over its corpus, its found crashes, and seeded mutations of them: no libFuzzer, no special compiler.
//!
//! `GRADWIRE_FUZZ_RUNS` sets the mutations per target (default 4000), `GRADWIRE_FUZZ_SEED` where they begin.

use std::path::Path;
use std::time::Instant;
use std::{env, fs};

use gradwire_fuzz::{SLOWEST, TARGETS, Target};
use gradwire_transport::sim::Random;

const RUNS: u64 = 4000;
const LONGEST: usize = 4096;

macro_rules! smoke {
    ($($name:ident)*) => { $(
        #[test]
        fn $name() {
            smoke(stringify!($name));
        }
    )* };
}

smoke! { abort checkpoint codec frame hello identity launch link packet peers sync vectors }

#[test]
fn every_target_has_a_corpus_and_every_corpus_a_target() {
    let mut folders: Vec<String> = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus"))
        .expect("there is a corpus")
        .map(|entry| entry.expect("its entries can be read").file_name().to_string_lossy().into_owned())
        .collect();
    folders.sort();
    assert_eq!(folders, TARGETS.map(|target| target.name), "corpus and targets");
}

fn smoke(name: &str) {
    let target = TARGETS.into_iter().find(|target| target.name == name).expect("a target");
    let corpus = corpus(name);
    assert!(!corpus.is_empty(), "{name} has no corpus");
    corpus.iter().for_each(|(path, input)| run(target, input, path));
    let number =
        |variable, default| env::var(variable).ok().map_or(default, |text| text.parse().expect(variable));
    let (runs, seed) = (number("GRADWIRE_FUZZ_RUNS", RUNS), number("GRADWIRE_FUZZ_SEED", 0));
    for round in seed..seed + runs {
        let input = mutate(&corpus, &mut Random::new(round));
        run(target, &input, &format!("mutation {round}"));
    }
}

/// Runs one input; a failure says which, and what it was.
fn run(target: Target, input: &[u8], from: &str) {
    let begun = Instant::now();
    let result = std::panic::catch_unwind(|| (target.run)(input));
    let taken = begun.elapsed();
    assert!(result.is_ok(), "{} fails on {from}: {}", target.name, input.escape_ascii());
    assert!(taken < SLOWEST, "{} takes {taken:?} on {from}, {SLOWEST:?} at most", target.name);
}

fn corpus(name: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let entries = fs::read_dir(folder).expect("a corpus");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths.iter().map(|path| (path.display().to_string(), fs::read(path).expect("an input"))).collect()
}

/// An input with a few bytes changed, left out, repeated or taken from another one.
fn mutate(corpus: &[(String, Vec<u8>)], random: &mut Random) -> Vec<u8> {
    const NUMBERS: [u64; 8] = [0, 1, 0x7F, 0xFF, 0x7FFF_FFFF, 0xFFFF_FFFF, 0x7FF0_0000_0000_0000, u64::MAX];
    let mut input = corpus[below(random, corpus.len())].1.clone();
    for _ in 0..1 + below(random, 4) {
        let at = below(random, input.len() + 1);
        let until = at + below(random, input.len() - at + 1).min(16);
        match below(random, 6) {
            0 => drop(input.drain(at..until)),
            1 => {
                let repeated = input[at..until].to_vec();
                input.splice(at..at, repeated);
            }
            2 => {
                let other = &corpus[below(random, corpus.len())].1;
                let from = below(random, other.len() + 1);
                input.splice(at.., other[from..].iter().copied());
            }
            3 => {
                let number = NUMBERS[below(random, NUMBERS.len())].to_le_bytes();
                input.splice(at..until, number[..(until - at).min(8)].iter().copied());
            }
            _ => {
                if let Some(byte) = input.get_mut(at) {
                    *byte ^= 1 << below(random, 8);
                }
            }
        }
        input.truncate(LONGEST);
    }
    input
}

/// A number below `count`.
fn below(random: &mut Random, count: usize) -> usize {
    (random.bits() % count as u64) as usize
}

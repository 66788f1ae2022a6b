//! Identity files, and the certificate that a peer shows.
//!
//! Holds: an identity that is taken names a rank, and its text is read the same again; an error says nothing of the key.

use std::sync::LazyLock;

use gradwire_transport::quic::{Identity, fuzzing};

use crate::{Recipe, memory};

/// A certificate, its key and its authority, of a run that never was.
const SEED: &str = include_str!("../../identity.txt");

static PARTS: LazyLock<Vec<pem::Pem>> = LazyLock::new(|| pem::parse_many(SEED).expect("the seed is PEM"));

pub fn run(input: &[u8]) {
    let mut recipe = Recipe::new(input);
    match recipe.u8() % 4 {
        0 => read(&recipe.text()),
        // The good file, with text changed.
        1 => {
            let mut text = SEED.as_bytes().to_vec();
            recipe.spoil(&mut text);
            read(&String::from_utf8_lossy(&text));
        }
        // Good PEM around DER that is not.
        2 => {
            let mut parts = PARTS.clone();
            let index = recipe.below(parts.len());
            let mut der = parts[index].contents().to_vec();
            recipe.spoil(&mut der);
            parts[index] = pem::Pem::new(parts[index].tag(), der);
            let other = recipe.below(2 * parts.len());
            if other < parts.len() {
                parts.swap(index, other);
            }
            read(&pem::encode_many(&parts));
        }
        _ => {
            let mut der = PARTS[0].contents().to_vec();
            recipe.spoil(&mut der);
            memory::within(64 << 10, || fuzzing::certificate(&der));
        }
    }
}

fn read(text: &str) {
    match memory::within((256 << 10) + 8 * text.len(), || Identity::from_pem(text)) {
        Ok(identity) => assert!(identity.rank().0 < u32::MAX, "{identity:?}"),
        Err(error) => assert!(error.to_string().len() < 4096, "an error of bounded length: {error}"),
    }
}

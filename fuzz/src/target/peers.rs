//! The peers file.
//!
//! Holds: a file that is taken has as many distinct addresses as ranks, each one that [`address::check`] takes; an error is
//! one line of bounded length for a text of bounded length.

use gradwire_transport::address;
use gradwire_transport::quic::Peers;

use crate::{Recipe, memory};

pub fn run(input: &[u8]) {
    let mut recipe = Recipe::new(input);
    let size = u32::from(recipe.u8() % 5);
    let text = recipe.text();
    let parsed = memory::within((256 << 10) + 200 * text.len(), || Peers::parse(&text, size));
    match parsed {
        Ok(peers) => {
            let addresses = peers.addresses();
            assert_eq!(addresses.len(), size as usize, "an address for every rank");
            for (index, address) in addresses.iter().enumerate() {
                assert!(address::check(address).is_ok(), "{address:?} is no address");
                assert!(!addresses[..index].contains(address), "{address:?} twice");
            }
            // Written plainly, it is read the same.
            let plain: String = (0..)
                .zip(addresses)
                .map(|(rank, address): (u32, _)| {
                    format!("[[peer]]\nrank = {rank}\naddress = {}\n", quoted(address))
                })
                .collect();
            assert_eq!(Peers::parse(&plain, size).ok(), Some(peers), "what was read comes back");
        }
        Err(error) => assert!(error.to_string().len() < 1000 + 8 * text.len(), "an error of bounded length"),
    }
}

/// A basic string of TOML, whose escapes are not those of `{:?}`.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

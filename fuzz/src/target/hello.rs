//! The first bytes on a connection: hello, verdict, and news of rank 0.
//!
//! Holds: what is read is written the same again, whatever differs from the own hello is noticed, and no message makes this
//! side hold more than a hello can have.

use gradwire_transport::quic::fuzzing;
use gradwire_transport::{WIRE_VERSION, World};

use crate::{Recipe, memory};

/// The longest hello has 16.5 KiB of text; here it is read, held in two places, and written again into a growing vector.
const HELD: usize = 128 << 10;

pub fn run(input: &[u8]) {
    let mut recipe = Recipe::new(input);
    let kind = recipe.u8();
    let size = u32::from(recipe.u8() % 8) + 1;
    let Ok(world) = World::new(0, size, u32::from(kind / 16)) else { return };
    match kind % 6 {
        // As it comes.
        0 => {
            memory::within(HELD, || fuzzing::hello(recipe.rest(), &world));
        }
        // With a prefix that fits.
        1 => {
            let body = recipe.rest();
            let Ok(length) = u16::try_from(body.len()) else { return };
            let prefix = [&b"GRDH"[..], &WIRE_VERSION.to_le_bytes(), &length.to_le_bytes()];
            let bytes = [&prefix.concat(), body].concat();
            memory::within(HELD, || fuzzing::hello(&bytes, &world));
        }
        // With agreements whose lengths fit, but for what is spoiled.
        2 => {
            let mut body = [size.to_le_bytes(), world.epoch().to_le_bytes(), 1_u32.to_le_bytes()].concat();
            body.extend_from_slice(&recipe.array::<8>());
            let count = u16::from(recipe.u8() % 34);
            body.extend_from_slice(&count.to_le_bytes());
            for _ in 0..2 * count {
                let length = usize::from(recipe.u8());
                let text = recipe.bytes(length);
                body.extend_from_slice(&(text.len() as u16).to_le_bytes());
                body.extend_from_slice(text);
            }
            recipe.spoil(&mut body);
            let Ok(length) = u16::try_from(body.len()) else { return };
            let prefix = [&b"GRDH"[..], &WIRE_VERSION.to_le_bytes(), &length.to_le_bytes()];
            let bytes = [&prefix.concat(), &body[..]].concat();
            memory::within(HELD, || fuzzing::hello(&bytes, &world));
        }
        3 => {
            let kind = recipe.u8();
            memory::within(16 << 10, || fuzzing::verdict(kind, recipe.rest()));
        }
        // A table whose entries have families that exist, but for what is spoiled.
        4 => {
            let mut body = Vec::new();
            for _ in 0..size {
                let family = if recipe.u8().is_multiple_of(2) { 4 } else { 6 };
                body.push(family);
                body.extend_from_slice(&recipe.array::<16>()[..if family == 4 { 4 } else { 16 }]);
                body.extend_from_slice(&recipe.array::<2>());
            }
            recipe.spoil(&mut body);
            memory::within(16 << 10, || fuzzing::news(2, &body, &world));
        }
        _ => {
            let kind = recipe.u8();
            let body = recipe.rest();
            memory::within((16 << 10) + 4 * body.len(), || fuzzing::news(kind, body, &world));
        }
    }
}

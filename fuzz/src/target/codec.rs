//! The text of a codec or another scheme.
//!
//! Holds: what is read is valid, its text in full and in short is read as the same, and its sizes are computed for any
//! number of elements.

use gradwire::codec::Codec;
use gradwire::sync::Scheme;

use crate::{Recipe, memory};

pub fn run(input: &[u8]) {
    let mut recipe = Recipe::new(input);
    let elements = recipe.u64() as usize;
    let text = recipe.text();
    let bound = (16 << 10) + 16 * text.len();
    if let Ok(codec) = memory::within(bound, || text.parse::<Codec>()) {
        assert_eq!(codec.validate(), Ok(()), "what is read is valid");
        assert_eq!(codec.to_string().parse(), Ok(codec), "{codec} is read as another codec");
        let unit = codec.unit();
        assert!(unit.elements > 0 && unit.words > 0, "{unit:?}");
        for elements in [elements, elements % 10_000] {
            let words = codec.packet_words(elements);
            assert!(words > 0 || elements == 0, "{elements} elements in no word");
            // At most three f32 per element, and whole units.
            let most = elements.max(unit.elements).saturating_mul(6);
            assert!(codec.state_words(elements) <= most, "{codec}: state of {elements} elements");
            let _ = codec.mean_state_words(3, elements);
        }
    }
    if let Ok(scheme) = memory::within(bound, || text.parse::<Scheme>()) {
        assert!(scheme.validate().is_ok(), "what is read is valid");
        assert_eq!(scheme.to_string().parse(), Ok(scheme), "{scheme} is read as another scheme");
        assert_eq!(scheme.short().parse(), Ok(scheme), "{} is read as another scheme", scheme.short());
    }
}

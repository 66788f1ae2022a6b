//! The text of a link.
//!
//! Holds: a link that is read is valid, and its text is read as the same link.

use gradwire_transport::sim::LinkConfig;

use crate::memory;

pub fn run(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let link = memory::within((16 << 10) + 16 * text.len(), || text.parse::<LinkConfig>());
    if let Ok(link) = link {
        assert_eq!(link.validate(), Ok(()), "what is read is valid");
        assert_eq!(link.to_string().parse().as_ref(), Ok(&link), "{link} is read as another link");
    }
}

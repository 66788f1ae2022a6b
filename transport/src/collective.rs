//! All-to-all, all-gather and barrier as state machines without socket, clock or thread.
//!
//! All three are one [`Exchange`]: a message for every peer, a message of known length from every peer. What
//! differs is what the messages are, and so the price. Below it is a [`Flow`], which knows messages by their lengths and
//! carries them piece by piece: for whoever makes bytes as they go and uses them as they come ([`Pieces`]).
//!
//! | collective | steps | bytes sent per rank | bytes received per rank |
//! |---|---|---|---|
//! | [`all_to_all`] | 1 | sum of the messages for the peers | sum of the messages from the peers |
//! | [`all_gather`] | 1 | (n - 1) x own message | sum of the peers' messages |
//! | [`barrier`] | 1 | (n - 1) x 56 | (n - 1) x 56 |
//!
//! with n ranks and, besides the bytes named, a header of 56 bytes for every piece. One step means that no rank
//! waits for a second message that depends on a first one: the latency is that of the slowest pair.

mod all_gather;
mod all_to_all;
mod assembly;
mod barrier;
mod cut;
mod exchange;
mod flow;
mod incoming;
mod limits;
mod outgoing;
mod pace;
mod pieces;

pub use all_gather::all_gather;
pub use all_to_all::all_to_all;
pub use barrier::barrier;
pub use cut::Cut;
pub(crate) use cut::inside;
pub use exchange::Exchange;
pub use flow::Flow;
pub(crate) use flow::check;
pub use limits::Limits;
pub(crate) use limits::kept_bytes;
pub use outgoing::Part;
pub use pace::Pace;
pub use pieces::Pieces;

//! One module per target, each with `run`.

pub mod abort;
pub mod checkpoint;
pub mod codec;
mod fleet;
pub mod frame;
pub mod hello;
pub mod identity;
pub mod launch;
pub mod link;
pub mod packet;
pub mod peers;
pub mod sync;
pub mod vectors;

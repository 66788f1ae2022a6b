//! Three threads fit one line with 4-bit gradients over the in-process mesh.
//!
//!     cargo run --example in_process --no-default-features

use std::thread;

use gradwire::codec::{Codec, loco};
use gradwire::optim::{self, AdamW};
use gradwire::sync::{Config, SyncError, Synchronizer};
use gradwire::transport::{Communicator, Limits, memory};

const STEPS: u64 = 400;

fn main() -> Result<(), SyncError> {
    let results = thread::scope(|scope| {
        let meshes = memory::mesh(3, 0);
        let ranks: Vec<_> = meshes.into_iter().map(|mesh| scope.spawn(|| rank(Box::new(mesh)))).collect();
        ranks.into_iter().map(|rank| rank.join().expect("a rank panicked")).collect::<Vec<_>>()
    });
    for (rank, result) in results.into_iter().enumerate() {
        let [slope, offset] = result?;
        println!("rank {rank}: y = {slope:.3} x + {offset:.3}");
    }
    Ok(())
}

/// One rank: its own points on y = 3 x - 2, the same parameters as everyone.
fn rank(mesh: Box<memory::MemoryMesh>) -> Result<[f32; 2], SyncError> {
    let communicator = Communicator::new(mesh, Limits::default());
    let codec = Codec::Loco(loco::Config::default());
    let optimizer = optim::Config::AdamW(AdamW { weight_decay: 0.0, ..AdamW::default() });
    let config = Config::new(codec, optimizer);
    let mut parameters = [0.0, 0.0];
    let own = communicator.world().rank().0;
    let mut synchronizer = Synchronizer::new(communicator, config, &parameters)?;
    for step in 0..STEPS {
        let xs: [f32; 4] = std::array::from_fn(|i| ((step as f32) * 0.37 + own as f32 + i as f32).sin());
        let lost = xs.map(|x| parameters[0] * x + parameters[1] - (3.0 * x - 2.0));
        let slope = xs.iter().zip(lost).map(|(x, lost)| x * lost).sum::<f32>() / 4.0;
        let offset = lost.iter().sum::<f32>() / 4.0;
        let learning_rate = 0.1 * (1.0 - step as f32 / STEPS as f32);
        synchronizer.step(&[slope, offset], 4, learning_rate, &mut parameters)?;
    }
    synchronizer.finish()?;
    Ok(parameters)
}

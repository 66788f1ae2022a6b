//! Which samples a rank draws: one shuffled stream, cut into batches, dealt to the ranks in turn.

use super::Draw;
use super::random::Random;

/// Streams epochs of `samples` shuffled indices; all ranks together read each index once per epoch, if they draw
/// batches of one size, which they agree on when they join.
///
/// Position p of the stream belongs to step p / (world size x batch). Nothing is dropped at the end of an
/// epoch: a batch may span two of them.
#[derive(Debug)]
pub(crate) struct Sampler {
    seed: u64,
    samples: usize,
    /// The order of the epoch drawn from last.
    epoch: Option<(u64, Vec<u32>)>,
}

/// Streams of random numbers with a purpose of their own; epochs follow from here.
const EPOCHS: u64 = 1 << 32;

impl Sampler {
    /// Over `samples` indices, at least 1.
    pub(crate) fn new(seed: u64, samples: usize) -> Self {
        Self { seed, samples, epoch: None }
    }

    /// The indices of one rank's batch, `draw.batch` of them.
    pub(crate) fn draw(&mut self, draw: Draw) -> Vec<u32> {
        let first = (draw.step * u64::from(draw.world_size) + u64::from(draw.rank)) * u64::from(draw.batch);
        (first..first + u64::from(draw.batch)).map(|position| self.at(position)).collect()
    }

    fn at(&mut self, position: u64) -> u32 {
        let length = self.samples as u64;
        let (epoch, place) = (position / length, position % length);
        let order = match self.epoch.take() {
            Some((of, order)) if of == epoch => order,
            _ => Random::new(self.seed, EPOCHS + epoch).permutation(self.samples),
        };
        let index = order[usize::try_from(place).unwrap_or(0)];
        self.epoch = Some((epoch, order));
        index
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_gives_every_sample_once_to_one_rank() {
        let (world_size, batch, samples) = (3, 4, 60);
        let mut samplers: Vec<_> = (0..world_size).map(|_| Sampler::new(5, samples)).collect();
        for epoch in 0..3_u64 {
            let mut seen = Vec::new();
            for step in epoch * 5..(epoch + 1) * 5 {
                for (rank, sampler) in (0..world_size).zip(&mut samplers) {
                    seen.extend(sampler.draw(Draw { step, rank, world_size, batch }));
                }
            }
            seen.sort_unstable();
            assert_eq!(seen, (0..60).collect::<Vec<u32>>(), "epoch {epoch}");
        }
    }

    #[test]
    fn a_batch_larger_than_the_data_wraps_around() {
        let drawn = Sampler::new(5, 3).draw(Draw { step: 0, rank: 0, world_size: 1, batch: 6 });
        for sample in 0..3 {
            assert_eq!(drawn.iter().filter(|&&index| index == sample).count(), 2, "sample {sample}");
        }
    }
}

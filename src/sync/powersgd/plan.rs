//! What goes where: which elements are factored, which are not, and where each matrix has its error and its factors.

use std::ops::Range;

use super::{Config, Shape, ShapeError, shape};

/// One matrix that is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Matrix {
    pub(super) shape: Shape,
    /// Where its elements begin among those of all compressed matrices.
    at: usize,
    /// Where its P begins among all P.
    first: usize,
    /// Where its Q begins among all Q.
    second: usize,
    low_rank: usize,
}

impl Matrix {
    /// In the flat gradient.
    pub(super) const fn source(&self) -> Range<usize> {
        self.shape.range()
    }

    /// In what is kept for all compressed matrices, one behind the other.
    pub(super) const fn elements(&self) -> Range<usize> {
        self.at..self.at + self.shape.rows * self.shape.columns
    }

    /// Its P, in all P.
    pub(super) const fn first(&self) -> Range<usize> {
        self.first..self.first + self.shape.rows * self.low_rank
    }

    /// Its Q, in all Q.
    pub(super) const fn second(&self) -> Range<usize> {
        self.second..self.second + self.shape.columns * self.low_rank
    }
}

/// All of the gradient.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// In the order of the gradient.
    pub(super) matrices: Vec<Matrix>,
    /// What is not compressed, in order, neighbours joined.
    pub(super) plain: Vec<Range<usize>>,
    /// Elements of all compressed matrices.
    pub(super) elements: usize,
    /// Elements of all P.
    pub(super) first: usize,
    /// Elements of all Q.
    pub(super) second: usize,
}

impl Plan {
    /// For a gradient of `n` elements.
    pub(super) fn new(config: &Config, shapes: &[Shape], n: usize) -> Result<Self, ShapeError> {
        shape::check(shapes, n)?;
        let low_rank = config.low_rank.into();
        let mut plan = Self { matrices: Vec::new(), plain: Vec::new(), elements: 0, first: 0, second: 0 };
        let mut covered = 0;
        for &shape in shapes.iter().filter(|shape| config.compresses(shape)) {
            let (at, first, second) = (plan.elements, plan.first, plan.second);
            let matrix = Matrix { shape, at, first, second, low_rank };
            plan.elements = matrix.elements().end;
            plan.first = matrix.first().end;
            plan.second = matrix.second().end;
            plan.matrices.push(matrix);
            plan.leave(covered..shape.offset);
            covered = shape.range().end;
        }
        plan.leave(covered..n);
        Ok(plan)
    }

    fn leave(&mut self, range: Range<usize>) {
        if !range.is_empty() {
            self.plain.push(range);
        }
    }

    /// What of `shard` is not compressed, in order.
    pub(super) fn plain_in(&self, shard: &Range<usize>) -> Vec<Range<usize>> {
        let parts = self.plain.iter().map(|range| range.start.max(shard.start)..range.end.min(shard.end));
        parts.filter(|part| !part.is_empty()).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    #[test]
    fn every_element_is_in_one_matrix_or_goes_as_it_is() {
        let config = Config { low_rank: 2, min_compression: 1, seed: 0 };
        let shape = |offset, rows, columns| Shape { offset, rows, columns };
        // A gap of 3, a matrix, a vector, a small matrix, a gap, a matrix that ends the gradient, or not.
        let shapes = [shape(3, 17, 9), shape(156, 40, 1), shape(196, 3, 4), shape(210, 5, 8)];
        for n in [250, 257] {
            let plan = Plan::new(&config, &shapes, n).unwrap();
            let compressed: Vec<Shape> = plan.matrices.iter().map(|matrix| matrix.shape).collect();
            assert_eq!(compressed, [shape(3, 17, 9), shape(210, 5, 8)]);
            assert_eq!((plan.elements, plan.first, plan.second), (193, 44, 34));
            assert_eq!((plan.matrices[1].elements(), plan.matrices[1].first()), (153..193, 34..44));
            assert_eq!(plan.matrices[1].second(), 18..34);
            let mut seen = vec![0; n];
            let ranges = plan.matrices.iter().map(Matrix::source).chain(plan.plain.iter().cloned());
            ranges.for_each(|range| seen[range].iter_mut().for_each(|count| *count += 1));
            assert!(seen.iter().all(|count| *count == 1), "{seen:?}");
            assert_eq!(plan.plain.len(), 2 + usize::from(n == 257), "neighbours are joined");
        }
    }

    #[test]
    fn the_plain_elements_of_all_shards_are_all_plain_elements() {
        let shapes = [Shape { offset: 3, rows: 17, columns: 9 }];
        let plan = Plan::new(&Config { low_rank: 1, ..Config::default() }, &shapes, 200).unwrap();
        assert_eq!(plan.plain, [0..3, 156..200]);
        let parts = |shard: Range<usize>| -> Vec<(usize, usize)> {
            plan.plain_in(&shard).iter().map(|part| (part.start, part.end)).collect()
        };
        assert_eq!(parts(0..8), [(0, 3)]);
        assert_eq!(parts(2..160), [(2, 3), (156, 160)]);
        assert_eq!(parts(8..156), []);
        assert_eq!(parts(200..200), []);
    }
}

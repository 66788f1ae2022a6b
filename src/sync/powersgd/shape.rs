//! Where the tensors lie in the flat gradient.

use std::ops::Range;

/// One tensor of the flat gradient: element (i, j) is at `offset + i * columns + j`. A vector has one row or one column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Its first element.
    pub offset: usize,
    /// At least 1.
    pub rows: usize,
    /// At least 1.
    pub columns: usize,
}

impl Shape {
    /// Of a row-major tensor with these `dimensions`: the first one is the rows, all others together the columns, as
    /// the paper has it. None is a single number. Columns beyond `usize` end at its maximum, and fit no parameters.
    #[must_use]
    pub fn new(offset: usize, dimensions: &[usize]) -> Self {
        let (rows, others) =
            dimensions.split_first().map_or((1, dimensions), |(rows, others)| (*rows, others));
        let columns = others.iter().fold(1, |columns: usize, others| columns.saturating_mul(*others));
        Self { offset, rows, columns }
    }

    /// Its elements, none of them lost to overflow: a length beyond `usize` ends at its maximum.
    #[must_use]
    pub const fn range(&self) -> Range<usize> {
        self.offset..self.offset.saturating_add(self.rows.saturating_mul(self.columns))
    }
}

/// The shapes of tensors that lie one behind the other, from the dimensions of each.
#[must_use]
pub fn table<'a>(tensors: impl IntoIterator<Item = &'a [usize]>) -> Vec<Shape> {
    let mut next = 0;
    let shapes = tensors.into_iter().map(|dimensions| {
        let shape = Shape::new(next, dimensions);
        next = shape.range().end;
        shape
    });
    shapes.collect()
}

/// Shapes that do not fit the parameters; the caller's fault. Tensors count from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShapeError {
    /// No shape at all, which would compress nothing without a word.
    #[error("caller gave 0 tensor shapes for {elements} parameters, powersgd needs at least 1")]
    Missing {
        /// Number of parameters.
        elements: usize,
    },
    /// A tensor without elements.
    #[error("tensor {index} has {rows} rows and {columns} columns, at least 1 of each is needed")]
    Empty {
        /// Which tensor.
        index: usize,
        /// Its rows.
        rows: usize,
        /// Its columns.
        columns: usize,
    },
    /// A tensor that begins inside or in front of the one before.
    #[error("tensor {index} starts at element {offset}, the one before it ends at {end}")]
    Order {
        /// Which tensor.
        index: usize,
        /// Its first element.
        offset: usize,
        /// The element behind the one before it.
        end: usize,
    },
    /// A tensor that goes beyond the parameters.
    #[error("tensor {index} ends at element {end}, the parameters end at {elements}")]
    End {
        /// Which tensor.
        index: usize,
        /// The element behind its last one.
        end: usize,
        /// Number of parameters.
        elements: usize,
    },
}

/// Whether `shapes` lie in ascending order, without overlap, in a gradient of `elements`. Gaps are allowed.
pub(super) fn check(shapes: &[Shape], elements: usize) -> Result<(), ShapeError> {
    if shapes.is_empty() {
        return Err(ShapeError::Missing { elements });
    }
    let mut end = 0;
    for (index, &shape) in shapes.iter().enumerate() {
        let Shape { offset, rows, columns } = shape;
        if rows == 0 || columns == 0 {
            return Err(ShapeError::Empty { index, rows, columns });
        }
        if offset < end {
            return Err(ShapeError::Order { index, offset, end });
        }
        end = shape.range().end;
        if end > elements {
            return Err(ShapeError::End { index, end, elements });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_lays_tensors_one_behind_the_other_with_all_but_the_first_dimension_as_columns() {
        let tensors: [&[usize]; 4] = [&[3, 5], &[7], &[], &[2, 3, 4]];
        let shape = |offset, rows, columns| Shape { offset, rows, columns };
        assert_eq!(table(tensors), [shape(0, 3, 5), shape(15, 7, 1), shape(22, 1, 1), shape(23, 2, 12)]);
    }

    #[test]
    fn absurd_dimensions_overflow_nothing_and_fit_no_parameters() {
        let absurd: [&[usize]; 3] = [&[2, usize::MAX, usize::MAX], &[usize::MAX, 3], &[1]];
        let shapes = table(absurd);
        assert_eq!(shapes[0], Shape { offset: 0, rows: 2, columns: usize::MAX });
        assert_eq!((shapes[1].offset, shapes[2].offset), (usize::MAX, usize::MAX));
        let end = |shapes| check(shapes, 20);
        assert_eq!(end(&shapes), Err(ShapeError::End { index: 0, end: usize::MAX, elements: 20 }));
        assert_eq!(
            end(&table([[7, usize::MAX, 2, 0].as_slice()])),
            Err(ShapeError::Empty { index: 0, rows: 7, columns: 0 })
        );
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused_with_both_numbers() {
        let shape = |offset, rows, columns| Shape { offset, rows, columns };
        let message = |shapes: &[Shape]| check(shapes, 20).map_err(|error| error.to_string());
        assert_eq!(message(&[shape(0, 3, 5), shape(15, 5, 1)]), Ok(()));
        assert_eq!(message(&[shape(1, 3, 5), shape(18, 1, 1)]), Ok(()), "gaps");
        let cases = [
            (vec![], "caller gave 0 tensor shapes for 20 parameters, powersgd needs at least 1"),
            (
                vec![shape(0, 3, 5), shape(15, 0, 5)],
                "tensor 1 has 0 rows and 5 columns, at least 1 of each is needed",
            ),
            (
                vec![shape(0, 3, 5), shape(14, 1, 1)],
                "tensor 1 starts at element 14, the one before it ends at 15",
            ),
            (vec![shape(0, 3, 7)], "tensor 0 ends at element 21, the parameters end at 20"),
            (
                vec![shape(1, usize::MAX, 2)],
                "tensor 0 ends at element 18446744073709551615, the parameters end at 20",
            ),
        ];
        for (shapes, expected) in cases {
            assert_eq!(message(&shapes), Err(expected.to_owned()));
        }
    }
}

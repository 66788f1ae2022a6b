//! Products of a row-major matrix with its factors, and orthonormal columns. A factor of `length` x r is kept column by
//! column.

use std::ops::{Add, AddAssign, Mul};

/// Sums that run side by side in one scalar product: a fixed order that compiles to vectors.
const LANES: usize = 16;

/// A column whose norm falls below this part by subtracting the columns before it was a combination of them: what is left
/// is the rounding of f32. 2^-20.
const DEPENDENT: f64 = 1.0 / 1_048_576.0;

/// P = M Q, for M of `columns` columns.
pub(super) fn first(m: &[f32], columns: usize, q: &[f32], p: &mut [f32]) {
    let rows = m.len() / columns;
    for (i, row) in m.chunks_exact(columns).enumerate() {
        for (q, p) in q.chunks_exact(columns).zip(p.chunks_exact_mut(rows)) {
            p[i] = dot(row, q);
        }
    }
}

/// Q = M^T P, for M of `columns` columns.
pub(super) fn second(m: &[f32], columns: usize, p: &[f32], q: &mut [f32]) {
    let rows = m.len() / columns;
    q.fill(0.0);
    for (i, row) in m.chunks_exact(columns).enumerate() {
        add_row(p.chunks_exact(rows).map(|p| p[i]), row, q);
    }
}

fn add_row(weights: impl Iterator<Item = f32>, row: &[f32], q: &mut [f32]) {
    for (weight, q) in weights.zip(q.chunks_exact_mut(row.len())) {
        for (sum, value) in q.iter_mut().zip(row) {
            *sum += weight * value;
        }
    }
}

/// Row `i` of P Q^T into `out`, which has as many elements as Q has rows; P has `rows`.
pub(super) fn product_row(p: &[f32], rows: usize, i: usize, q: &[f32], out: &mut [f32]) {
    out.fill(0.0);
    for (p, q) in p.chunks_exact(rows).zip(q.chunks_exact(out.len())) {
        for (sum, value) in out.iter_mut().zip(q) {
            *sum += p[i] * value;
        }
    }
}

/// Makes the columns of P, of `rows` elements each, orthonormal, or zero where one is zero or depends on those before it.
///
/// Modified Gram-Schmidt, each column twice: once leaves what the first subtraction lost to cancellation.
pub(super) fn orthonormalise(p: &mut [f32], rows: usize) {
    let mut done: Vec<Vec<f64>> = Vec::with_capacity(p.len() / rows);
    for column in p.chunks_exact_mut(rows) {
        let mut v: Vec<f64> = column.iter().map(|value| f64::from(*value)).collect();
        let before = norm(&v);
        for _ in 0..2 {
            for u in &done {
                let along = dot(u, &v);
                for (v, u) in v.iter_mut().zip(u) {
                    *v -= along * u;
                }
            }
        }
        let after = norm(&v);
        if after > before * DEPENDENT {
            for (v, out) in v.iter_mut().zip(column) {
                *v /= after;
                #[expect(clippy::cast_possible_truncation, reason = "at most 1")]
                let rounded = *v as f32;
                *out = rounded;
            }
            done.push(v);
        } else {
            column.fill(0.0);
        }
    }
}

/// No f32 square, nor a sum of them, leaves the range of f64.
fn norm(v: &[f64]) -> f64 {
    dot(v, v).sqrt()
}

fn dot<T>(a: &[T], b: &[T]) -> T
where
    T: Copy + Default + Add<Output = T> + AddAssign + Mul<Output = T>,
{
    let mut lanes = [T::default(); LANES];
    let (a, a_rest) = a.as_chunks::<LANES>();
    let (b, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a.iter().zip(b) {
        for (lane, (a, b)) in lanes.iter_mut().zip(a.iter().zip(b)) {
            *lane += *a * *b;
        }
    }
    for (lane, (a, b)) in lanes.iter_mut().zip(a_rest.iter().zip(b_rest)) {
        *lane += *a * *b;
    }
    // Not `sum`, whose start has been 0 or -0 depending on the compiler.
    lanes.into_iter().fold(T::default(), Add::add)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Small integers: every sum below is exact in f32, whatever its order.
    fn painted(length: usize, step: usize) -> Vec<f32> {
        (0..length).map(|i| f32::from(u8::try_from(i * step % 13).unwrap_or(0)) - 6.0).collect()
    }

    #[test]
    fn products_are_the_textbooks_for_every_shape() {
        for (rows, columns) in [(1, 1), (1, 40), (40, 1), (3, 5), (17, 9), (16, 16), (5, 33), (31, 64)] {
            for r in [1, 2, 3, 7] {
                let case = format!("{rows} x {columns}, {r}");
                let m = painted(rows * columns, 5);
                let (p, q) = (painted(rows * r, 7), painted(columns * r, 3));
                let (mut got_p, mut got_q) = (vec![9.0; rows * r], vec![9.0; columns * r]);
                first(&m, columns, &q, &mut got_p);
                second(&m, columns, &p, &mut got_q);
                for k in 0..r {
                    for i in 0..rows {
                        let want: f32 = (0..columns).map(|j| m[i * columns + j] * q[k * columns + j]).sum();
                        assert_eq!(got_p[k * rows + i], want, "P({i}, {k}) of {case}");
                    }
                    for j in 0..columns {
                        let want: f32 = (0..rows).map(|i| m[i * columns + j] * p[k * rows + i]).sum();
                        assert_eq!(got_q[k * columns + j], want, "Q({j}, {k}) of {case}");
                    }
                }
                let mut out = vec![9.0; columns];
                for i in 0..rows {
                    product_row(&p, rows, i, &q, &mut out);
                    for j in 0..columns {
                        let want: f32 = (0..r).map(|k| p[k * rows + i] * q[k * columns + j]).sum();
                        assert_eq!(out[j], want, "({i}, {j}) of {case}");
                    }
                }
            }
        }
    }

    /// The largest deviation of P^T P from the identity, zero columns left out.
    fn deviation(p: &[f32], rows: usize) -> f64 {
        let columns: Vec<&[f32]> = p.chunks_exact(rows).filter(|c| c.iter().any(|v| *v != 0.0)).collect();
        let mut worst = 0.0_f64;
        for (i, a) in columns.iter().enumerate() {
            for (j, b) in columns.iter().enumerate() {
                let dot: f64 = a.iter().zip(*b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                worst = worst.max((dot - f64::from(u8::from(i == j))).abs());
            }
        }
        worst
    }

    #[test]
    fn columns_become_orthonormal_also_where_they_nearly_depend_on_each_other() {
        let rows = 37;
        // Each column is the first one, and a thousandth of something of its own.
        let own = painted(4 * rows, 5);
        for (scale, part) in [(1.0, 1.0), (1.0, 1e-3), (1e-30, 1e-3), (1e18, 1e-3)] {
            let mut p: Vec<f32> = (0..4 * rows).map(|i| scale * (own[i % rows] + part * own[i])).collect();
            // The painting is periodic in 13: make columns differ.
            for k in 1..4 {
                p[k * rows + k] += scale * part;
            }
            orthonormalise(&mut p, rows);
            assert!(p.chunks_exact(rows).all(|c| c.iter().any(|v| *v != 0.0)), "{p:?}");
            assert!(deviation(&p, rows) < 1e-6, "{} at {scale} {part}", deviation(&p, rows));
        }
    }

    #[test]
    fn zero_and_dependent_columns_become_zero_and_no_neighbour_suffers() {
        let rows = 19;
        let (a, b) = (painted(rows, 5), painted(rows, 3));
        let combined: Vec<f32> = a.iter().zip(&b).map(|(a, b)| 0.3 * a - 0.7 * b).collect();
        let columns = [vec![0.0; rows], a.clone(), a.iter().map(|v| v * 0.1).collect(), b, combined, a];
        let mut p: Vec<f32> = columns.concat();
        orthonormalise(&mut p, rows);
        let zero: Vec<bool> = p.chunks_exact(rows).map(|c| c.iter().all(|v| *v == 0.0)).collect();
        assert_eq!(zero, [true, false, true, false, true, true]);
        assert!(deviation(&p, rows) < 1e-6, "{p:?}");
        // More columns than rows, and the least f32 there is.
        let mut wide = painted(3 * 8, 5);
        orthonormalise(&mut wide, 3);
        assert!(deviation(&wide, 3) < 1e-6, "{wide:?}");
        let mut tiny = [f32::from_bits(1), 0.0];
        orthonormalise(&mut tiny, 2);
        assert_eq!(tiny, [1.0, 0.0]);
    }
}

use super::*;

const NEAREST: [(Divisor, f64); 3] = [(Divisor::ONE, 1.0), (Divisor::BITS_2, 2.0), (Divisor::BITS_4, 7.5)];

/// The value of an index, exact.
fn value(index: i32) -> f64 {
    f64::from(4 + (index & 3)) * f64::from(index >> 2).exp2()
}

/// Powers of two, multiples of what thresholds are made of, and their neighbours, below 2^30.
fn magnitudes() -> impl Iterator<Item = u32> {
    let odd = [1_u64, 3, 5, 7, 9, 11, 13, 15, 27, 45, 135, 165, 195, 225, 2295, 2805, 3315, 3825, 4095];
    let near = move |place: u32| odd.into_iter().map(move |odd| odd << place);
    let all = (0..30).flat_map(near).flat_map(|v| [v - 1, v, v + 1]);
    all.filter(|v| (1..1 << 30).contains(v)).filter_map(|v| u32::try_from(v).ok())
}

#[test]
fn the_nearest_scale_is_the_nearest_for_every_divisor_and_ties_go_up() {
    for (divisor, by) in NEAREST {
        let mut ties = 0;
        for magnitude in magnitudes() {
            let index = choose(magnitude, divisor);
            // Exact: integers below 2^41 on both sides.
            let off = |index: i32| (f64::from(magnitude) - value(index) * by).abs();
            assert!(index == 0 || off(index) <= off(index - 1), "{magnitude} by {by}: {index}");
            assert!(off(index) < off(index + 1), "{magnitude} by {by}: {index}");
            ties += u32::from(index > 0 && off(index) == off(index - 1));
        }
        assert!(ties > 20, "only {ties} ties met");
    }
}

#[test]
fn eight_bits_take_the_next_scale_above_and_never_clip_more_than_one_step() {
    for magnitude in magnitudes() {
        let index = choose(magnitude, Divisor::BITS_8);
        assert!(f64::from(magnitude) < 128.0 * value(index), "{magnitude}: {index}");
        assert!(index == 0 || f64::from(magnitude) >= 128.0 * value(index - 1), "{magnitude}: {index}");
    }
}

#[test]
fn the_quotient_is_exact_with_ties_to_even() {
    let mut ties = 0;
    for index in 0..100 {
        let scale = f64::from(units(index));
        // Every tie of a code and its neighbours, then anything.
        let halves = (0..=300).map(|half| u64::from(units(index).unsigned_abs()) * half / 2);
        let near = halves.flat_map(|v| [v.saturating_sub(1), v, v + 1]).filter(|v| *v < 1 << 30);
        for magnitude in near.filter_map(|v| u32::try_from(v).ok()).chain(magnitudes()) {
            let exact = f64::from(magnitude) / scale;
            let got = f64::from(quotient(magnitude, index));
            if exact < 146.0 {
                assert!((got - exact).abs() <= 0.5, "{magnitude} by {scale}: {got}");
                // A product of halves is exact, so that a tie shows exactly.
                if (got - 0.5) * scale == f64::from(magnitude) || (got + 0.5) * scale == f64::from(magnitude)
                {
                    assert_eq!(got % 2.0, 0.0, "{magnitude} by {scale}");
                    ties += 1;
                }
            } else {
                assert!(got >= 146.0, "{magnitude} by {scale}: {got}");
            }
        }
    }
    assert!(ties > 5000, "only {ties} ties met");
}

#[test]
fn a_gradient_becomes_its_nearest_unit_below_2_to_the_21() {
    let edges = [0, 1, 2, 3, 4, 5, 12, 13, 0x3F_FFFF, 0x40_0000, 0x40_0001, 0x7F_FFFB, 0x7F_FFFC, 0x7F_FFFF];
    for top in 1..255_i32 {
        for exponent in 0..=top {
            for mantissa in edges.into_iter().chain((0..23).map(|k| 1 << k)) {
                let bits = exponent.cast_unsigned() << 23 | mantissa;
                let value = if exponent == 0 { 0.0 } else { f64::from(f32::from_bits(bits)) };
                let want = (value / f64::from(unit_log2(top)).exp2()).round_ties_even();
                assert_eq!(f64::from(fixed(bits, top)), want, "{bits:#010x} top {top}");
                assert_eq!(f64::from(fixed(bits | 1 << 31, top)), -want, "{bits:#010x} top {top}");
                assert!(want <= 2_097_152.0, "{bits:#010x} top {top}");
            }
        }
    }
    assert_eq!(fixed(0x7F80_0000, 254), 0);
    assert_eq!(fixed(0xFFC0_0000, 254), 0);
}

#[test]
fn a_residual_becomes_its_nearest_unit_below_2_to_the_21() {
    for base_log2 in [-80, -50, 0, 55] {
        for byte in 1..=u8::MAX {
            let least = residual_exponent(byte, base_log2);
            assert!((1..=254).contains(&least), "byte {byte} base {base_log2}: {least}");
            for top in (least..=254).take(40) {
                for residual in [-128, -127, -3, -1, 0, 1, 2, 64, 127] {
                    let scale = value(i32::from(byte)) * f64::from(i32::from(base_log2) - 8).exp2();
                    let exact = f64::from(residual) * scale / f64::from(unit_log2(top)).exp2();
                    let got = residual_fixed(residual, byte, base_log2, top);
                    assert_eq!(f64::from(got), exact.round_ties_even(), "{residual} byte {byte} top {top}");
                    assert!(got.abs() < 1 << DIGITS, "{residual} byte {byte} top {top}");
                }
            }
        }
    }
}

#[test]
fn bytes_and_indices_are_each_other_and_stop_at_their_ends() {
    for offset in [-600, -255, -100, -4, 0, 4, 100] {
        for index in 0..100 {
            let (byte, exact) = (to_byte(index, offset), index + offset);
            assert_eq!(i32::from(byte), if exact < 1 { 0 } else { exact.min(255) });
            if (1..=255).contains(&exact) {
                assert_eq!(to_index(byte, offset), index);
            }
        }
    }
    assert_eq!(to_index(255, 300), 0);
}

#[test]
fn sums_of_terms_fit_and_means_are_normal_at_the_ends_of_every_range() {
    for total in [1, 2, 3, 1000, (1 << 20) + 1, (1 << 21) - 1] {
        for largest_code in [1, 2, 8, 128] {
            let headroom = headroom(total, largest_code);
            let most = (u64::from(total) * 7 * u64::from(largest_code)) << headroom;
            assert!((1 << 30..1 << 31).contains(&most), "{total} {largest_code} {headroom}");
            for base_log2 in [*BASE_LOG2.start(), *BASE_LOG2.end()] {
                let scale = mean_scale(total, base_log2, headroom);
                let sum = Term::new(255, total, 63, headroom).of(-largest_code.cast_signed());
                for (sum, reference) in [(1, 0), (1, 63), (sum, 0), (sum, 63), (i32::MAX, 0)] {
                    let mean = mean(sum, scale, reference);
                    let exponent = i32::from(base_log2) - headroom.cast_signed() + reference.cast_signed();
                    let exact = f64::from(sum) / f64::from(total) * f64::from(exponent).exp2();
                    assert!(mean.is_normal(), "{mean:e} of {sum}, total {total}");
                    let off = (f64::from(mean) / exact - 1.0).abs();
                    assert!(off < 2.0_f64.powi(-22), "{mean:e} is not {exact:e}");
                }
                assert_eq!(mean(0, scale, 63).to_bits(), 0);
            }
        }
    }
}

#[test]
fn a_term_is_rounded_to_even_at_every_distance() {
    for total in [1, 1000, (1 << 21) - 1] {
        let headroom = headroom(total, 128);
        for weight in [1, 2, 3, 999, total].into_iter().filter(|weight| *weight <= total) {
            for byte in 1..=u8::MAX {
                let term = Term::new(byte, weight, 63, headroom);
                for code in [-128, -127, -8, -1, 0, 1, 2, 7, 127] {
                    let steps = f64::from(headroom) - f64::from(63 - (byte >> 2));
                    let exact =
                        f64::from(code) * f64::from(weight) * f64::from(4 + (byte & 3)) * steps.exp2();
                    assert_eq!(
                        f64::from(term.of(code)),
                        exact.round_ties_even() + 0.0,
                        "{code} {byte} {weight}"
                    );
                }
            }
        }
    }
    assert_eq!(Term::new(0, 5, 63, 0), Term::default());
    assert_eq!(Term::new(200, 0, 10, 0), Term::default());
}

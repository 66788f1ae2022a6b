//! Sum, difference and product of two f32 for state that is kept in f32: every device rounds them alike.
//!
//! Plain IEEE 754 operations (nearest, ties to even), with three things settled that devices settle differently: a
//! subnormal counts as zero on both sides, every zero is plus zero, and a result beyond the largest f32 is the largest
//! f32, so that no infinity appears that no gradient had. Operands are finite. Fragment, in integers:
//! `shaders/lib/float.wgsl`.

/// `value`, with every subnormal and minus zero as plus zero.
#[must_use]
#[inline]
pub const fn flush(value: f32) -> f32 {
    if value.to_bits() & 0x7F80_0000 == 0 { 0.0 } else { value }
}

/// `a + b`, rounded once.
#[must_use]
#[inline]
pub const fn add(a: f32, b: f32) -> f32 {
    settle(flush(a) + flush(b))
}

/// `a - b`, rounded once.
#[must_use]
#[inline]
pub const fn sub(a: f32, b: f32) -> f32 {
    settle(flush(a) - flush(b))
}

/// `a * b`, rounded once.
#[must_use]
#[inline]
pub const fn mul(a: f32, b: f32) -> f32 {
    settle(flush(a) * flush(b))
}

/// No subnormal, no infinity.
const fn settle(value: f32) -> f32 {
    flush(value.clamp(f32::MIN, f32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: f32 = f32::MIN_POSITIVE;

    #[test]
    fn results_beyond_the_range_stop_at_its_end_and_below_it_are_plus_zero() {
        assert_eq!(add(f32::MAX, f32::MAX), f32::MAX);
        assert_eq!(sub(f32::MIN, f32::MAX), f32::MIN);
        assert_eq!(mul(f32::MAX, -2.0), f32::MIN);
        assert_eq!(add(f32::MAX, 1.0e31).to_bits(), f32::MAX.to_bits());
        assert_eq!(mul(LEAST, 0.5).to_bits(), 0);
        assert_eq!(mul(-LEAST, 0.5).to_bits(), 0);
        assert_eq!(sub(1.5 * LEAST, LEAST).to_bits(), 0, "an exact difference that is subnormal");
        assert_eq!(sub(-0.0, 0.0).to_bits(), 0);
        assert_eq!(mul(-1.0, 0.0).to_bits(), 0);
    }

    #[test]
    fn subnormal_operands_count_as_zero() {
        let subnormal = f32::from_bits(0x007F_FFFF);
        assert_eq!(add(subnormal, LEAST), LEAST);
        assert_eq!(mul(subnormal, 1.0e30), 0.0);
        assert_eq!(sub(subnormal, subnormal), 0.0);
    }

    #[test]
    fn a_product_just_below_the_normal_numbers_rounds_up_to_them_where_ieee_754_does() {
        // (1 - 2^-24) * 2^-126 is half a unit below 2^-126, and ties go to even.
        let below_one = f32::from_bits(0x3F7F_FFFF);
        assert_eq!(mul(below_one, LEAST), LEAST);
        assert_eq!(mul(f32::from_bits(0x3F7F_FFFE), LEAST), 0.0);
    }
}

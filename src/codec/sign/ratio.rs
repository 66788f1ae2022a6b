//! The scale of a quotient, without a division.

/// A quotient as `top / bottom * 2^exponent` with `top / bottom` in 8..16: compared, never divided.
///
/// Fragment: `shaders/lib/ratio.wgsl`.
#[derive(Clone, Copy)]
pub(super) struct Ratio {
    top: u32,
    bottom: u32,
    exponent: i32,
}

impl Ratio {
    /// `top / bottom`, `1 <= top <= 2^30`, `1 <= bottom <= 1024`.
    pub(super) const fn new(top: u32, bottom: u32) -> Self {
        let (up, down) = (top.leading_zeros() - 1, bottom.leading_zeros() - 4);
        // 2^30 <= top < 2^31 and 2^27 <= bottom < 2^28: between 4 and 16. 15 * bottom stays below 2^32.
        let (top, bottom) = (top << up, bottom << down);
        let small = (top < 8 * bottom) as u32;
        Self {
            top: top << small,
            bottom,
            exponent: down.cast_signed() - up.cast_signed() - small.cast_signed(),
        }
    }

    /// The index of the nearest scale, at least 0; half way between two it is the larger one.
    pub(super) const fn nearest(self) -> i32 {
        let Self { top, bottom, .. } = self;
        // Scales 4, 5, 6, 7 and 8 stand at 8, 10, 12, 14, 16.
        self.index(
            (top >= 9 * bottom) as i32
                + (top >= 11 * bottom) as i32
                + (top >= 13 * bottom) as i32
                + (top >= 15 * bottom) as i32,
        )
    }

    /// The index of the least scale that is not below, at least 0.
    pub(super) const fn least(self) -> i32 {
        let Self { top, bottom, .. } = self;
        self.index(
            (top > 8 * bottom) as i32
                + (top > 10 * bottom) as i32
                + (top > 12 * bottom) as i32
                + (top > 14 * bottom) as i32,
        )
    }

    const fn index(self, steps: i32) -> i32 {
        let index = 4 * (self.exponent + 1) + steps;
        if index < 0 { 0 } else { index }
    }
}

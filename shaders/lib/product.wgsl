// product: an i32 times an f32, rounded to f32 as IEEE 754 does it (nearest, ties to even), in integers.
// CPU twin: the plain product `sum as f32 * scale` of codec::loco::average.
// WGSL lets an inexact product be either of its two neighbours; a mean must be the same bits on every rank.

// Shift right with ties to even of the 48-bit value high * 2^24 + low, by 1 <= shift <= 24.
fn product_round_shift(high: u32, low: u32, shift: u32) -> u32 {
    let kept = (high << (24u - shift)) | (low >> shift);
    let rest = low & ((1u << shift) - 1u);
    let half = 1u << (shift - 1u);
    let up = (rest > half) || ((rest == half) && ((kept & 1u) == 1u));
    return kept + select(0u, 1u, up);
}

// f32 bits of value * scale. |value| < 2^24; `scale` is the bits of a positive normal f32, and the result is normal
// too: loco's scales lie in 2^-85..=2^64. Zero gives +0.0.
fn product_bits(value: i32, scale: u32) -> u32 {
    let magnitude = u32(abs(value));
    let lead = countLeadingZeros(magnitude | 1u) - 8u; // zeros above a 24-bit number
    let a = magnitude << lead; // in 2^23..2^24, or 0
    let b = (scale & 0x7fffffu) | 0x800000u;
    // 24 x 24 bits from four 12 x 12 products, as u32 holds no more: a * b = high * 2^24 + rest, in 2^46..2^48.
    let low = (a & 0xfffu) * (b & 0xfffu);
    let middle = (a & 0xfffu) * (b >> 12u) + (a >> 12u) * (b & 0xfffu) + (low >> 12u);
    let high = (a >> 12u) * (b >> 12u) + (middle >> 12u);
    let rest = ((middle & 0xfffu) << 12u) | (low & 0xfffu);
    let carry = high >> 23u; // 24 bits stay: drop 23, or 24 when bit 47 is set
    let rounded = product_round_shift(high, rest, 23u + carry);
    // The leading one of `rounded` is added on top, and so is the carry of rounding up to 2^24.
    let exponent = (scale >> 23u) + 23u - lead + carry - 1u;
    let bits = ((exponent << 23u) + rounded) | (u32(value) & 0x80000000u);
    return select(bits, 0u, value == 0);
}

// f32 bits of f32(value) * scale, for any |value| < 2^31: first rounded to 24 bits, ties to even, as a conversion does.
fn product_wide_bits(value: i32, scale: u32) -> u32 {
    let magnitude = u32(abs(value));
    let shift = 8u - min(countLeadingZeros(magnitude), 8u);
    let odd = (magnitude >> shift) & min(shift, 1u);
    let rounded = (magnitude + (((1u << shift) - 1u) >> 1u) + odd) >> shift;
    let carry = rounded >> 24u; // rounded up to 2^24
    let narrow = i32(rounded >> carry);
    return product_bits(select(narrow, -narrow, value < 0), scale + ((shift + carry) << 23u));
}

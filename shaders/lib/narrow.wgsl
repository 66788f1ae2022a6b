// narrow: f32 to a float with fewer bits, rounded to nearest, ties to even, also into its subnormals.
// CPU twin: codec::convert::narrow_magnitude. Needs the fragment fixed.

// The code without a sign of (1 + mantissa * 2^-23) * 2^(exponent - 127) in a format with so many bits of exponent
// (4..=8) and digits of mantissa (2..=10); -300 <= exponent <= 300. Above the largest number it goes on counting.
fn narrow_magnitude4(exponent: vec4<i32>, mantissa: vec4<u32>, exponent_bits: u32, digits: u32) -> vec4<u32> {
    let bias = i32(1u << (exponent_bits - 1u)) - 1;
    let field = exponent + vec4<i32>(bias - 127);
    let below = vec4<u32>(max(vec4<i32>(1) - field, vec4<i32>(0)));
    let base = vec4<u32>(max(field, vec4<i32>(1)) - vec4<i32>(1)) << vec4<u32>(digits);
    // 24 bits shifted by 25 or more round to 0.
    let shift = min(vec4<u32>(23u - digits) + below, vec4<u32>(25u));
    let significand = vec4<i32>(mantissa | vec4<u32>(0x800000u));
    // The leading one is added on top of the exponent below, and so is the carry of rounding up.
    return base + vec4<u32>(fixed_round_shift(significand, shift));
}

// fixed: exact fixed-point arithmetic on f32 bit patterns, with integer operations only.
// CPU twin: codec::fixed. No float operation is left for a compiler to fuse, flush, reorder or fold: WGSL fixes
// neither the rounding mode nor subnormals, FXC contracts products into mad, Metal compiles with fast math on.

const fixed_fraction_bits: u32 = 12u; // digits below one code
const fixed_max: u32 = 0x40000u; // magnitudes stop at 64 codes

// NaN or infinity: found in the bits, because `x != x` is false for NaN on every Vulkan stack tried.
fn fixed_is_finite(bits: vec4<u32>) -> vec4<bool> {
    return (bits & vec4<u32>(0x7f800000u)) != vec4<u32>(0x7f800000u);
}

// value / 2^shift, rounded to nearest, ties to even; 1 <= shift <= 30, and value + 2^(shift-1) < 2^31.
fn fixed_round_shift(value: vec4<i32>, shift: vec4<u32>) -> vec4<i32> {
    let odd = (value >> shift) & vec4<i32>(1);
    let half = vec4<i32>(vec4<u32>(1u) << (shift - vec4<u32>(1u)));
    return (value + half - vec4<i32>(1) + odd) >> shift;
}

// f32 bits to fixed point in units of 2^-(scale_log2 + 12), clamped to +-fixed_max; `point` = 138 - scale_log2.
// The value is mantissa * 2^-(point - exponent). A shift of 5 or less leaves 2^23 >> 5 = fixed_max or more, a shift of
// 25 or more rounds 2^24 - 1 to 0, so the clamp loses nothing. Subnormals land at shift >= 74 and count as zero.
fn fixed_from_bits(bits: vec4<u32>, point: i32) -> vec4<i32> {
    let exponent = vec4<i32>((bits >> vec4<u32>(23u)) & vec4<u32>(0xffu));
    let mantissa = vec4<i32>((bits & vec4<u32>(0x7fffffu)) | vec4<u32>(0x800000u));
    let shift = vec4<u32>(clamp(vec4<i32>(point) - exponent, vec4<i32>(5), vec4<i32>(25)));
    let magnitude = min(fixed_round_shift(mantissa, shift), vec4<i32>(i32(fixed_max)));
    let sign = vec4<i32>(bits) >> vec4<u32>(31u); // 0 or -1
    return (magnitude ^ sign) - sign;
}

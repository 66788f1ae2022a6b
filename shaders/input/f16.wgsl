// input/f16: a gradient of f16, widened to f32 bits exactly, with integers: GL and SwiftShader have no f16, and a
// conversion may flush subnormals or quieten a NaN.
// CPU twin: codec::widen_f16. Memory: two elements to a word, the first in the low half; 4 to a vector; zero up to
// whole units.

@group(0) @binding(1) var<storage, read> gradient: array<vec2<u32>>;

// 2^-24 * mantissa, of a mantissa below 2^10, which is normal in f32: the leading one goes to place 23.
fn input_subnormal4(mantissa: vec4<u32>) -> vec4<u32> {
    let shift = countLeadingZeros(mantissa) - vec4<u32>(8u); // 14..=23, or 24 for zero
    let bits = ((vec4<u32>(126u) - shift) << vec4<u32>(23u)) + ((mantissa << shift) & vec4<u32>(0x7fffffu));
    return select(bits, vec4<u32>(0u), mantissa == vec4<u32>(0u));
}

// Exponents 1..=30 move from bias 15 to bias 127; 31, of infinity and NaN, becomes 255 and keeps its payload on top.
fn input_widen4(halves: vec4<u32>) -> vec4<u32> {
    let exponent = halves & vec4<u32>(0x7c00u);
    let special = exponent == vec4<u32>(0x7c00u);
    let bias = select(vec4<u32>(112u << 23u), vec4<u32>(224u << 23u), special);
    let normal = ((halves & vec4<u32>(0x7fffu)) << vec4<u32>(13u)) + bias;
    let subnormal = input_subnormal4(halves & vec4<u32>(0x3ffu));
    let magnitude = select(normal, subnormal, exponent == vec4<u32>(0u));
    return magnitude | ((halves & vec4<u32>(0x8000u)) << vec4<u32>(16u));
}

// The f32 bits of elements 4 * index .. 4 * index + 3 of this dispatch.
fn input_load4(index: u32) -> vec4<u32> {
    let pairs = gradient[index].xxyy;
    return input_widen4((pairs >> vec4<u32>(0u, 16u, 0u, 16u)) & vec4<u32>(0xffffu));
}

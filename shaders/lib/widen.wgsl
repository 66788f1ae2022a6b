// widen: a float of up to 16 bits to f32, exactly.
// CPU twin: codec::convert::widen.

// f32 bits of codes with so many bits of exponent (4, 5 or 8) and digits of mantissa, the sign above them. With 4 bits
// of exponent there is no infinity, and only all ones are NaN.
fn widen_bits4(codes: vec4<u32>, exponent_bits: u32, digits: u32) -> vec4<u32> {
    let last = (1u << exponent_bits) - 1u;
    let sign = ((codes >> vec4<u32>(exponent_bits + digits)) & vec4<u32>(1u)) << vec4<u32>(31u);
    let exponent = (codes >> vec4<u32>(digits)) & vec4<u32>(last);
    let mantissa = codes & vec4<u32>((1u << digits) - 1u);
    let up = vec4<u32>(23u - digits);
    let rebias = vec4<u32>(128u - (1u << (exponent_bits - 1u))); // 127 - bias
    let normal = ((exponent + rebias) << vec4<u32>(23u)) | (mantissa << up);

    // Subnormals are normal in f32, but those of bf16: the leading one goes to place 23 and adds one to the exponent.
    let shift = countLeadingZeros(mantissa | vec4<u32>(1u)) - vec4<u32>(8u);
    let small = ((rebias + up - shift) << vec4<u32>(23u)) + (mantissa << shift);
    let zero_or_small = select(small, vec4<u32>(0u), mantissa == vec4<u32>(0u));
    let subnormal = (exponent == vec4<u32>(0u)) & (rebias > vec4<u32>(0u));

    let infinite = vec4<u32>(0x7f800000u) | (mantissa << up);
    let all_ones = select(normal, vec4<u32>(0x7fc00000u), mantissa == vec4<u32>((1u << digits) - 1u));
    let special = select(infinite, all_ones, vec4<bool>(exponent_bits == 4u));
    let magnitude = select(select(normal, zero_or_small, subnormal), special, exponent == vec4<u32>(last));
    return sign | magnitude;
}

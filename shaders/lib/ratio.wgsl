// ratio: the scale that a quotient asks for, without a division: multiples of the divisor are compared.
// CPU twin: codec::sign, Ratio. An index is 4 * e + m of the scale (4 + m) * 2^e, at least 0.

// `a` (at most 2^30) over `b` (at most 1024) is 8..16 of some binade; one more for each of `steps` it reaches, plus `above`.
fn ratio_index(a: u32, b: u32, steps: vec4<u32>, above: u32) -> i32 {
    let up = countLeadingZeros(max(a, 1u)) - 1u;
    let down = countLeadingZeros(max(b, 1u)) - 4u;
    let bottom = b << down; // in 2^27..2^28, and `a` in 2^30..2^31: 4..16, and nothing overflows
    let small = select(0u, 1u, (a << up) < 8u * bottom);
    let reached = vec4<u32>((a << up) << small) >= steps * vec4<u32>(bottom) + vec4<u32>(above);
    let ones = select(vec4<i32>(0), vec4<i32>(1), reached);
    let exponent = i32(down) - i32(up) - i32(small) + 1;
    return max(4 * exponent + ones.x + ones.y + ones.z + ones.w, 0);
}

// The index of the scale nearest to a over b, half way the larger one.
fn ratio_nearest(a: u32, b: u32) -> i32 {
    return ratio_index(a, b, vec4<u32>(9u, 11u, 13u, 15u), 0u);
}

// The index of the least scale that is not below a over 127.5.
fn ratio_least(a: u32) -> i32 {
    return ratio_index(a << 1u, 255u, vec4<u32>(8u, 10u, 12u, 14u), 1u);
}

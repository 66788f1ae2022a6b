// scale: one byte of scale for a block, (4 + byte % 4) * 2^(byte / 4 + base_log2), and block floating point around it.
// CPU twin: codec::scale, where the bounds are proved. Needs fragment: fixed. An index is 4 * e + m of a scale in units.

const scale_byte_step: u32 = 1u << 28u; // threshold and exponent of absmax over 128, for residuals
const scale_byte_exponent: u32 = 22u;

// Biased exponents; 0 for zero, subnormals, NaN and infinity.
fn scale_exponent4(bits: vec4<u32>) -> vec4<u32> {
    let exponent = (bits >> vec4<u32>(23u)) & vec4<u32>(0xffu);
    return select(exponent, vec4<u32>(0u), exponent == vec4<u32>(0xffu));
}

fn scale_max4(values: vec4<u32>) -> u32 {
    return max(max(values.x, values.y), max(values.z, values.w));
}

// Which of a unit's four blocks the element lies in.
fn scale_block(element: u32, block: u32) -> u32 {
    let passed = vec3<u32>(element) >= vec3<u32>(1u, 2u, 3u) * vec3<u32>(block);
    let ones = select(vec3<u32>(0u), vec3<u32>(1u), passed);
    return ones.x + ones.y + ones.z;
}

// The scale byte in a unit's word of the block whose number, modulo 4, is `k`.
fn scale_byte_of(word: u32, k: u32) -> u32 {
    return (word >> (8u * (k & 3u))) & 0xffu;
}

// The biased exponent that bounds residual bytes with this scale byte.
fn scale_residual_exponent(byte: u32, base_log2: i32) -> u32 {
    return select(u32(i32(byte >> 2u) + base_log2 + 128), 0u, byte == 0u);
}

// Four times the powers of two from the base to the unit, 2^(top - 147).
fn scale_offset(top: u32, base_log2: i32) -> i32 {
    return 4 * (i32(top) - 147 - base_log2);
}

// f32 bits in units, ties to even, at most 2^21; 0 for what scale_exponent4 gives 0 for.
fn scale_fixed4(bits: vec4<u32>, top: u32) -> vec4<i32> {
    let exponent = scale_exponent4(bits);
    let mantissa = vec4<i32>((bits & vec4<u32>(0x7fffffu)) | vec4<u32>(0x800000u));
    let shift = min(vec4<u32>(top + 3u) - exponent, vec4<u32>(25u));
    let magnitude = select(fixed_round_shift(mantissa, shift), vec4<i32>(0), exponent == vec4<u32>(0u));
    let sign = vec4<i32>(bits) >> vec4<u32>(31u); // 0 or -1
    return (magnitude ^ sign) - sign;
}

// Residual bytes with this scale byte in units, ties to even, below 2^21.
fn scale_residual4(residual: vec4<i32>, byte: u32, base_log2: i32, top: u32) -> vec4<i32> {
    let value = (residual * vec4<i32>(i32(4u + (byte & 3u)))) << vec4<u32>(12u);
    let shift = min(top - scale_residual_exponent(byte, base_log2) + 1u, 24u);
    return select(fixed_round_shift(value, vec4<u32>(shift)), vec4<i32>(0), byte == 0u);
}

// The index of the scale of magnitude (at least 1) over a divisor, which is its `step` and `exponent`: the nearest if
// `half` is 1, the next above if it is 0.
fn scale_choose(magnitude: u32, step: u32, exponent: u32, half: u32) -> i32 {
    let zeros = countLeadingZeros(magnitude);
    let thresholds = vec4<u32>(step) * (vec4<u32>(8u, 10u, 12u, 14u) + vec4<u32>(half));
    let passed = select(vec4<i32>(0), vec4<i32>(1), vec4<u32>(magnitude << zeros) >= thresholds);
    return max(4 * (i32(exponent) - i32(zeros)) + passed.x + passed.y + passed.z + passed.w, 0);
}

// The scale byte of a block with this largest magnitude: 0 below the smallest scale, 255 above the largest.
fn scale_byte(absmax: u32, step: u32, exponent: u32, half: u32, offset: i32) -> u32 {
    let byte = clamp(scale_choose(max(absmax, 1u), step, exponent, half) + offset, 0, 255);
    return select(u32(byte), 0u, absmax == 0u);
}

fn scale_index(byte: u32, offset: i32) -> u32 {
    return u32(max(i32(byte) - offset, 0));
}

fn scale_units(index: u32) -> u32 {
    return (4u + (index & 3u)) << ((index >> 2u) & 31u);
}

// value over the scale, ties to even; exact up to 146. |value| < 2^30, index < 100. A block of byte 0 has all 0.
fn scale_quotient4(value: vec4<i32>, byte: u32, offset: i32) -> vec4<i32> {
    let index = min(scale_index(byte, offset), 103u); // only where byte is 0
    let magnitude = vec4<u32>(abs(value));
    let reciprocals = vec4<u32>(16384u, 13108u, 10923u, 9363u); // 2^16 over 4, 5, 6 and 7, rounded up
    let odd = select(reciprocals.xz, reciprocals.yw, (index & 1u) == 1u);
    let reciprocal = select(odd.x, odd.y, (index & 2u) == 2u);
    let input = min(magnitude >> vec4<u32>(index >> 2u), vec4<u32>(1023u));
    let whole = (input * vec4<u32>(reciprocal)) >> vec4<u32>(16u);
    let scale = scale_units(index);
    let twice = (magnitude - whole * vec4<u32>(scale)) << vec4<u32>(1u);
    let up = twice + (whole & vec4<u32>(1u)) > vec4<u32>(scale);
    let rounded = vec4<i32>(whole + select(vec4<u32>(0u), vec4<u32>(1u), up));
    let signed = select(rounded, -rounded, value < vec4<i32>(0));
    return select(signed, vec4<i32>(0), byte == 0u);
}

// What a rank's codes of a block are multiplied by, and by how many places the products are shifted down.
fn scale_term(byte: u32, weight: u32, reference: u32, headroom: u32) -> vec2<u32> {
    let distance = reference - (byte >> 2u);
    let shows = byte != 0u && weight != 0u && distance <= 31u;
    return select(vec2<u32>(0u), vec2<u32>((weight * (4u + (byte & 3u))) << headroom, distance), shows);
}

// code * factor over 2^shift, ties to even.
fn scale_term4(term: vec2<u32>, code: vec4<i32>) -> vec4<i32> {
    let shift = vec4<u32>(term.y);
    let product = vec4<u32>(abs(code)) * vec4<u32>(term.x);
    let odd = (product >> shift) & vec4<u32>(min(term.y, 1u));
    let rounded = vec4<i32>((product + vec4<u32>(((1u << term.y) - 1u) >> 1u) + odd) >> shift);
    return select(rounded, -rounded, code < vec4<i32>(0));
}

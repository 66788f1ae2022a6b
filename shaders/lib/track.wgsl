// track: what a code of ef21 adds to the f32 that both ends keep.
// CPU twin: codec::ef21, step and follow. Needs fragment: float.

// f32 bits of code * (4 + byte % 4) * 2^(byte / 4 + base_log2), exact: the product of the small numbers has 6 bits.
fn track_decode(code: i32, byte: u32, base_log2: i32) -> u32 {
    let product = u32(abs(code)) * (4u + (byte & 3u));
    let lead = 31u - countLeadingZeros(max(product, 1u));
    let exponent = u32(i32(lead + 127u + (byte >> 2u)) + base_log2);
    let bits = (exponent << 23u) | ((product << (23u - lead)) & 0x7fffffu) | (u32(code) & 0x80000000u);
    return select(bits, 0u, code == 0 || byte == 0u);
}

fn track_follow4(tracked: vec4<u32>, code: vec4<i32>, byte: u32, base_log2: i32) -> vec4<u32> {
    return vec4<u32>(
        float_add(tracked.x, track_decode(code.x, byte, base_log2)),
        float_add(tracked.y, track_decode(code.y, byte, base_log2)),
        float_add(tracked.z, track_decode(code.z, byte, base_log2)),
        float_add(tracked.w, track_decode(code.w, byte, base_log2)),
    );
}

fn track_sub4(a: vec4<u32>, b: vec4<u32>) -> vec4<u32> {
    return vec4<u32>(float_sub(a.x, b.x), float_sub(a.y, b.y), float_sub(a.z, b.z), float_sub(a.w, b.w));
}

fn track_add4(a: vec4<u32>, b: vec4<u32>) -> vec4<u32> {
    return vec4<u32>(float_add(a.x, b.x), float_add(a.y, b.y), float_add(a.z, b.z), float_add(a.w, b.w));
}

fn track_mul4(a: vec4<u32>, b: u32) -> vec4<u32> {
    return vec4<u32>(float_mul(a.x, b), float_mul(a.y, b), float_mul(a.z, b), float_mul(a.w, b));
}

// average + eta * value - eta * average, in that order.
fn track_approach4(average: vec4<u32>, value: vec4<u32>, eta: u32) -> vec4<u32> {
    return track_add4(average, track_sub4(track_mul4(value, eta), track_mul4(average, eta)));
}

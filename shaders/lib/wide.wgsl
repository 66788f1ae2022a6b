// wide: 64-bit integers in two words, x the low one.
// CPU twin: u64 and i64, two's complement. WGSL has no such type, and a shift by 32 or more is not defined.

fn wide_multiply(a: u32, b: u32) -> vec2<u32> {
    let low = (a & 0xffffu) * (b & 0xffffu);
    let cross = (a >> 16u) * (b & 0xffffu) + (low >> 16u); // at most 2^32 - 2^16
    let middle = (a & 0xffffu) * (b >> 16u) + (cross & 0xffffu);
    let high = (a >> 16u) * (b >> 16u) + (cross >> 16u) + (middle >> 16u);
    return vec2<u32>((middle << 16u) | (low & 0xffffu), high);
}

fn wide_add(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = a.x + b.x;
    return vec2<u32>(low, a.y + b.y + select(0u, 1u, low < a.x));
}

fn wide_negate(a: vec2<u32>) -> vec2<u32> {
    return wide_add(~a, vec2<u32>(1u, 0u));
}

// 0 <= shift <= 63.
fn wide_shift_left(a: vec2<u32>, shift: u32) -> vec2<u32> {
    let part = shift & 31u;
    let carried = (a.x >> 1u) >> (31u - part);
    let near = vec2<u32>(a.x << part, (a.y << part) | carried);
    return select(near, vec2<u32>(0u, near.x), shift >= 32u);
}

// 0 <= shift <= 63; zeros come in from above.
fn wide_shift_right(a: vec2<u32>, shift: u32) -> vec2<u32> {
    let part = shift & 31u;
    let carried = (a.y << 1u) << (31u - part);
    let near = vec2<u32>((a.x >> part) | carried, a.y >> part);
    return select(near, vec2<u32>(near.y, 0u), shift >= 32u);
}

// a / 2^shift without signs, rounded to nearest, ties to even; 1 <= shift <= 63, and a + 2^(shift-1) < 2^64.
fn wide_round_shift(a: vec2<u32>, shift: u32) -> vec2<u32> {
    let odd = vec2<u32>(wide_shift_right(a, shift).x & 1u, 0u);
    let half = wide_shift_left(vec2<u32>(1u, 0u), shift - 1u);
    let below_half = wide_add(half, vec2<u32>(0xffffffffu));
    return wide_shift_right(wide_add(a, wide_add(below_half, odd)), shift);
}

// Zeros above the leading one, of 64.
fn wide_lead(a: vec2<u32>) -> u32 {
    return select(countLeadingZeros(a.y), 32u + countLeadingZeros(a.x), a.y == 0u);
}

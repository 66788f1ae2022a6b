// signs: what a workgroup of 256 knows of its 32 blocks, four of each of 8 units, and what an element of them loses.
// CPU twin: codec::sign. Needs fragments fixed, scale and byte; and Params with `elements` and `base_log2`.

var<workgroup> signs_top: array<atomic<u32>, 32>; // largest exponents
var<workgroup> signs_sum: array<atomic<u32>, 32>; // of magnitudes in units, at most 2^30
var<workgroup> signs_largest: array<atomic<u32>, 32>; // losses, in units
var<workgroup> signs_scale: array<u32, 32>; // bytes
var<workgroup> signs_sent: array<i32, 32>; // scales in units
var<workgroup> signs_kept: array<u32, 32>; // residual scale bytes

// The exponent that the unit of block `k` follows from: two digits less than others have, so that sums fit.
fn signs_digits(k: u32) -> u32 {
    return atomicLoad(&signs_top[k]) + 2u;
}

// Which of four elements count: they are finite, and no padding.
fn signs_live4(bits: vec4<u32>, vector: u32) -> vec4<bool> {
    let inside = vec4<u32>(4u * vector) + vec4<u32>(0u, 1u, 2u, 3u) < vec4<u32>(params.elements);
    return fixed_is_finite(bits) & inside;
}

// Gradient and residual bytes of block `k`, whose residual scale is `byte`, in units. Its base is not 2^8 lower.
fn signs_h4(bits: vec4<u32>, live: vec4<bool>, word: u32, byte: u32, k: u32) -> vec4<i32> {
    let residual = scale_residual4(byte_unpack4(word), byte, params.base_log2 + 8, signs_digits(k));
    return select(vec4<i32>(0), scale_fixed4(bits, signs_digits(k)) + residual, live);
}

fn signs_lost4(h: vec4<i32>, live: vec4<bool>, k: u32) -> vec4<i32> {
    let code = select(vec4<i32>(1), vec4<i32>(-1), h < vec4<i32>(0));
    return select(vec4<i32>(0), h - code * signs_sent[k], live);
}

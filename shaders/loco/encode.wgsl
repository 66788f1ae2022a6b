// loco/encode: compensate, quantize to 4 bits, pack, average the 8-bit residual.
// CPU twin: codec::loco::encode. Fragments: count, fixed, nibble, byte.
// One invocation owns a unit of 8 elements: two gradient vectors, two residual words, one packet word.
//   params    Params  in      one per dispatch
//   gradient  any[n]  in      in shaders/input, by input_load4; zero up to a multiple of 8
//   residual  i8[n]   in/out  4 to a word, 8 to a vector, element i in bits 8(i%4)..
//   packet    i4[n]   out     8 to a word, element i in bits 4(i%8)..
//   stats     u32[2]  in/out  adds: non-finite elements, saturated codes

struct Params {
    units: u32, // elements / 8, rounded up
    columns: u32, // workgroups in one row of the two-dimensional grid
    point: i32, // 138 - scale_log2
    residual_scale_log2: u32, // 0..=6
    decay: u32, // weight of the old residual in 1/256, 0..=255
    keep: u32, // all ones, or zero on a reset step
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(2) var<storage, read_write> residual: array<vec2<u32>>;
@group(0) @binding(3) var<storage, read_write> packet: array<u32>;
@group(0) @binding(4) var<storage, read_write> stats: array<atomic<u32>, 2>;

struct Half {
    codes: u32, // four codes in the low 16 bits
    residual: u32,
    nonfinite: u32, // how many of the four
    saturated: u32,
}

fn encode4(bits: vec4<u32>, word: u32) -> Half {
    let finite = fixed_is_finite(bits);
    let old = byte_unpack4(word);
    let fraction = vec4<u32>(fixed_fraction_bits);

    let fixed = fixed_from_bits(bits, params.point);
    let h = fixed + (old << (fraction - vec4<u32>(params.residual_scale_log2)));
    let rounded = fixed_round_shift(h, fraction);
    let code = clamp(rounded, vec4<i32>(-8), vec4<i32>(7));
    let lost = h - (code << fraction);
    let sum = i32(params.decay) * (old << fraction)
        + i32(256u - params.decay) * (lost << vec4<u32>(params.residual_scale_log2));
    let next = clamp(fixed_round_shift(sum, fraction + vec4<u32>(8u)), vec4<i32>(-128), vec4<i32>(127));

    let zero = vec4<i32>(0);
    return Half(
        nibble_pack4(select(zero, code, finite)),
        byte_pack4(select(zero, next, finite)) & params.keep,
        4u - count_set4(finite),
        count_set4(finite & (code != rounded)),
    );
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let unit = (workgroup.y * params.columns + workgroup.x) * 256u + local;
    if unit >= params.units {
        return;
    }
    let old = residual[unit];
    let low = encode4(input_load4(2u * unit), old.x);
    let high = encode4(input_load4(2u * unit + 1u), old.y);
    packet[unit] = low.codes | (high.codes << 16u);
    residual[unit] = vec2<u32>(low.residual, high.residual);
    count_add(low.nonfinite + high.nonfinite, low.saturated + high.saturated);
}

// cast/encode_half: a gradient rounded to 16-bit floats, clamped to the largest, zero for what is not finite.
// CPU twin: codec::cast::encode_half. Fragments: count, fixed, narrow.
// One invocation owns a unit of 8 elements: one vector of the packet.
//   params    Params  in      one per dispatch
//   gradient  any[n]  in      in shaders/input, by input_load4; zero up to a multiple of 8
//   packet    u16[n]  out     2 to a word, 8 to a vector, element i in bits 16(i%2)..
//   stats     u32[2]  in/out  adds: non-finite elements, saturated codes

struct Params {
    units: u32, // elements / 8, rounded up
    columns: u32, // workgroups in one row of the two-dimensional grid
    exponent_bits: u32, // 5 for f16, 8 for bf16
    digits: u32, // of the mantissa: 10 or 7
    largest: u32, // largest finite code
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(3) var<storage, read_write> packet: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read_write> stats: array<atomic<u32>, 2>;

struct Four {
    words: vec2<u32>,
    nonfinite: u32, // how many of the four
    saturated: u32,
}

fn encode4(bits: vec4<u32>) -> Four {
    let finite = fixed_is_finite(bits);
    let exponent = (bits >> vec4<u32>(23u)) & vec4<u32>(0xffu);
    let mantissa = bits & vec4<u32>(0x7fffffu);
    let near = narrow_magnitude4(vec4<i32>(exponent), mantissa, params.exponent_bits, params.digits);
    let magnitude = select(near, vec4<u32>(0u), exponent == vec4<u32>(0u));
    let clamped = min(magnitude, vec4<u32>(params.largest));
    let sign = (bits >> vec4<u32>(16u)) & vec4<u32>(0x8000u);
    let code = select(vec4<u32>(0u), sign | clamped, finite);
    return Four(
        code.xz | (code.yw << vec2<u32>(16u)),
        4u - count_set4(finite),
        count_set4(finite & (clamped != magnitude)),
    );
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let unit = (workgroup.y * params.columns + workgroup.x) * 256u + local;
    if unit >= params.units {
        return;
    }
    let low = encode4(input_load4(2u * unit));
    let high = encode4(input_load4(2u * unit + 1u));
    packet[unit] = vec4<u32>(low.words, high.words);
    count_add(low.nonfinite + high.nonfinite, low.saturated + high.saturated);
}

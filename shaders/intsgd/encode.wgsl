// intsgd/encode: scale, round to a signed byte, clamp, pack.
// CPU twin: codec::intsgd::encode. Fragments: count, fixed, byte.
// One invocation owns a unit of 8 elements: two words of the packet.
//   params    Params  in      one per dispatch
//   gradient  any[n]  in      in shaders/input, by input_load4; zero up to a multiple of 8
//   packet    i8[n]   out     4 to a word, 8 to a vector, element i in bits 8(i%4)..
//   stats     u32[2]  in/out  adds: non-finite elements, saturated codes

struct Params {
    units: u32, // elements / 8, rounded up
    columns: u32, // workgroups in one row of the two-dimensional grid
    point: i32, // 150 - scale_log2
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(3) var<storage, read_write> packet: array<vec2<u32>>;
@group(0) @binding(4) var<storage, read_write> stats: array<atomic<u32>, 2>;

struct Four {
    word: u32,
    nonfinite: u32, // how many of the four
    saturated: u32,
}

fn encode4(bits: vec4<u32>) -> Four {
    let finite = fixed_is_finite(bits);
    // Fixed point without fraction digits is the rounded code, and stops at 2^18.
    let rounded = fixed_from_bits(bits, params.point);
    let code = clamp(rounded, vec4<i32>(-127), vec4<i32>(127));
    return Four(
        byte_pack4(select(vec4<i32>(0), code, finite)),
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
    let low = encode4(input_load4(2u * unit));
    let high = encode4(input_load4(2u * unit + 1u));
    packet[unit] = vec2<u32>(low.word, high.word);
    count_add(low.nonfinite + high.nonfinite, low.saturated + high.saturated);
}

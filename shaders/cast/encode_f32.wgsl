// cast/encode_f32: the bits of a gradient as they are, and how many elements are not finite.
// CPU twin: codec::cast::encode_f32. Fragments: count, fixed.
// One invocation owns a unit of 8 elements.
//   params    Params  in      one per dispatch
//   gradient  any[n]  in      in shaders/input, by input_load4; zero up to a multiple of 8
//   packet    f32[n]  out     as bits, 4 to a vector
//   stats     u32[2]  in/out  adds: non-finite elements, and nothing

struct Params {
    units: u32, // elements / 8, rounded up
    columns: u32, // workgroups in one row of the two-dimensional grid
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(3) var<storage, read_write> packet: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read_write> stats: array<atomic<u32>, 2>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let unit = (workgroup.y * params.columns + workgroup.x) * 256u + local;
    if unit >= params.units {
        return;
    }
    let low = input_load4(2u * unit);
    let high = input_load4(2u * unit + 1u);
    packet[2u * unit] = low;
    packet[2u * unit + 1u] = high;
    count_add(8u - count_set4(fixed_is_finite(low)) - count_set4(fixed_is_finite(high)), 0u);
}

// loco/average: weighted sum of every rank's codes, then one product with 1 / (sum of weights * 2^scale_log2).
// CPU twin: codec::loco::average. Fragments: nibble, product, mean/loco.
// One invocation owns one packet word of every rank, 8 elements: one unit. The arithmetic is in mean/loco, which the
// kernels share that go on with the mean.
//   params   Params      in      one per dispatch
//   packets  i4[ranks,n] in      in mean/loco: 8 to a word, a row of `units` words per rank
//   weights  u32[ranks]  in      in mean/loco: samples of each rank
//   mean     f32[n]      out     as bits, 4 to a vector

struct Params {
    units: u32, // words in one packet
    columns: u32, // workgroups in one row of the two-dimensional grid
    ranks: u32, // packets
    elements: u32, // of which the last unit may have less than 8
    scale: u32, // f32 bits of the factor
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(3) var<storage, read_write> mean: array<vec4<u32>>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let unit = (workgroup.y * params.columns + workgroup.x) * 256u + local;
    if unit >= params.units {
        return;
    }
    let eight = mean_load8(unit);
    mean[2u * unit] = eight.low;
    mean[2u * unit + 1u] = eight.high;
}

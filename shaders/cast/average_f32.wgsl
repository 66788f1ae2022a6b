// cast/average_f32: the weighted mean of floats, in integers.
// CPU twin: codec::cast::average_f32. Fragments: wide, mean.
// One invocation owns 4 elements of every rank, half a unit. It reads them twice: the largest exponent comes first.
//   params   Params       in   one per dispatch
//   packets  f32[ranks,n] in   as bits, 4 to a vector, a row of 2 * `units` vectors per rank
//   weights  u32[ranks]   in   samples of each rank
//   mean     f32[n]       out  as bits, 4 to a vector

struct Params {
    units: u32, // elements / 8, rounded up
    columns: u32, // workgroups in one row of the two-dimensional grid
    ranks: u32, // packets
    elements: u32, // of which the last unit may have less than 8
    total: u32, // sum of the weights
    reciprocal: u32, // codec::mean::reciprocal of it
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> packets: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> weights: array<u32>;
@group(0) @binding(3) var<storage, read_write> mean: array<vec4<u32>>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let four = (workgroup.y * params.columns + workgroup.x) * 256u + local;
    let row = 2u * params.units;
    if four >= row {
        return;
    }
    var top = vec4<u32>(0u);
    for (var rank = 0u; rank < params.ranks; rank += 1u) {
        if weights[rank] != 0u {
            top = max(top, mean_exponent4(packets[rank * row + four]));
        }
    }
    var sums = mean_Sums();
    for (var rank = 0u; rank < params.ranks; rank += 1u) {
        let weight = weights[rank];
        if weight != 0u {
            sums = mean_add4(sums, weight, packets[rank * row + four], top, params.total);
        }
    }
    mean[four] = mean_quotient4(sums, top, params.total, params.reciprocal);
}

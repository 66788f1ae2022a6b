// cast/average_half: the weighted mean of 16-bit floats, in integers.
// CPU twin: codec::cast::average_half. Fragments: wide, mean, widen.
// One invocation owns 4 elements of every rank, half a unit. It reads them twice: the largest exponent comes first.
//   params   Params       in   one per dispatch
//   packets  u16[ranks,n] in   2 to a word, 4 to a vector, a row of 2 * `units` vectors per rank
//   weights  u32[ranks]   in   samples of each rank
//   mean     f32[n]       out  as bits, 4 to a vector

struct Params {
    units: u32, // elements / 8, rounded up
    columns: u32, // workgroups in one row of the two-dimensional grid
    ranks: u32, // packets
    elements: u32, // of which the last unit may have less than 8
    total: u32, // sum of the weights
    reciprocal: u32, // codec::mean::reciprocal of it
    exponent_bits: u32, // 5 for f16, 8 for bf16
    digits: u32, // of the mantissa: 10 or 7
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> packets: array<vec2<u32>>;
@group(0) @binding(2) var<storage, read> weights: array<u32>;
@group(0) @binding(3) var<storage, read_write> mean: array<vec4<u32>>;

fn load4(at: u32) -> vec4<u32> {
    let pairs = packets[at].xxyy;
    let codes = (pairs >> vec4<u32>(0u, 16u, 0u, 16u)) & vec4<u32>(0xffffu);
    return widen_bits4(codes, params.exponent_bits, params.digits);
}

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
            top = max(top, mean_exponent4(load4(rank * row + four)));
        }
    }
    var sums = mean_Sums();
    for (var rank = 0u; rank < params.ranks; rank += 1u) {
        let weight = weights[rank];
        if weight != 0u {
            sums = mean_add4(sums, weight, load4(rank * row + four), top, params.total);
        }
    }
    mean[four] = mean_quotient4(sums, top, params.total, params.reciprocal);
}

// intsgd/average: weighted sum of every rank's bytes, then one product with 1 / (sum of weights * 2^scale_log2).
// CPU twin: codec::intsgd::average. Fragments: byte, product, sum.
// One invocation owns two packet words of every rank, 8 elements: one unit.
//   params   Params      in   one per dispatch
//   packets  i8[ranks,n] in   4 to a word, 8 to a vector, a row of `units` vectors per rank
//   weights  u32[ranks]  in   samples of each rank
//   mean     f32[n]      out  as bits, 4 to a vector

struct Params {
    units: u32, // elements / 8, rounded up
    columns: u32, // workgroups in one row of the two-dimensional grid
    ranks: u32, // packets
    elements: u32, // of which the last unit may have less than 8
    scale: u32, // f32 bits of the factor
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> packets: array<vec2<u32>>;
@group(0) @binding(2) var<storage, read> weights: array<u32>;
@group(0) @binding(3) var<storage, read_write> mean: array<vec4<u32>>;

fn scaled4(sum: vec4<i32>) -> vec4<u32> {
    return vec4<u32>(
        sum_product_bits(sum.x, params.scale),
        sum_product_bits(sum.y, params.scale),
        sum_product_bits(sum.z, params.scale),
        sum_product_bits(sum.w, params.scale),
    );
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let unit = (workgroup.y * params.columns + workgroup.x) * 256u + local;
    if unit >= params.units {
        return;
    }
    // At most 128 * 2^21 = 2^28 in magnitude.
    var low = vec4<i32>(0);
    var high = vec4<i32>(0);
    for (var rank = 0u; rank < params.ranks; rank += 1u) {
        let words = packets[rank * params.units + unit];
        let weight = i32(weights[rank]);
        low += weight * byte_unpack4(words.x);
        high += weight * byte_unpack4(words.y);
    }
    mean[2u * unit] = scaled4(low);
    mean[2u * unit + 1u] = scaled4(high);
}

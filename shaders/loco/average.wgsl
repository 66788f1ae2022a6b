// loco/average: weighted sum of every rank's codes, then one product with 1 / (sum of weights * 2^scale_log2).
// CPU twin: codec::loco::average. Fragments: nibble, product.
// One invocation owns one packet word of every rank, 8 elements: one unit.
//   params   Params      in      one per dispatch
//   packets  i4[ranks,n] in      8 to a word, a row of `units` words per rank
//   weights  u32[ranks]  in      samples of each rank
//   mean     f32[n]      out     as bits, 4 to a vector

struct Params {
    units: u32, // words in one packet
    columns: u32, // workgroups in one row of the two-dimensional grid
    ranks: u32, // packets
    elements: u32, // of which the last unit may have less than 8
    scale: u32, // f32 bits of the factor
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> packets: array<u32>;
@group(0) @binding(2) var<storage, read> weights: array<u32>;
@group(0) @binding(3) var<storage, read_write> mean: array<vec4<u32>>;

fn scaled4(sum: vec4<i32>) -> vec4<u32> {
    return vec4<u32>(
        product_bits(sum.x, params.scale),
        product_bits(sum.y, params.scale),
        product_bits(sum.z, params.scale),
        product_bits(sum.w, params.scale),
    );
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let unit = (workgroup.y * params.columns + workgroup.x) * 256u + local;
    if unit >= params.units {
        return;
    }
    var low = vec4<i32>(0);
    var high = vec4<i32>(0);
    for (var rank = 0u; rank < params.ranks; rank += 1u) {
        let word = packets[rank * params.units + unit];
        let weight = i32(weights[rank]);
        low += weight * nibble_unpack4(word);
        high += weight * nibble_unpack4(word >> 16u);
    }
    mean[2u * unit] = scaled4(low);
    mean[2u * unit + 1u] = scaled4(high);
}

// loco/average: weighted sum of every rank's codes, then one product with 1 / (sum of weights * 2^scale_log2).
// CPU twin: codec::loco::average. Fragments: nibble, product.
// One invocation owns one packet word of every rank, 8 elements. Ranks that do not fit one binding come in several
// dispatches: the i32 sums wait in `mean`, and the last dispatch turns them into floats.
//   params   Params      in      one per dispatch
//   packets  i4[ranks,n] in      8 to a word, a row of `groups` words per rank
//   weights  u32[ranks]  in      samples of each rank
//   mean     f32[n]      in/out  as bits, 4 to a vector; between dispatches the i32 sums

struct Params {
    groups: u32, // words in one packet
    row: u32, // invocations in one row of the two-dimensional grid
    ranks: u32, // packets in this dispatch
    first: u32, // 1: start from zero, 0: from the sums in `mean`
    scale: u32, // f32 bits of the factor on the last dispatch, 0 before
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> packets: array<u32>;
@group(0) @binding(2) var<storage, read> weights: array<u32>;
@group(0) @binding(3) var<storage, read_write> mean: array<vec4<u32>>;

fn finish(sum: vec4<i32>) -> vec4<u32> {
    if params.scale == 0u {
        return vec4<u32>(sum);
    }
    return vec4<u32>(
        product_bits(sum.x, params.scale),
        product_bits(sum.y, params.scale),
        product_bits(sum.z, params.scale),
        product_bits(sum.w, params.scale),
    );
}

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let group = id.y * params.row + id.x;
    if group >= params.groups {
        return;
    }
    var low = vec4<i32>(0);
    var high = vec4<i32>(0);
    if params.first == 0u {
        low = vec4<i32>(mean[2u * group]);
        high = vec4<i32>(mean[2u * group + 1u]);
    }
    for (var rank = 0u; rank < params.ranks; rank += 1u) {
        let word = packets[rank * params.groups + group];
        let weight = i32(weights[rank]);
        low += weight * nibble_unpack4(word);
        high += weight * nibble_unpack4(word >> 16u);
    }
    mean[2u * group] = finish(low);
    mean[2u * group + 1u] = finish(high);
}

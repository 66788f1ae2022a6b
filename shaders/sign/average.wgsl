// sign/average: weighted sum of every rank's signs at the largest scale of the block, then one product.
// CPU twin: codec::sign::average. Fragments: fixed, scale, product, terms.
// 32 invocations own a unit of 4 blocks, so a workgroup 8 units; each strides over groups of 8 elements.
//   params   Params      in   one per dispatch
//   packets  u32[]       in   a row of `units` units per rank; a unit: 4 scale bytes, then a bit per element
//   weights  u32[ranks]  in   samples of each rank
//   mean     f32[n]      out  as bits, 4 to a vector

struct Params {
    units: u32, // of 4 * block elements
    columns: u32, // workgroups in one row of the two-dimensional grid
    ranks: u32,
    elements: u32, // of which the last unit may have less than the others
    block: u32, // elements, a multiple of 8
    headroom: u32, // places that terms are moved up
    scale: u32, // f32 bits of the factor, for a block whose largest scale has exponent 0
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> packets: array<u32>;
@group(0) @binding(2) var<storage, read> weights: array<u32>;
@group(0) @binding(3) var<storage, read_write> mean: array<vec4<u32>>;

// `term` for each 0 of the low four bits, its negative for each 1.
fn signed4(term: i32, bits: u32) -> vec4<i32> {
    let mask = vec4<i32>((vec4<u32>(bits) >> vec4<u32>(0u, 1u, 2u, 3u)) << vec4<u32>(31u)) >> vec4<u32>(31u);
    return (vec4<i32>(term) ^ mask) - mask;
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let unit = (workgroup.y * params.columns + workgroup.x) * 8u + (local >> 5u);
    if unit >= params.units {
        return;
    }
    let words = 1u + (params.block >> 3u);
    let row = params.units * words;
    for (var group = local & 31u; group < (params.block >> 1u); group += 32u) {
        let k = scale_block(8u * group, params.block);
        let reference = terms_reference(unit * words, row, k);
        var low = vec4<i32>(0);
        var high = vec4<i32>(0);
        for (var rank = 0u; rank < params.ranks; rank += 1u) {
            let at = rank * row + unit * words;
            let term = terms_of(at, k, rank, reference);
            let magnitude = scale_term4(term, vec4<i32>(1)).x;
            let bits = packets[at + 1u + (group >> 2u)] >> (8u * (group & 3u));
            low += signed4(magnitude, bits);
            high += signed4(magnitude, bits >> 4u);
        }
        let at = unit * params.block + 2u * group;
        mean[at] = terms_mean4(low, reference);
        mean[at + 1u] = terms_mean4(high, reference);
    }
}

// block/average: weighted sum of every rank's codes at the largest scale of the block, then one product.
// CPU twin: codec::block::average. Fragments: fixed, scale, field, product, terms.
// 32 invocations own a unit of 4 blocks, so a workgroup 8 units; each strides over groups of 8 elements.
//   params   Params      in   one per dispatch
//   packets  u32[]       in   a row of `units` units per rank; a unit: 4 scale bytes, then the codes
//   weights  u32[ranks]  in   samples of each rank
//   mean     f32[n]      out  as bits, 4 to a vector

struct Params {
    units: u32, // of 4 * block elements
    columns: u32, // workgroups in one row of the two-dimensional grid
    ranks: u32,
    elements: u32, // of which the last unit may have less than the others
    bits: u32, // 2, 4 or 8
    block: u32, // elements, a multiple of 8
    headroom: u32, // places that products are moved up
    scale: u32, // f32 bits of the factor, for a block whose largest scale has exponent 0
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> packets: array<u32>;
@group(0) @binding(2) var<storage, read> weights: array<u32>;
@group(0) @binding(3) var<storage, read_write> mean: array<vec4<u32>>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let unit = (workgroup.y * params.columns + workgroup.x) * 8u + (local >> 5u);
    if unit >= params.units {
        return;
    }
    let words = 1u + ((params.block * params.bits) >> 3u);
    let row = params.units * words;
    for (var group = local & 31u; group < (params.block >> 1u); group += 32u) {
        let k = scale_block(8u * group, params.block);
        let reference = terms_reference(unit * words, row, k);
        var low = vec4<i32>(0);
        var high = vec4<i32>(0);
        for (var rank = 0u; rank < params.ranks; rank += 1u) {
            let at = rank * row + unit * words;
            let term = terms_of(at, k, rank, reference);
            let first = at + 1u + ((group * params.bits) >> 2u);
            let word = packets[first] >> ((8u * group * params.bits) & 31u); // 2 bits: half a word
            let next = packets[first + (params.bits >> 3u)];
            let other = select(word >> ((4u * params.bits) & 31u), next, params.bits == 8u);
            low += scale_term4(term, field_unpack4(word, params.bits));
            high += scale_term4(term, field_unpack4(other, params.bits));
        }
        let at = unit * params.block + 2u * group;
        mean[at] = terms_mean4(low, reference);
        mean[at + 1u] = terms_mean4(high, reference);
    }
}

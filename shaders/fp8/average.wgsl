// fp8/average: the weighted mean of 8-bit floats with an exponent per block, in integers.
// CPU twin: codec::fp8::average. Fragments: wide, mean, widen, bits.
// A workgroup owns 8 units of every rank; 32 invocations share a unit and take its words of 4 elements in turn. Packets
// have passed codec::fp8::check.
//   params   Params       in   one per dispatch
//   packets  u32[ranks,]  in   1 + block words per unit: four exponents, then codes, element i in bits 8(i%4)..
//   weights  u32[ranks]   in   samples of each rank
//   mean     f32[n]       out  as bits, 4 to a vector

struct Params {
    units: u32,
    columns: u32, // workgroups in one row of the two-dimensional grid
    ranks: u32, // packets
    elements: u32, // of which the last unit may have less than 4 blocks
    total: u32, // sum of the weights
    reciprocal: u32, // codec::mean::reciprocal of it
    block: u32, // elements of a block, a multiple of 8
    exponent_bits: u32, // 4 or 5
    digits: u32, // of the mantissa: 3 or 2
    last: i32, // 127 + the exponent of the largest code
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> packets: array<u32>;
@group(0) @binding(2) var<storage, read> weights: array<u32>;
@group(0) @binding(3) var<storage, read_write> mean: array<vec4<u32>>;

// The f32 bits of the four elements in word `word` of the codes of a unit; those below the normal numbers are zero.
fn load4(rank: u32, unit: u32, word: u32) -> vec4<u32> {
    let base = (rank * params.units + unit) * (params.block + 1u);
    let per_block = params.block >> 2u;
    let block = select(0u, 1u, word >= per_block) + select(0u, 1u, word >= 2u * per_block)
        + select(0u, 1u, word >= 3u * per_block);
    let exponent = (packets[base] >> (8u * block)) & 0xffu;
    let codes = bits_unpack4(packets[base + 1u + word], 8u);
    let wide = widen_bits4(codes, params.exponent_bits, params.digits);
    let field = vec4<i32>(mean_exponent4(wide)) + vec4<i32>(i32(exponent) - params.last);
    let value = (wide & vec4<u32>(0x807fffffu)) | (vec4<u32>(max(field, vec4<i32>(1))) << vec4<u32>(23u));
    let zero = (field < vec4<i32>(1)) | ((wide << vec4<u32>(1u)) == vec4<u32>(0u)) | vec4<bool>(exponent == 0u);
    return select(value, vec4<u32>(0u), zero);
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let unit = (workgroup.y * params.columns + workgroup.x) * 8u + (local >> 5u);
    if unit >= params.units {
        return;
    }
    for (var word = local & 31u; word < params.block; word += 32u) {
        var top = vec4<u32>(0u);
        for (var rank = 0u; rank < params.ranks; rank += 1u) {
            if weights[rank] != 0u {
                top = max(top, mean_exponent4(load4(rank, unit, word)));
            }
        }
        var sums = mean_Sums();
        for (var rank = 0u; rank < params.ranks; rank += 1u) {
            let weight = weights[rank];
            if weight != 0u {
                sums = mean_add4(sums, weight, load4(rank, unit, word), top, params.total);
            }
        }
        mean[unit * params.block + word] = mean_quotient4(sums, top, params.total, params.reciprocal);
    }
}

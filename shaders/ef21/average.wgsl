// ef21/average: follows every rank's packet, then the weighted mean of what is tracked.
// CPU twin: codec::ef21::average. Fragments: fixed, scale, field, float, track.
// 32 invocations own a unit of 4 blocks, so a workgroup 8 units; each strides over groups of 8 elements.
//   params   Params      in      one per dispatch
//   packets  u32[]       in      a row of `units` units per rank; a unit: 4 scale bytes, then the codes
//   weights  u32[ranks]  in      samples of each rank
//   mean     f32[n]      out     as bits, 4 to a vector
//   state    f32[]       in/out  as bits, 4 to a vector; a row of `units` units per rank, whatever its weight

struct Params {
    units: u32, // of 4 * block elements
    columns: u32, // workgroups in one row of the two-dimensional grid
    ranks: u32,
    elements: u32, // of which the last unit may have less than the others
    block: u32, // elements, a multiple of 8
    base_log2: i32,
    total: u32, // sum of the weights, below 2^21
    inverse: u32, // f32 bits of 1 over it
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> packets: array<u32>;
@group(0) @binding(2) var<storage, read> weights: array<u32>;
@group(0) @binding(3) var<storage, read_write> mean: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read_write> state: array<vec4<u32>>;

// f32 bits of a rank's share of the mean; of a lone rank 1.
fn factor(weight: u32) -> u32 {
    let lead = 31u - countLeadingZeros(max(weight, 1u));
    let exact = ((127u + lead) << 23u) | ((weight << (23u - lead)) & 0x7fffffu);
    let share = float_mul(exact, params.inverse);
    return select(select(share, 0x3f800000u, weight == params.total), 0u, weight == 0u);
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let unit = (workgroup.y * params.columns + workgroup.x) * 8u + (local >> 5u);
    if unit >= params.units {
        return;
    }
    let words = 1u + (params.block >> 1u);
    for (var group = local & 31u; group < (params.block >> 1u); group += 32u) {
        let k = scale_block(8u * group, params.block);
        var low = vec4<u32>(0u);
        var high = vec4<u32>(0u);
        for (var rank = 0u; rank < params.ranks; rank += 1u) {
            let first = (rank * params.units + unit) * words;
            let byte = scale_byte_of(packets[first], k);
            let codes = packets[first + 1u + group];
            let at = (rank * params.units + unit) * params.block + 2u * group;
            state[at] = track_follow4(state[at], field_unpack4(codes, 4u), byte, params.base_log2);
            state[at + 1u] =
                track_follow4(state[at + 1u], field_unpack4(codes >> 16u, 4u), byte, params.base_log2);
            let share = factor(weights[rank]);
            low = track_add4(low, track_mul4(state[at], share));
            high = track_add4(high, track_mul4(state[at + 1u], share));
        }
        mean[unit * params.block + 2u * group] = low;
        mean[unit * params.block + 2u * group + 1u] = high;
    }
}

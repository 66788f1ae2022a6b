// sign/encode: compensate, one scale per block for the mean magnitude, signs, residual bytes with a scale per block.
// CPU twin: codec::sign::encode. Fragments: count, fixed, scale, ratio, field, byte, signs.
// 32 invocations own a unit of 4 blocks, so a workgroup 8 units; each strides over 4 elements, and at last over 32.
//   params    Params  in      one per dispatch
//   gradient  any[n]  in      in shaders/input, by input_load4; zero up to whole units
//   state     u32[]   in/out  a unit: 4 residual scale bytes, then 4 residual bytes to a word
//   packet    u32[]   out     a unit: 4 scale bytes, then a bit per element, 1 for negative
//   stats     u32[2]  in/out  adds: non-finite elements, elements of blocks above the largest scale

struct Params {
    units: u32, // of 4 * block elements
    columns: u32, // workgroups in one row of the two-dimensional grid
    elements: u32, // of which the last unit may have less than the others
    block: u32, // elements, a multiple of 8
    base_log2: i32,
    keep: u32, // 1, or 0 on a reset step
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(2) var<storage, read_write> state: array<u32>;
@group(0) @binding(3) var<storage, read_write> packet: array<u32>;
@group(0) @binding(4) var<storage, read_write> stats: array<atomic<u32>, 2>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let unit = (workgroup.y * params.columns + workgroup.x) * 8u + (local >> 5u);
    let fours = select(0u, params.block, unit < params.units); // vectors of 4 in a unit
    let lane = local & 31u;
    let slot = (local >> 5u) * 4u; // of the unit's first block
    let vectors = unit * params.block;
    let words = unit * (1u + params.block) + 1u; // of residuals
    let old = state[select(0u, words - 1u, fours != 0u)];

    var nonfinite = 0u;
    for (var index = lane; index < fours; index += 32u) {
        let bits = input_load4(vectors + index);
        let k = slot + scale_block(4u * index, params.block);
        nonfinite += 4u - count_set4(fixed_is_finite(bits));
        let residual = scale_residual_exponent(scale_byte_of(old, k), params.base_log2 + 8);
        atomicMax(&signs_top[k], max(scale_max4(scale_exponent4(bits)), residual));
    }
    workgroupBarrier();
    for (var index = lane; index < fours; index += 32u) {
        let bits = input_load4(vectors + index);
        let k = slot + scale_block(4u * index, params.block);
        let h = vec4<u32>(abs(signs_h4(bits, signs_live4(bits, vectors + index), state[words + index], scale_byte_of(old, k), k)));
        atomicAdd(&signs_sum[k], h.x + h.y + h.z + h.w);
    }
    workgroupBarrier();
    var saturated = 0u;
    if lane < 4u {
        let k = slot + lane;
        let first = 4u * vectors + lane * params.block;
        let count = min(params.elements - min(first, params.elements), params.block);
        let offset = scale_offset(signs_digits(k), params.base_log2);
        let byte = ratio_nearest(atomicLoad(&signs_sum[k]), count) + offset;
        signs_scale[k] = select(u32(clamp(byte, 0, 255)), 0u, atomicLoad(&signs_sum[k]) == 0u);
        signs_sent[k] = select(i32(scale_units(scale_index(signs_scale[k], offset))), 0, signs_scale[k] == 0u);
        saturated = select(0u, count, signs_scale[k] == 255u && byte > 255);
    }
    workgroupBarrier();
    for (var index = lane; index < fours; index += 32u) {
        let bits = input_load4(vectors + index);
        let live = signs_live4(bits, vectors + index);
        let k = slot + scale_block(4u * index, params.block);
        let lost = signs_lost4(signs_h4(bits, live, state[words + index], scale_byte_of(old, k), k), live, k);
        atomicMax(&signs_largest[k], scale_max4(vec4<u32>(abs(lost))));
    }
    storageBarrier();
    workgroupBarrier();
    if lane < 4u {
        let k = slot + lane;
        let most = atomicLoad(&signs_largest[k]);
        let offset = scale_offset(signs_digits(k), params.base_log2) - 32;
        let byte = u32(clamp(ratio_least(most << 8u) + offset, 0, 255));
        signs_kept[k] = select(byte, 0u, most == 0u) * params.keep;
    }
    workgroupBarrier();
    for (var first = 8u * lane; first < fours; first += 256u) {
        var negative = 0u;
        for (var i = 0u; i < 8u; i += 1u) {
            let index = first + i;
            let bits = input_load4(vectors + index);
            let live = signs_live4(bits, vectors + index);
            let k = slot + scale_block(4u * index, params.block);
            let h = signs_h4(bits, live, state[words + index], scale_byte_of(old, k), k);
            let lost = signs_lost4(h, live, k) << vec4<u32>(8u);
            let offset = scale_offset(signs_digits(k), params.base_log2) - 32;
            let steps = clamp(scale_quotient4(lost, signs_kept[k], offset), vec4<i32>(-127), vec4<i32>(127));
            state[words + index] = byte_pack4(steps);
            let signs = select(vec4<u32>(0u), vec4<u32>(1u, 2u, 4u, 8u), h < vec4<i32>(0));
            negative |= (signs.x | signs.y | signs.z | signs.w) << (4u * i);
        }
        packet[unit * (1u + (params.block >> 3u)) + 1u + (first >> 3u)] = negative;
    }
    if lane == 0u && fours != 0u {
        state[words - 1u] = field_join4(vec4<u32>(signs_kept[slot], signs_kept[slot + 1u], signs_kept[slot + 2u], signs_kept[slot + 3u]));
        let bytes = vec4<u32>(signs_scale[slot], signs_scale[slot + 1u], signs_scale[slot + 2u], signs_scale[slot + 3u]);
        packet[unit * (1u + (params.block >> 3u))] = field_join4(bytes);
    }
    count_add(nonfinite, saturated);
}

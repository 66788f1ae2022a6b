// block/encode: one scale per block, quantize to 4 or 8 bits, pack.
// CPU twin: codec::block::encode. Fragments: count, fixed, scale, field, blocks.
// 16 invocations own a unit of 4 blocks, so a workgroup 16 units; each strides over 4 elements, and over 16 for whole words.
//   params    Params  in      one per dispatch
//   gradient  any[n]  in      in shaders/input, by input_load4; zero up to whole units
//   packet    u32[]   out     a unit: 4 scale bytes, then the codes, element i in bits `bits * i`..
//   stats     u32[2]  in/out  adds: non-finite elements, saturated codes

struct Params {
    units: u32, // of 4 * block elements
    columns: u32, // workgroups in one row of the two-dimensional grid
    bits: u32, // 2, 4 or 8
    block: u32, // elements, a multiple of 8
    base_log2: i32,
    step: u32, // of the divisor, see scale_choose
    exponent: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(3) var<storage, read_write> packet: array<u32>;
@group(0) @binding(4) var<storage, read_write> stats: array<atomic<u32>, 2>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let unit = (workgroup.y * params.columns + workgroup.x) * 16u + (local >> 4u);
    let fours = select(0u, params.block, unit < params.units); // vectors of 4 in a unit
    let lane = local & 15u;
    let slot = (local >> 4u) * 4u; // of the unit's first block
    let gradient_at = unit * params.block; // in vectors of 4

    var nonfinite = 0u;
    for (var index = lane; index < fours; index += 16u) {
        let bits = input_load4(gradient_at + index);
        nonfinite += 4u - count_set4(fixed_is_finite(bits));
        atomicMax(&blocks_top[blocks_of(slot, index)], scale_max4(scale_exponent4(bits)));
    }
    workgroupBarrier();
    for (var index = lane; index < fours; index += 16u) {
        let block = blocks_of(slot, index);
        let h = scale_fixed4(input_load4(gradient_at + index), atomicLoad(&blocks_top[block]));
        atomicMax(&blocks_largest[block], scale_max4(vec4<u32>(abs(h))));
    }
    workgroupBarrier();
    var saturated = 0u;
    for (var index = 4u * lane; index < fours; index += 64u) {
        var packed = vec4<u32>(0u);
        for (var i = 0u; i < 4u; i += 1u) {
            let block = blocks_of(slot, index + i);
            let h = scale_fixed4(input_load4(gradient_at + index + i), atomicLoad(&blocks_top[block]));
            let rounded = scale_quotient4(h, blocks_byte(block), blocks_offset(block));
            let code = blocks_clamp(rounded);
            packed[i] = field_pack4(code, params.bits);
            saturated += count_set4(code != rounded);
        }
        blocks_write(unit, index, packed);
    }
    if lane == 0u && fours != 0u {
        blocks_write_bytes(unit, slot);
    }
    count_add(nonfinite, saturated);
}

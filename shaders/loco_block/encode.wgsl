// loco_block/encode: compensate, one scale per block, quantize to 2, 4 or 8 bits, pack, average the 8-bit residual.
// CPU twin: codec::loco_block::encode. Fragments: count, fixed, byte, scale, field, blocks.
// 16 invocations own a unit of 4 blocks, so a workgroup 16 units; each strides over 4 elements, and over 16 for whole words.
//   params    Params  in      one per dispatch
//   gradient  any[n]  in      in shaders/input, by input_load4; zero up to whole units
//   state     u32[]   in/out  a unit: 4 scale bytes, then the residual, 4 signed bytes to a word
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
    decay: u32, // weight of the old residual in 1/256, 0..=255
    keep: u32, // all ones, or zero on a reset step
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(2) var<storage, read_write> state: array<u32>;
@group(0) @binding(3) var<storage, read_write> packet: array<u32>;
@group(0) @binding(4) var<storage, read_write> stats: array<atomic<u32>, 2>;

// Of each block of the workgroup: the largest magnitude of its new residual, in units over 256.
var<workgroup> largest_kept: array<atomic<u32>, 64>;

// What a unit's residual was: its first word of state, and its first block and vector of 4.
struct Unit {
    at: u32,
    old_bytes: u32,
    slot: u32,
    gradient: u32,
}

struct Four {
    code: vec4<i32>,
    kept: vec4<i32>, // the new residual, in units over 256
    saturated: u32,
}

// Gradient plus residual, and the residual, of the vector `index` of a unit.
fn compensate(unit: Unit, index: u32) -> array<vec4<i32>, 2> {
    let block = blocks_of(unit.slot, index);
    let bits = input_load4(unit.gradient + index);
    let top = atomicLoad(&blocks_top[block]);
    let residual = byte_unpack4(state[unit.at + 1u + index]);
    let old = scale_residual4(residual, scale_byte_of(unit.old_bytes, block), params.base_log2, top);
    let lives = select(vec4<i32>(0), old, fixed_is_finite(bits));
    return array<vec4<i32>, 2>(scale_fixed4(bits, top) + lives, lives);
}

fn quantize(unit: Unit, index: u32) -> Four {
    let block = blocks_of(unit.slot, index);
    let h = compensate(unit, index);
    let index_of_scale = scale_index(blocks_byte(block), blocks_offset(block));
    let rounded = scale_quotient4(h[0], blocks_byte(block), blocks_offset(block));
    let code = blocks_clamp(rounded);
    let lost = h[0] - code * vec4<i32>(i32(scale_units(index_of_scale)));
    let kept = i32(params.decay) * h[1] + i32(256u - params.decay) * lost; // below 2^30
    return Four(code, kept, count_set4(code != rounded));
}

fn kept_byte(block: u32) -> u32 {
    let absmax = atomicLoad(&largest_kept[block]);
    return scale_byte(absmax, scale_byte_step, scale_byte_exponent, 0u, blocks_offset(block)) & params.keep;
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let number = (workgroup.y * params.columns + workgroup.x) * 16u + (local >> 4u);
    let fours = select(0u, params.block, number < params.units); // vectors of 4 in a unit
    let lane = local & 15u;
    let slot = (local >> 4u) * 4u;
    let at = min(number, params.units - 1u) * (1u + params.block);
    let unit = Unit(at, state[at], slot, number * params.block);
    var nonfinite = 0u;
    for (var index = lane; index < fours; index += 16u) {
        let block = blocks_of(slot, index);
        let bits = input_load4(unit.gradient + index);
        nonfinite += 4u - count_set4(fixed_is_finite(bits));
        let old = scale_residual_exponent(scale_byte_of(unit.old_bytes, block), params.base_log2);
        atomicMax(&blocks_top[block], max(scale_max4(scale_exponent4(bits)), old));
    }
    workgroupBarrier();
    for (var index = lane; index < fours; index += 16u) {
        atomicMax(&blocks_largest[blocks_of(slot, index)], scale_max4(vec4<u32>(abs(compensate(unit, index)[0]))));
    }
    workgroupBarrier();
    var saturated = 0u;
    for (var index = 4u * lane; index < fours; index += 64u) {
        var packed = vec4<u32>(0u);
        for (var i = 0u; i < 4u; i += 1u) {
            let four = quantize(unit, index + i);
            packed[i] = field_pack4(four.code, params.bits);
            saturated += four.saturated;
            atomicMax(&largest_kept[blocks_of(slot, index + i)], scale_max4(vec4<u32>(abs(four.kept))));
        }
        blocks_write(number, index, packed);
    }
    storageBarrier(); // other invocations have read what is written now
    workgroupBarrier();
    for (var index = lane; index < fours; index += 16u) {
        let block = blocks_of(slot, index);
        let rounded = scale_quotient4(quantize(unit, index).kept, kept_byte(block), blocks_offset(block));
        state[at + 1u + index] = byte_pack4(clamp(rounded, vec4<i32>(-128), vec4<i32>(127)));
    }
    if lane == 0u && fours != 0u {
        blocks_write_bytes(number, slot);
        let low = vec2<u32>(kept_byte(slot), kept_byte(slot + 1u));
        state[at] = field_join4(vec4<u32>(low, kept_byte(slot + 2u), kept_byte(slot + 3u)));
    }
    count_add(nonfinite, saturated);
}

// ef21/encode: difference to what is tracked, one scale per block, quantize to 4 bits, pack, track what was sent.
// CPU twin: codec::ef21::encode. Fragments: count, fixed, scale, field, blocks, float, track.
// 16 invocations own a unit of 4 blocks, so a workgroup 16 units; each strides over 16 elements, the same in every pass, so
// that nobody else touches their state.
//   params    Params  in      one per dispatch
//   gradient  any[n]  in      in shaders/input, by input_load4; zero up to whole units
//   state     f32[]   in/out  as bits, 4 to a vector; a unit: tracked, then with momentum v and u
//   packet    u32[]   out     a unit: 4 scale bytes, then the codes, element i in bits 4 * i..
//   stats     u32[2]  in/out  adds: non-finite elements, saturated codes

struct Params {
    units: u32, // of 4 * block elements
    columns: u32, // workgroups in one row of the two-dimensional grid
    bits: u32, // 4
    block: u32, // elements, a multiple of 8
    base_log2: i32,
    step: u32, // of the divisor, see scale_nearest
    exponent: u32,
    eta: u32, // f32 bits of the weight of a new gradient; 0: no momentum
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(2) var<storage, read_write> state: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read_write> packet: array<u32>;
@group(0) @binding(4) var<storage, read_write> stats: array<atomic<u32>, 2>;

// What is tracked of a unit begins here in `state`.
fn tracked_at(unit: u32) -> u32 {
    return unit * params.block * select(3u, 1u, params.eta == 0u);
}

// Moves both averages of vector `index`.
fn average4(unit: u32, index: u32) {
    let bits = input_load4(unit * params.block + index);
    let finite = fixed_is_finite(bits);
    let at = tracked_at(unit) + params.block + index;
    let v = track_approach4(state[at], bits, params.eta);
    let u = track_approach4(state[at + params.block], v, params.eta);
    state[at] = select(state[at], v, finite);
    state[at + params.block] = select(state[at + params.block], u, finite);
}

// The difference of vector `index`, once its averages have moved.
fn difference4(unit: u32, index: u32) -> vec4<u32> {
    let bits = input_load4(unit * params.block + index);
    let at = tracked_at(unit) + index;
    var value = bits;
    if params.eta != 0u {
        value = state[at + 2u * params.block];
    }
    return select(vec4<u32>(0u), track_sub4(value, state[at]), fixed_is_finite(bits));
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let unit = (workgroup.y * params.columns + workgroup.x) * 16u + (local >> 4u);
    let fours = select(0u, params.block, unit < params.units); // vectors of 4 in a unit
    let slot = (local >> 4u) * 4u; // of the unit's first block
    let mine = 4u * (local & 15u);

    var nonfinite = 0u;
    for (var index = mine; index < fours; index += 64u) {
        for (var i = index; i < index + 4u; i += 1u) {
            nonfinite += 4u - count_set4(fixed_is_finite(input_load4(unit * params.block + i)));
            if params.eta != 0u {
                average4(unit, i);
            }
            atomicMax(&blocks_top[blocks_of(slot, i)], scale_max4(scale_exponent4(difference4(unit, i))));
        }
    }
    workgroupBarrier();
    for (var index = mine; index < fours; index += 64u) {
        for (var i = index; i < index + 4u; i += 1u) {
            let block = blocks_of(slot, i);
            let h = scale_fixed4(difference4(unit, i), atomicLoad(&blocks_top[block]));
            atomicMax(&blocks_largest[block], scale_max4(vec4<u32>(abs(h))));
        }
    }
    workgroupBarrier();
    var saturated = 0u;
    for (var index = mine; index < fours; index += 64u) {
        var packed = vec4<u32>(0u);
        for (var i = 0u; i < 4u; i += 1u) {
            let block = blocks_of(slot, index + i);
            let byte = blocks_byte(block);
            let h = scale_fixed4(difference4(unit, index + i), atomicLoad(&blocks_top[block]));
            let rounded = scale_quotient4(h, byte, blocks_offset(block));
            let code = blocks_clamp(rounded);
            packed[i] = field_pack4(code, params.bits);
            saturated += count_set4(code != rounded);
            let at = tracked_at(unit) + index + i;
            state[at] = track_follow4(state[at], code, byte, params.base_log2);
        }
        blocks_write(unit, index, packed);
    }
    if mine == 0u && fours != 0u {
        blocks_write_bytes(unit, slot);
    }
    count_add(nonfinite, saturated);
}

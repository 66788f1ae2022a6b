// blocks: what a workgroup of 256 knows of its 64 blocks, four of each of 16 units, and how it writes their packets.
// CPU twin: codec::block. Needs fragments fixed, scale and field; binding `packet`; and Params with `bits`, `block`
// (elements), `base_log2`, and `step` and `exponent` of the divisor.

var<workgroup> blocks_top: array<atomic<u32>, 64>; // largest exponents
var<workgroup> blocks_largest: array<atomic<u32>, 64>; // largest magnitudes, in units

// The block of the vector of 4 elements `index` in a unit whose first block is `slot`.
fn blocks_of(slot: u32, index: u32) -> u32 {
    return slot + scale_block(4u * index, params.block);
}

fn blocks_offset(block: u32) -> i32 {
    return scale_offset(atomicLoad(&blocks_top[block]), params.base_log2);
}

// The scale byte, once the largest magnitude is known. Eight bits take the next scale above, fewer the nearest.
fn blocks_byte(block: u32) -> u32 {
    let half = select(1u, 0u, params.bits == 8u);
    return scale_byte(atomicLoad(&blocks_largest[block]), params.step, params.exponent, half, blocks_offset(block));
}

// The code nearest to a quotient.
fn blocks_clamp(rounded: vec4<i32>) -> vec4<i32> {
    let most = 1 << (params.bits - 1u);
    return clamp(rounded, vec4<i32>(-most), vec4<i32>(most - 1));
}

// The first word of a unit in the packet.
fn blocks_at(unit: u32) -> u32 {
    return unit * (1u + ((params.block * params.bits) >> 3u));
}

// Writes 16 codes, of the vectors `index` to `index + 3`, packed four by four.
fn blocks_write(unit: u32, index: u32, packed: vec4<u32>) {
    let words = field_join16(packed, params.bits);
    let at = blocks_at(unit) + 1u + ((index * params.bits) >> 3u);
    for (var word = 0u; word < (params.bits >> 1u); word += 1u) {
        packet[at + word] = words[word];
    }
}

// Writes the scale bytes of a unit whose first block is `slot`.
fn blocks_write_bytes(unit: u32, slot: u32) {
    let low = vec2<u32>(blocks_byte(slot), blocks_byte(slot + 1u));
    let high = vec2<u32>(blocks_byte(slot + 2u), blocks_byte(slot + 3u));
    packet[blocks_at(unit)] = field_join4(vec4<u32>(low, high));
}

// field: signed codes of 2, 4 or 8 bits in words, element k in bits `bits * k`.., four at a time.
// CPU twin: codec::block, pack and unpack.

// Four codes in the low 4 * bits of a word, the rest zero. The codes fit their bits.
fn field_pack4(codes: vec4<i32>, bits: u32) -> u32 {
    let mask = (1u << bits) - 1u;
    let placed = (vec4<u32>(codes) & vec4<u32>(mask)) << (vec4<u32>(0u, 1u, 2u, 3u) * vec4<u32>(bits));
    return placed.x | placed.y | placed.z | placed.w;
}

// The four codes in the low 4 * bits of a word, sign extended.
fn field_unpack4(word: u32, bits: u32) -> vec4<i32> {
    let up = vec4<u32>(32u) - vec4<u32>(1u, 2u, 3u, 4u) * vec4<u32>(bits);
    return (vec4<i32>(i32(word)) << up) >> vec4<u32>(32u - bits);
}

// Four packed groups of four, 16 codes, joined: bits / 2 words.
fn field_join16(fours: vec4<u32>, bits: u32) -> vec4<u32> {
    if bits == 8u {
        return fours;
    }
    let pairs = fours.xz | (fours.yw << vec2<u32>(4u * bits));
    return vec4<u32>(select(pairs.x, pairs.x | (pairs.y << 16u), bits == 2u), pairs.y, 0u, 0u);
}

// Four scale bytes, of a unit's blocks, in one word.
fn field_join4(bytes: vec4<u32>) -> u32 {
    let placed = bytes << vec4<u32>(0u, 8u, 16u, 24u);
    return placed.x | placed.y | placed.z | placed.w;
}

// nibble: eight signed 4-bit codes in one word, element k in bits 4k..4k+3.
// CPU twin: codec::bits.

// Elements 0..3 in the low half of a word; the high half stays zero. Codes are in -8..=7.
fn nibble_pack4(codes: vec4<i32>) -> u32 {
    let placed = (vec4<u32>(codes) & vec4<u32>(0xfu)) << vec4<u32>(0u, 4u, 8u, 12u);
    return placed.x | placed.y | placed.z | placed.w;
}

// The four codes in the low half of a word, sign extended.
fn nibble_unpack4(word: u32) -> vec4<i32> {
    return (vec4<i32>(i32(word)) << vec4<u32>(28u, 24u, 20u, 16u)) >> vec4<u32>(28u);
}

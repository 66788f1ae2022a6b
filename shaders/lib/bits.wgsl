// bits: four codes of 1, 2, 4 or 8 bits, element k in bits width * k.. of the low end of a word.
// CPU twin: codec::bits.

// Four codes, of which the low bits count, in the low 4 * width bits; the rest stays zero.
fn bits_pack4(codes: vec4<u32>, width: u32) -> u32 {
    let mask = 0xffffffffu >> (32u - width);
    let placed = (codes & vec4<u32>(mask)) << (vec4<u32>(0u, 1u, 2u, 3u) * width);
    return placed.x | placed.y | placed.z | placed.w;
}

// The four codes in the low 4 * width bits of a word, as they stand.
fn bits_unpack4(word: u32, width: u32) -> vec4<u32> {
    let mask = 0xffffffffu >> (32u - width);
    return (vec4<u32>(word) >> (vec4<u32>(0u, 1u, 2u, 3u) * width)) & vec4<u32>(mask);
}

// The same, sign extended.
fn bits_signed4(word: u32, width: u32) -> vec4<i32> {
    let places = vec4<u32>(32u) - vec4<u32>(1u, 2u, 3u, 4u) * width;
    return (vec4<i32>(i32(word)) << places) >> vec4<u32>(32u - width);
}

// byte: four signed bytes in one word, element k in bits 8k..8k+7. CPU twin: none needed, a slice of i8.
// Shifts, not pack4xI8Clamp: with constant lanes that builtin is wrong on SwiftShader through naga.

fn byte_pack4(bytes: vec4<i32>) -> u32 {
    let placed = (vec4<u32>(bytes) & vec4<u32>(0xffu)) << vec4<u32>(0u, 8u, 16u, 24u);
    return placed.x | placed.y | placed.z | placed.w;
}

fn byte_unpack4(word: u32) -> vec4<i32> {
    return (vec4<i32>(i32(word)) << vec4<u32>(24u, 16u, 8u, 0u)) >> vec4<u32>(24u);
}

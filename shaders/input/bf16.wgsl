// input/bf16: a gradient of bf16, widened to f32 bits, which only appends zeros.
// CPU twin: codec::Gradient::widen. Memory: two elements to a word, the first in the low half; 4 to a vector; zero up to
// whole units.

@group(0) @binding(1) var<storage, read> gradient: array<vec2<u32>>;

// The f32 bits of elements 4 * index .. 4 * index + 3 of this dispatch.
fn input_load4(index: u32) -> vec4<u32> {
    let pairs = gradient[index].xxyy;
    return (pairs << vec4<u32>(16u, 0u, 16u, 0u)) & vec4<u32>(0xffff0000u);
}

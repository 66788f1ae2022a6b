// input/f32: a gradient of f32, as bits, because NaN can only be found in the bits.
// CPU twin: codec::Gradient::widen. Memory: one element to a word, 4 to a vector; zero up to whole units.

@group(0) @binding(1) var<storage, read> gradient: array<vec4<u32>>;

// The f32 bits of elements 4 * index .. 4 * index + 3 of this dispatch.
fn input_load4(index: u32) -> vec4<u32> {
    return gradient[index];
}

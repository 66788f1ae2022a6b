// sum: any i32 to f32 and then times an f32, each rounded as IEEE 754 does it (nearest, ties to even), in integers.
// CPU twin: the plain product `sum as f32 * scale` of codec::intsgd::average. Needs the fragment product, which takes
// sums of up to 24 bits.

// f32 bits of f32(value) * scale; `scale` is the bits of a positive normal f32 below 2^96, and the result is normal
// too. Zero gives +0.0.
fn sum_product_bits(value: i32, scale: u32) -> u32 {
    let magnitude = select(u32(value), 0u - u32(value), value < 0); // up to 2^31
    let above = 8u - min(countLeadingZeros(magnitude), 8u); // digits beyond 24
    let half = (1u << above) >> 1u;
    let lost = magnitude & ((1u << above) - 1u);
    let odd = ((magnitude >> above) & 1u) == 1u;
    let up_one = (above > 0u) && ((lost > half) || ((lost == half) && odd));
    let kept = (magnitude >> above) + select(0u, 1u, up_one);
    let carry = kept >> 24u; // rounded up to a power of two
    let bits = product_bits(i32(kept >> carry), scale + ((above + carry) << 23u));
    return bits | (u32(value) & 0x80000000u);
}

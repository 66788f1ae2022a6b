// terms: the weighted mean of one block of every rank's packet, at the largest of their scales.
// CPU twin: codec::scale, Term, reference and Mean. Needs fragments scale and product; bindings `packets` and `weights`;
// and Params with `ranks`, `headroom` and `scale`. A rank's packet begins `row` words behind that of the rank before.

// The largest exponent of block `k` over the ranks that count, in the unit that begins at word `at` of rank 0.
fn terms_reference(at: u32, row: u32, k: u32) -> u32 {
    var reference = 0u;
    for (var rank = 0u; rank < params.ranks; rank += 1u) {
        let counts = weights[rank] != 0u; // byte 0 has exponent 0, and so cannot set the largest
        let byte = scale_byte_of(packets[at + rank * row], k);
        reference = max(reference, select(0u, byte >> 2u, counts));
    }
    return reference;
}

// The term of block `k` of `rank`, whose unit begins at word `at`; see scale_term.
fn terms_of(at: u32, k: u32, rank: u32, reference: u32) -> vec2<u32> {
    return scale_term(scale_byte_of(packets[at], k), weights[rank], reference, params.headroom);
}

// f32 bits of the means of four sums.
fn terms_mean4(sum: vec4<i32>, reference: u32) -> vec4<u32> {
    let scale = params.scale + (reference << 23u);
    return vec4<u32>(
        product_wide_bits(sum.x, scale),
        product_wide_bits(sum.y, scale),
        product_wide_bits(sum.z, scale),
        product_wide_bits(sum.w, scale),
    );
}

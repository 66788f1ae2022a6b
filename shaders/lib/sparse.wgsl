// sparse: where the words of one chunk of a sparse packet are: two levels, codes of 2 bits, Elias-Fano coded indices.
// CPU twin: codec::topk::Layout and codec::elias_fano. Chunks are powers of two, so that nothing is divided.

struct sparse_layout {
    elements: u32, // of this chunk
    count: u32, // how many of them are sent
    low_bits: u32, // bits of an index that are written as they are
    low: u32, // first word of them; the codes begin at word 1
    high: u32, // first word of what is above them, in unary
    words: u32, // all of them
}

// `k` of every 2^chunk_log2 elements, 1 <= k <= 2^chunk_log2; of `elements` in proportion, at least 1.
fn sparse_layout_of(k: u32, chunk_log2: u32, elements: u32) -> sparse_layout {
    let count = clamp((k * elements) >> chunk_log2, 1u, elements);
    // floor(log2(elements / count)): the largest shift of `count` that stays at or below `elements`.
    let shift = countLeadingZeros(count) - countLeadingZeros(elements);
    let low_bits = shift - select(0u, 1u, (count << shift) > elements);
    let low = 1u + ((count + 15u) >> 4u);
    let high = low + ((count * low_bits + 31u) >> 5u);
    let high_length = count + ((elements + (1u << low_bits) - 1u) >> low_bits);
    return sparse_layout(elements, count, low_bits, low, high, high + ((high_length + 31u) >> 5u));
}

// A packet of one chunk on the way out: 4,096 of 4,096 elements take 513 words.
var<workgroup> sparse_words: array<atomic<u32>, 513>;

// Clears them; a barrier must follow before anything is put.
fn sparse_clear(local: u32) {
    for (var word = local; word < 513u; word += 256u) {
        atomicStore(&sparse_words[word], 0u);
    }
}

// Puts the element of `index`, which is number `j` of those sent, counted by index.
fn sparse_put(sizes: sparse_layout, j: u32, index: u32, code: u32) {
    atomicOr(&sparse_words[1u + (j >> 4u)], code << (2u * (j & 15u)));
    let bits = index & ((1u << sizes.low_bits) - 1u);
    let at = j * sizes.low_bits;
    let word = sizes.low + (at >> 5u);
    if bits != 0u {
        atomicOr(&sparse_words[word], bits << (at & 31u));
        // What did not fit; two shifts, as one by 32 is not defined.
        let over = (bits >> 1u) >> (31u - (at & 31u));
        if over != 0u {
            atomicOr(&sparse_words[word + 1u], over);
        }
    }
    let place = (index >> sizes.low_bits) + j;
    atomicOr(&sparse_words[sizes.high + (place >> 5u)], 1u << (place & 31u));
}

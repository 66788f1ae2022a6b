// residual: what a chunk keeps, as f32 bits or as a byte each with one power of two for 64 of them.
// CPU twin: codec::topk::residual. The kernel declares `state: array<u32>`. The value of a byte is byte * 2^(exponent - 133); the exponent is that of the f32 bits of the
// largest of the 64, which thereby lies at 64 to 127. Below `residual_least` all are zero: nothing is subnormal.

const residual_least: u32 = 8u;

// f32 bits of a byte.
fn residual_value(byte: i32, exponent: u32) -> u32 {
    let magnitude = u32(abs(byte));
    let lead = 31u - countLeadingZeros(magnitude | 1u);
    let bits = ((exponent + lead - 6u) << 23u) | ((magnitude << (23u - lead)) & 0x7fffffu);
    return select(bits | (u32(byte) & 0x80000000u), 0u, byte == 0 || exponent < residual_least);
}

// The byte of a normal or zero f32, rounded to nearest, ties to even, at most 127. Its exponent is at most `exponent`.
fn residual_byte(bits: u32, exponent: u32) -> u32 {
    let own = (bits >> 23u) & 0xffu;
    // 24 digits become 7 for the largest; 25 less and nothing is left.
    let shift = min(17u + exponent - own, 25u);
    let mantissa = (bits & 0x7fffffu) | 0x800000u;
    let odd = (mantissa >> shift) & 1u;
    let magnitude = min((mantissa + (1u << (shift - 1u)) - 1u + odd) >> shift, 127u);
    let byte = select(magnitude, 0u - magnitude, (bits >> 31u) == 1u) & 0xffu;
    return select(byte, 0u, own == 0u || exponent < residual_least);
}

// Where the words of a chunk start, and what they are.
struct residual_place {
    base: u32, // first word
    chunk: u32, // elements
    bytes: bool, // else f32
}

fn residual_words(chunk: u32, bytes: bool) -> u32 {
    return select(chunk, (chunk >> 2u) + ((chunk + 255u) >> 8u), bytes);
}

// 16 elements from `at` on, which share a power of two.
fn residual_load(place: residual_place, at: u32, out: ptr<function, array<u32, 16>>) {
    for (var i = 0u; i < 16u; i += 1u) {
        if place.bytes {
            let word = state[place.base + ((at + i) >> 2u)];
            let exponents = state[place.base + (place.chunk >> 2u) + (at >> 8u)];
            let byte = i32(word << (24u - 8u * (i & 3u))) >> 24u;
            (*out)[i] = residual_value(byte, (exponents >> (8u * ((at >> 6u) & 3u))) & 0xffu);
        } else {
            (*out)[i] = state[place.base + at + i];
        }
    }
}

var<workgroup> residual_exponents: array<atomic<u32>, 64>; // of 64 elements each

// Keeps the 16 elements of each of 256 invocations, where they are `mine`. Two barriers.
fn residual_store(place: residual_place, mine: bool, values: ptr<function, array<u32, 16>>, local: u32) {
    if local < 64u {
        atomicStore(&residual_exponents[local], 0u);
    }
    workgroupBarrier();
    var largest = 0u;
    for (var i = 0u; mine && i < 16u; i += 1u) {
        largest = max(largest, ((*values)[i] >> 23u) & 0xffu);
    }
    atomicMax(&residual_exponents[local >> 2u], largest);
    workgroupBarrier();
    let exponent = atomicLoad(&residual_exponents[local >> 2u]);
    for (var i = 0u; mine && i < 16u; i += 1u) {
        let at = 16u * local + i;
        if !place.bytes {
            state[place.base + at] = (*values)[i];
        } else if (i & 3u) == 3u {
            var word = 0u;
            for (var j = 0u; j < 4u; j += 1u) {
                word |= residual_byte((*values)[(i & 12u) + j], exponent) << (8u * j);
            }
            state[place.base + (at >> 2u)] = word;
        }
    }
    if place.bytes && local < ((place.chunk + 255u) >> 8u) {
        var word = 0u;
        for (var j = 0u; j < 4u; j += 1u) {
            let block = atomicLoad(&residual_exponents[4u * local + j]);
            word |= select(block, 0u, block < residual_least) << (8u * j);
        }
        state[place.base + (place.chunk >> 2u) + local] = word;
    }
}

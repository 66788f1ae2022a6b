// topk/average: the weighted sum of every rank's values, scattered from sparse packets, then one product.
// CPU twin: codec::topk::average. Fragments: float, sparse, total.
// One workgroup owns one chunk, an invocation 16 elements: rank by rank the codes are spread over workgroup memory
// (2 KiB), then each invocation adds those of its elements. Whatever a packet holds, nothing outside is touched.
//   params   Params            in   one per dispatch
//   packets  u32[ranks,units]  in   chunks as in `sparse`, a row of `units` whole ones per rank
//   weights  u32[ranks]        in   samples of each rank
//   mean     f32[n]            out  as bits, 4 to a vector

struct Params {
    units: u32, // chunks
    columns: u32, // workgroups in one row of the two-dimensional grid
    ranks: u32,
    elements: u32, // of which the last chunk may have less than the others
    chunk_log2: u32,
    k: u32,
    scale: u32, // f32 bits of the factor for the sum over all ranks
    scale_log2: i32,
    contributors: u32, // 1: divide by the weights of the ranks that sent the element
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> packets: array<u32>;
@group(0) @binding(2) var<storage, read> weights: array<u32>;
@group(0) @binding(3) var<storage, read_write> mean: array<vec4<u32>>;

// 4 bits per element: sign, level, and whether it was sent.
var<workgroup> codes: array<atomic<u32>, 512>;

// Spreads the packet that starts at `first`: one word of the unary field at a time.
fn spread(sizes: sparse_layout, first: u32, local: u32) {
    let length = sizes.words - sizes.high;
    for (var word = local; word < length; word += 256u) {
        var j = 0u; // ones before this word
        for (var before = 0u; before < word; before += 1u) {
            j += countOneBits(packets[first + sizes.high + before]);
        }
        var rest = packets[first + sizes.high + word];
        for (; rest != 0u && j < sizes.count; j += 1u) {
            let place = 32u * word + firstTrailingBit(rest);
            rest &= rest - 1u;
            let at = j * sizes.low_bits;
            let low = first + sizes.low + (at >> 5u);
            // Of the next word as much as this one lacks, if anything: two shifts, as one by 32 is not defined.
            let both = (packets[low] >> (at & 31u)) | ((packets[low + 1u] << 1u) << (31u - (at & 31u)));
            let index = ((place - j) << sizes.low_bits) | (both & ((1u << sizes.low_bits) - 1u));
            let code = (packets[first + 1u + (j >> 4u)] >> (2u * (j & 15u))) & 3u;
            if index < sizes.elements {
                atomicOr(&codes[index >> 3u], (code | 4u) << (4u * (index & 7u)));
            }
        }
    }
}

fn finish(sum: total_sum, weight: u32) -> u32 {
    if (sum.low | sum.high) == 0u {
        return 0u;
    }
    var scale = params.scale;
    if params.contributors == 1u {
        scale = total_inverse(weight, params.scale_log2);
    }
    return float_mul(total_float(sum), scale);
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let unit = workgroup.y * params.columns + workgroup.x;
    if unit >= params.units {
        return;
    }
    let chunk = 1u << params.chunk_log2;
    let whole = sparse_layout_of(params.k, params.chunk_log2, chunk).words;
    let elements = min(chunk, params.elements - (unit << params.chunk_log2));
    let sizes = sparse_layout_of(params.k, params.chunk_log2, elements);
    var sums: array<total_sum, 16>;
    var sent: array<u32, 16>; // weights
    for (var rank = 0u; rank < params.ranks; rank += 1u) {
        // Nobody else reads these two words, so that no barrier is needed before.
        atomicStore(&codes[2u * local], 0u);
        atomicStore(&codes[2u * local + 1u], 0u);
        workgroupBarrier();
        let first = (rank * params.units + unit) * whole;
        spread(sizes, first, local);
        workgroupBarrier();
        let levels = packets[first];
        let low = total_product(levels & 0x7fffu, weights[rank]);
        let high = total_product((levels >> 16u) & 0x7fffu, weights[rank]);
        for (var at = 0u; at < 16u; at += 1u) {
            let code = atomicLoad(&codes[2u * local + (at >> 3u)]) >> (4u * (at & 7u));
            var value = low;
            if (code & 2u) != 0u {
                value = high;
            }
            if (code & 4u) != 0u && (value.low | value.high) != 0u {
                sent[at] += weights[rank];
                if (code & 1u) != 0u {
                    value = total_negate(value);
                }
                sums[at] = total_add(sums[at], value);
            }
        }
    }
    for (var quad = 0u; quad < 4u && 16u * local + 4u * quad < chunk; quad += 1u) {
        var bits: array<u32, 4>;
        for (var at = 0u; at < 4u; at += 1u) {
            bits[at] = finish(sums[4u * quad + at], sent[4u * quad + at]);
        }
        mean[(unit << params.chunk_log2 >> 2u) + 4u * local + quad] = vec4<u32>(bits[0], bits[1], bits[2], bits[3]);
    }
}

// topk/encode: compensate, select the k largest of a chunk, two levels, pack, keep what was not sent.
// CPU twin: codec::topk::encode. Fragments: count, float, level, residual, select, scan, pick, sparse.
// One workgroup owns one chunk, an invocation 16 neighbours of it; 7 KiB of workgroup memory.
//   params    Params      in      one per dispatch
//   gradient  f32[n]      in      as bits, 4 to a vector; zero up to whole chunks
//   state     u32[units]  in/out  per chunk: f32 bits, or bytes 4 to a word and then exponents 4 to a word
//   packet    u32[units]  out     per chunk as in `sparse`; a shorter last chunk begins where a whole one would
//   stats     u32[2]      in/out  adds: non-finite elements, elements whose level was beyond f16

struct Params {
    units: u32, // chunks
    columns: u32, // workgroups in one row of the two-dimensional grid
    elements: u32, // of which the last chunk may have less than the others
    chunk_log2: u32,
    k: u32,
    decay: u32, // f32 bits of the weight of the old residual
    scale_log2: i32,
    bytes: u32, // 1: the residual is kept in bytes
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(2) var<storage, read_write> state: array<u32>;
@group(0) @binding(3) var<storage, read_write> packet: array<u32>;
@group(0) @binding(4) var<storage, read_write> stats: array<atomic<u32>, 2>;

var<workgroup> levels: array<u32, 2>; // low, high

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let unit = workgroup.y * params.columns + workgroup.x;
    if unit >= params.units {
        return;
    }
    let chunk = 1u << params.chunk_log2;
    let start = unit << params.chunk_log2;
    let sizes = sparse_layout_of(params.k, params.chunk_log2, min(chunk, params.elements - start));
    let bytes = params.bytes == 1u;
    let place = residual_place(unit * residual_words(chunk, bytes), chunk, bytes);
    let at = 16u * local; // the first of this invocation's elements
    let mine = at < chunk;
    sparse_clear(local);

    var values: array<u32, 16>;
    if mine {
        residual_load(place, at, &values);
        var nonfinite = 0u;
        for (var i = 0u; i < 16u; i += 1u) {
            let bits = input_load4((start + at + i) >> 2u)[i & 3u];
            let finite = (bits & 0x7f800000u) != 0x7f800000u;
            let sum = float_add(float_mul(params.decay, values[i]), bits);
            values[i] = select(0u, sum, finite);
            nonfinite += select(1u, 0u, finite);
        }
        count_add(nonfinite, 0u);
    }

    let picked = pick_run(&values, mine, sizes.count, local);
    let level = level_run(&values, picked.sent, picked.high, picked.counts, params.scale_log2, local);
    if local < 2u {
        levels[local] = level & 0xffffu;
        if (level & level_saturated) != 0u {
            count_add(0u, select(picked.counts.x, picked.counts.y, local == 1u));
        }
    }
    workgroupBarrier();

    var j = picked.first;
    for (var rest = picked.sent; rest != 0u; rest &= rest - 1u) {
        let i = firstTrailingBit(rest);
        let half = (picked.high >> i) & 1u;
        let sign = values[i] & 0x80000000u;
        sparse_put(sizes, j, at + i, (sign >> 31u) | (half << 1u));
        values[i] = float_sub(values[i], level_value(levels[half], params.scale_log2) | sign);
        j += 1u;
    }
    residual_store(place, mine, &values, local); // its barriers also let all put

    let first = unit * sparse_layout_of(params.k, params.chunk_log2, chunk).words;
    for (var word = local; word < sizes.words; word += 256u) {
        let bits = atomicLoad(&sparse_words[word]);
        packet[first + word] = select(bits, levels[0] | (levels[1] << 16u), word == 0u);
    }
}

// mean/loco: the mean of 8 elements, straight from one packet word of every rank.
// CPU twin: codec::loco::average. Needs the fragments nibble and product.
//   packets  i4[ranks,n]  in  8 to a word, a row of `params.units` words per rank
//   weights  u32[ranks]   in  samples of each rank

@group(0) @binding(1) var<storage, read> mean_packets: array<u32>;
@group(0) @binding(2) var<storage, read> mean_weights: array<u32>;

struct mean_Eight {
    low: vec4<u32>, // f32 bits of elements 0..3
    high: vec4<u32>, // of elements 4..7
}

fn mean_scaled(sum: vec4<i32>) -> vec4<u32> {
    return vec4<u32>(
        product_bits(sum.x, params.scale),
        product_bits(sum.y, params.scale),
        product_bits(sum.z, params.scale),
        product_bits(sum.w, params.scale),
    );
}

fn mean_load8(group: u32) -> mean_Eight {
    var low = vec4<i32>(0);
    var high = vec4<i32>(0);
    for (var rank = 0u; rank < params.ranks; rank += 1u) {
        let word = mean_packets[rank * params.units + group];
        let weight = i32(mean_weights[rank]);
        low += weight * nibble_unpack4(word);
        high += weight * nibble_unpack4(word >> 16u);
    }
    return mean_Eight(mean_scaled(low), mean_scaled(high));
}

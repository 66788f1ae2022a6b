// mean/given: the mean of 8 elements as the host or an earlier kernel left it.
// CPU twin: none needed, a slice. For kernels that go on with a mean; the other sources are beside this file.
//   mean  f32[n]  in  as bits, 4 to a vector; group `params.skip` is the first of the dispatch

@group(0) @binding(1) var<storage, read> mean_given: array<vec4<u32>>;

struct mean_Eight {
    low: vec4<u32>, // f32 bits of elements 0..3
    high: vec4<u32>, // of elements 4..7
}

fn mean_load8(group: u32) -> mean_Eight {
    let at = 2u * (params.skip + group);
    return mean_Eight(mean_given[at], mean_given[at + 1u]);
}

// select: of 16 f32 in each of 256 invocations, the magnitudes at two ranks, found by their digits from the top.
// CPU twin: none needed, `select_nth_unstable` of codec::topk. Four passes of 8 bits: a histogram of those that agree
// so far, then a walk down its bins. The sign does not count. Workgroup memory: 2,192 bytes.

var<workgroup> select_histogram: array<atomic<u32>, 512>; // 256 bins for each rank
var<workgroup> select_groups: array<u32, 32>; // sums of 16 bins
var<workgroup> select_key: array<u32, 2>; // out: the magnitude bits at each rank, times 2
var<workgroup> select_rank: array<u32, 2>; // out: how many of those with that magnitude are among the first

// What is compared: the bits without the sign.
fn select_key_of(bits: u32) -> u32 {
    return bits << 1u;
}

// Bins down from the top hold `rest` or more; the result is the bin where they do, and what is left for it.
fn select_walk(lane: u32, above: u32) -> vec2<u32> {
    var rest = above;
    var group = 16u;
    loop {
        group -= 1u;
        let inside = select_groups[16u * lane + group];
        if rest <= inside || group == 0u {
            break;
        }
        rest -= inside;
    }
    var bin = 16u * group + 16u;
    loop {
        bin -= 1u;
        let inside = atomicLoad(&select_histogram[256u * lane + bin]);
        if rest <= inside || bin == 16u * group {
            break;
        }
        rest -= inside;
    }
    return vec2<u32>(bin, rest);
}

// `ranks` count from 1 at the largest; `mine` says whether this invocation's elements take part. Ends with a barrier.
fn select_run(values: ptr<function, array<u32, 16>>, mine: bool, ranks: vec2<u32>, local: u32) {
    if local < 2u {
        select_key[local] = 0u;
        select_rank[local] = select(ranks.x, ranks.y, local == 1u);
    }
    for (var pass_number = 0u; pass_number < 4u; pass_number += 1u) {
        let shift = 24u - 8u * pass_number;
        atomicStore(&select_histogram[local], 0u);
        atomicStore(&select_histogram[256u + local], 0u);
        workgroupBarrier();
        let first = select_key[0];
        let second = select_key[1];
        for (var at = 0u; mine && at < 16u; at += 1u) {
            let digits = select_key_of((*values)[at]) >> shift;
            if (digits >> 8u) == first {
                atomicAdd(&select_histogram[digits & 0xffu], 1u);
            }
            if (digits >> 8u) == second {
                atomicAdd(&select_histogram[256u + (digits & 0xffu)], 1u);
            }
        }
        workgroupBarrier();
        if local < 32u {
            var inside = 0u;
            for (var bin = 16u * local; bin < 16u * local + 16u; bin += 1u) {
                inside += atomicLoad(&select_histogram[bin]);
            }
            select_groups[local] = inside;
        }
        workgroupBarrier();
        if local < 2u {
            let found = select_walk(local, select_rank[local]);
            select_key[local] = (select_key[local] << 8u) | found.x;
            select_rank[local] = found.y;
        }
        workgroupBarrier();
    }
}

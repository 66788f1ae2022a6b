// pick: the largest of a workgroup's values, and which half of them each is in; of equal ones the lower index first.
// CPU twin: codec::topk::Chunk::select. Fragments before this one: select, scan.

struct pick_result {
    sent: u32, // a bit for each of this invocation's 16 values
    high: u32, // of those, which are in the larger half
    first: u32, // how many are sent before this invocation's
    counts: vec2<u32>, // in the smaller and in the larger half, zeros in neither
}

// The `count` largest magnitudes, of which half, rounded up, are the larger half; if zeros fill up, all that is not zero.
fn pick_run(values: ptr<function, array<u32, 16>>, mine: bool, count: u32, local: u32) -> pick_result {
    let half = (count + 1u) >> 1u;
    select_run(values, mine, vec2<u32>(count, half), local);
    // Sent is what is above `key`, and so many at it; the larger half likewise.
    let key = select_key[0];
    let at_key = select_rank[0];
    let filled = key == 0u;
    let high_key = select(select_key[1], 0u, filled);
    let at_high = select(select_rank[1], 0u, filled);

    var own = vec2<u32>(0u); // at `key`, and from bit 16 on above it; at `high_key`
    for (var i = 0u; mine && i < 16u; i += 1u) {
        let other = select_key_of((*values)[i]);
        own.x += select(0u, 1u, other == key) | select(0u, 0x10000u, other > key);
        own.y += select(0u, 1u, other == high_key);
    }
    let before = scan_before(own, local);
    var equal = before.x & 0xffffu;
    var equal_high = before.y;
    let first = (before.x >> 16u) + min(equal, at_key);
    var sent = 0u;
    var high = 0u;
    for (var i = 0u; mine && i < 16u; i += 1u) {
        let other = select_key_of((*values)[i]);
        sent |= select(0u, 1u << i, other > key || (other == key && equal < at_key));
        high |= select(0u, 1u << i, other > high_key || (other == high_key && equal_high < at_high));
        equal += select(0u, 1u, other == key);
        equal_high += select(0u, 1u, other == high_key);
    }
    let counts = select(vec2<u32>(count - half, half), vec2<u32>(0u, count - at_key), filled);
    return pick_result(sent, high, first, counts);
}

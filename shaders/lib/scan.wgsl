// scan: what the invocations before this one counted, for 256 of them. Workgroup memory: 2,176 bytes.
// CPU twin: none needed, a loop.

var<workgroup> scan_counts: array<vec2<u32>, 256>;
var<workgroup> scan_groups: array<vec2<u32>, 16>;

// The sum of `count` over all invocations below `local`. Two barriers, 30 additions.
fn scan_before(count: vec2<u32>, local: u32) -> vec2<u32> {
    scan_counts[local] = count;
    workgroupBarrier();
    if local < 16u {
        var inside = vec2<u32>(0u);
        for (var at = 16u * local; at < 16u * local + 16u; at += 1u) {
            inside += scan_counts[at];
        }
        scan_groups[local] = inside;
    }
    workgroupBarrier();
    var sum = vec2<u32>(0u);
    for (var group = 0u; group < (local >> 4u); group += 1u) {
        sum += scan_groups[group];
    }
    for (var at = local & 0xf0u; at < local; at += 1u) {
        sum += scan_counts[at];
    }
    return sum;
}

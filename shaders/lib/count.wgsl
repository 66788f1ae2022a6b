// count: how many of four are set, and the counts of an encode kernel.
// CPU twin: the fields of codec::Stats. Needs binding `stats`.

fn count_set4(flags: vec4<bool>) -> u32 {
    let ones = select(vec4<u32>(0u), vec4<u32>(1u), flags);
    return ones.x + ones.y + ones.z + ones.w;
}

// Adds one invocation's counts. Rare, so a global atomic each costs less than a barrier for all.
fn count_add(nonfinite: u32, saturated: u32) {
    if nonfinite != 0u {
        atomicAdd(&stats[0], nonfinite);
    }
    if saturated != 0u {
        atomicAdd(&stats[1], saturated);
    }
}

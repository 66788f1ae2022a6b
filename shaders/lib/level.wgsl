// level: f16 numbers that stand for many magnitudes, made from exact integer means, and widened again.
// CPU twin: codec::topk::mean_level and level_value. A quotient is found digit by digit: WGSL divides exactly nowhere.

const level_largest: u32 = 0x7bffu; // bits of the largest finite f16
const level_saturated: u32 = 0x10000u; // set beside them when a mean was beyond it

// A magnitude in units of the last of 19 binary digits below exponent `top`; `bits` has no sign.
fn level_fixed(bits: u32, top: u32) -> u32 {
    let exponent = bits >> 23u;
    let mantissa = (bits & 0x7fffffu) | 0x800000u;
    return select(mantissa >> min(5u + top - exponent, 31u), 0u, exponent == 0u);
}

// f16 bits of the mean of `count` magnitudes (1..=4096) whose level_fixed add up to `sum` (below 2^31), times
// 2^scale_log2: rounded once, ties to even.
fn level_mean(sum: u32, count: u32, top: u32, scale_log2: i32) -> u32 {
    if sum == 0u {
        return 0u;
    }
    // The leading one to place 30: the quotient keeps 18 digits or more, of which 11 stay.
    let lift = countLeadingZeros(sum) - 1u;
    let lifted = sum << lift;
    var quotient = 0u;
    var rest = 0u; // below `count`
    for (var place = 31u; place > 0u; place -= 1u) {
        rest = (rest << 1u) | ((lifted >> (place - 1u)) & 1u);
        let digit = select(0u, 1u, rest >= count);
        rest -= digit * count;
        quotient = (quotient << 1u) | digit;
    }
    // Of the quotient, in units of 2^-24. So many digits go that 11 stay, and none below the last one of an f16.
    let exponent = i32(top) - 121 + scale_log2 - i32(lift);
    let drop = max(21 - i32(countLeadingZeros(quotient)), -exponent);
    if drop > 31 {
        return 0u;
    }
    let shift = u32(drop);
    let kept = quotient >> shift;
    let lost = quotient & ((1u << shift) - 1u);
    let half = 1u << (shift - 1u);
    let up = (lost > half) || ((lost == half) && ((rest != 0u) || ((kept & 1u) == 1u)));
    // The leading one of `kept`, unless subnormal, is added on top of the exponent, and so is a carry to 2^11.
    let bits = (u32(exponent + drop) << 10u) + kept + select(0u, 1u, up);
    return select(bits, level_largest | level_saturated, bits > level_largest);
}

// f32 bits of an f16 without a sign, divided by 2^scale_log2: exact, and normal for -64 <= scale_log2 <= 64.
fn level_value(bits: u32, scale_log2: i32) -> u32 {
    let mantissa = bits & 0x3ffu;
    let lead = countLeadingZeros(mantissa) - 8u; // of a subnormal one, 14 or more
    let small = ((126u - lead) << 23u) + ((mantissa << min(lead, 23u)) & 0x7fffffu);
    let widened = select((bits << 13u) + (112u << 23u), small, bits < 0x400u);
    return select(widened - (u32(scale_log2) << 23u), 0u, bits == 0u);
}

// Of the smaller half, then of the larger: exponent of the largest magnitude, and sum in its units.
var<workgroup> level_tops: array<atomic<u32>, 2>;
var<workgroup> level_sums: array<atomic<u32>, 2>;

// Both levels of a workgroup's values, of which bits in `sent` say which count, and bits in `high` in which half.
// `counts` are those of the halves. Invocation 0 returns level_mean of the smaller half, invocation 1 of the larger.
fn level_run(values: ptr<function, array<u32, 16>>, sent: u32, high: u32, counts: vec2<u32>, scale_log2: i32, local: u32) -> u32 {
    if local < 2u {
        atomicStore(&level_tops[local], 0u);
        atomicStore(&level_sums[local], 0u);
    }
    workgroupBarrier();
    for (var rest = sent; rest != 0u; rest &= rest - 1u) {
        let i = firstTrailingBit(rest);
        atomicMax(&level_tops[(high >> i) & 1u], ((*values)[i] >> 23u) & 0xffu);
    }
    workgroupBarrier();
    for (var rest = sent; rest != 0u; rest &= rest - 1u) {
        let i = firstTrailingBit(rest);
        let half = (high >> i) & 1u;
        atomicAdd(&level_sums[half], level_fixed((*values)[i] & 0x7fffffffu, atomicLoad(&level_tops[half])));
    }
    workgroupBarrier();
    if local >= 2u {
        return 0u;
    }
    let count = select(counts.x, counts.y, local == 1u);
    return level_mean(atomicLoad(&level_sums[local]), count, atomicLoad(&level_tops[local]), scale_log2);
}

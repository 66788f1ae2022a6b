// total: weighted sums of f16 levels as 64-bit integers, exact in any order, and their mean as f32.
// CPU twin: the i64 sums of codec::topk::average, and codec::topk::Config::mean_scale. Fragments before this one: float.

struct total_sum {
    low: u32,
    high: u32, // two's complement
}

// level * weight in units of 2^-24. `bits` are those of an f16 without a sign; the weight is below 2^21, so that the
// product of weight and mantissa is below 2^32 and all of it below 2^61.
fn total_product(bits: u32, weight: u32) -> total_sum {
    let exponent = (bits >> 10u) & 0x1fu;
    let mantissa = (bits & 0x3ffu) | select(0x400u, 0u, exponent == 0u);
    let shift = max(exponent, 1u) - 1u;
    let product = mantissa * weight;
    // Two shifts, as one by 32 is not defined.
    return total_sum(product << shift, (product >> 1u) >> (31u - shift));
}

fn total_negate(sum: total_sum) -> total_sum {
    return total_sum(0u - sum.low, ~sum.high + select(0u, 1u, sum.low == 0u));
}

fn total_add(a: total_sum, b: total_sum) -> total_sum {
    let low = a.low + b.low;
    return total_sum(low, a.high + b.high + select(0u, 1u, low < b.low));
}

// f32 bits of a sum, rounded to nearest, ties to even.
fn total_float(sum: total_sum) -> u32 {
    let sign = sum.high & 0x80000000u;
    let negated = total_negate(sum);
    let low = select(sum.low, negated.low, sign != 0u);
    let high = select(sum.high, negated.high, sign != 0u);
    if (low | high) == 0u {
        return 0u;
    }
    // The leading one to the top of 64 bits.
    let whole = high == 0u;
    let shift = countLeadingZeros(select(high, low, whole));
    let top = select((high << shift) | ((low >> 1u) >> (31u - shift)), low << shift, whole);
    let rest = select(low << shift, 0u, whole);
    let kept = top >> 8u;
    let lost = top & 0xffu;
    let beyond = (lost > 0x80u) || ((lost == 0x80u) && (rest != 0u));
    let tie = (lost == 0x80u) && (rest == 0u);
    let up = beyond || (tie && ((kept & 1u) == 1u));
    return float_join(sign, 190u - shift - select(0u, 32u, whole), kept + select(0u, 1u, up));
}

// f32 bits of 1 / (weight * 2^(24 + scale_log2)), rounded to nearest; 1 <= weight < 2^21, -64 <= scale_log2 <= 64.
fn total_inverse(weight: u32, scale_log2: i32) -> u32 {
    // 2^power / weight is in 1..2: 24 digits of it, and the rest.
    let power = 32u - countLeadingZeros(weight - 1u);
    var rest = (1u << power) - weight;
    var quotient = 1u;
    for (var digits = 1u; digits < 24u; digits += 1u) {
        rest <<= 1u;
        let digit = select(0u, 1u, rest >= weight);
        rest -= digit * weight;
        quotient = (quotient << 1u) | digit;
    }
    let twice = rest << 1u;
    let up = (twice > weight) || ((twice == weight) && ((quotient & 1u) == 1u));
    return float_join(0u, u32(103 - i32(power) - scale_log2), quotient + select(0u, 1u, up));
}

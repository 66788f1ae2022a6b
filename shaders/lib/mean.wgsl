// mean: the weighted mean of floats on a grid that the largest term fixes, in 64-bit integers.
// CPU twin: codec::mean. Needs the fragment wide. `total` is the sum of the weights, 1 to 2^21 - 1; `top` is the largest
// exponent field of the ranks with a weight.

const mean_nan: u32 = 0x7fc00000u;

// Sums of four elements.
struct mean_Sums {
    x: vec2<u32>,
    y: vec2<u32>,
    z: vec2<u32>,
    w: vec2<u32>,
}

fn mean_exponent4(bits: vec4<u32>) -> vec4<u32> {
    return (bits >> vec4<u32>(23u)) & vec4<u32>(0xffu);
}

// weight * value in units of 2^(top - 150 - guard), ties to even: |all of them together| < 2^51. Subnormals are zero.
fn mean_term(weight: u32, bits: u32, top: u32, guard: u32) -> vec2<u32> {
    let exponent = (bits >> 23u) & 0xffu;
    let product = wide_multiply(weight, (bits & 0x7fffffu) | 0x800000u); // below 2^45: by 46 it rounds to 0
    let below = top - min(exponent, top);
    let kept = wide_shift_left(product, guard - min(below, guard));
    let rounded = wide_round_shift(product, clamp(below - min(below, guard), 1u, 46u));
    let magnitude = select(kept, rounded, below > guard);
    let term = select(magnitude, wide_negate(magnitude), (bits >> 31u) == 1u);
    return select(term, vec2<u32>(0u), exponent == 0u);
}

fn mean_add4(sums: mean_Sums, weight: u32, bits: vec4<u32>, top: vec4<u32>, total: u32) -> mean_Sums {
    let guard = countLeadingZeros(total) - 5u; // 27 - bits of the total
    return mean_Sums(
        wide_add(sums.x, mean_term(weight, bits.x, top.x, guard)),
        wide_add(sums.y, mean_term(weight, bits.y, top.y, guard)),
        wide_add(sums.z, mean_term(weight, bits.z, top.z, guard)),
        wide_add(sums.w, mean_term(weight, bits.w, top.w, guard)),
    );
}

// f32 bits of sum / total, correctly rounded. Both get their leading one at a fixed place, the dividend at place 62, so
// that the high word is less than the divisor; then Moeller and Granlund's division of two words by one.
fn mean_quotient(sum: vec2<u32>, top: u32, total: u32, reciprocal: u32) -> u32 {
    let sign = sum.y & 0x80000000u;
    let magnitude = select(sum, wide_negate(sum), sign != 0u);
    let up = max(wide_lead(magnitude), 1u) - 1u;
    let widened = countLeadingZeros(total);
    let dividend = wide_shift_left(magnitude, min(up, 62u));
    let divisor = total << widened;

    let guess = wide_add(wide_multiply(reciprocal, dividend.y), dividend);
    var quotient = guess.y + 1u; // 31 or 32 bits in the end
    var rest = dividend.x - quotient * divisor;
    if rest > guess.x {
        quotient -= 1u;
        rest += divisor;
    }
    if rest >= divisor {
        quotient += 1u;
        rest -= divisor;
    }

    let drop = clamp(8u - min(countLeadingZeros(quotient), 8u), 1u, 8u); // 24 bits stay
    let half = 1u << (drop - 1u);
    let kept = quotient >> drop;
    let lost = quotient & (half + half - 1u);
    let up_one = (lost > half) || ((lost == half) && ((rest > 0u) || ((kept & 1u) == 1u)));
    let rounded = kept + select(0u, 1u, up_one);
    let guard = widened - 5u;
    let field = i32(top + drop + widened) - i32(guard + up);
    // The leading one of `rounded` is added on top, and so is the carry of rounding up to 2^24.
    let bits = sign | ((u32(max(field, 1) - 1) << 23u) + rounded);
    let finite = select(bits, 0u, (field < 1) || all(sum == vec2<u32>(0u)));
    return select(finite, mean_nan, top == 0xffu);
}

fn mean_quotient4(sums: mean_Sums, top: vec4<u32>, total: u32, reciprocal: u32) -> vec4<u32> {
    return vec4<u32>(
        mean_quotient(sums.x, top.x, total, reciprocal),
        mean_quotient(sums.y, top.y, total, reciprocal),
        mean_quotient(sums.z, top.z, total, reciprocal),
        mean_quotient(sums.w, top.w, total, reciprocal),
    );
}

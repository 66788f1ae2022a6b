// float: sum, difference and product of two f32 bit patterns as IEEE 754 rounds them (nearest, ties to even), in integers.
// CPU twin: codec::float. WGSL lets an inexact sum or product be either of its two neighbours, and lets a device flush
// subnormals; here every subnormal counts as zero, every zero is plus zero, and what is beyond the largest f32 is the
// largest f32. Operands are finite: callers look for NaN and infinity first.

const float_max: u32 = 0x7f7fffffu; // bits of the largest f32

// The value of `bits`, with every subnormal and minus zero as plus zero.
fn float_flush(bits: u32) -> u32 {
    return select(0u, bits, (bits & 0x7f800000u) != 0u);
}

// 2^23..2^24 for a normal number.
fn float_mantissa(bits: u32) -> u32 {
    return (bits & 0x7fffffu) | 0x800000u;
}

// Bits of mantissa * 2^(exponent - 150), mantissa in 2^23..=2^24, exponent >= 1; `sign` is the sign bit.
fn float_join(sign: u32, exponent: u32, mantissa: u32) -> u32 {
    // The leading one of the mantissa is added on top of the exponent, and so is the carry of a mantissa of 2^24.
    let magnitude = ((min(exponent, 255u) - 1u) << 23u) + mantissa;
    return sign | min(magnitude, float_max);
}

fn float_mul(a: u32, b: u32) -> u32 {
    let x = float_mantissa(a);
    let y = float_mantissa(b);
    // 24 x 24 bits from four 12 x 12 products, as u32 holds no more: x * y = high * 2^24 + rest, in 2^46..2^48.
    let low = (x & 0xfffu) * (y & 0xfffu);
    let middle = (x & 0xfffu) * (y >> 12u) + (x >> 12u) * (y & 0xfffu) + (low >> 12u);
    let high = (x >> 12u) * (y >> 12u) + (middle >> 12u);
    let rest = ((middle & 0xfffu) << 12u) | (low & 0xfffu);
    let carry = high >> 23u; // 24 bits stay: drop 23, or 24 when bit 47 is set
    let shift = 23u + carry;
    let kept = (high << (24u - shift)) | (rest >> shift);
    let lost = rest & ((1u << shift) - 1u);
    let half = 1u << (shift - 1u);
    let up = (lost > half) || ((lost == half) && ((kept & 1u) == 1u));
    let sign = (a ^ b) & 0x80000000u;
    let left = (a >> 23u) & 0xffu;
    let right = (b >> 23u) & 0xffu;
    let exponent = left + right + carry; // of the result, plus 127
    if left == 0u || right == 0u || exponent < 127u {
        return 0u;
    }
    if exponent == 127u {
        // Half a binade below the normal numbers, where f32 has one digit less: only all ones round up to normal.
        return select(0u, sign | 0x800000u, kept == 0xffffffu);
    }
    return float_join(sign, exponent - 127u, kept + select(0u, 1u, up));
}

fn float_add(a: u32, b: u32) -> u32 {
    let x = float_flush(a);
    let y = float_flush(b);
    let first_is_larger = (x & 0x7fffffffu) >= (y & 0x7fffffffu);
    let larger = select(y, x, first_is_larger);
    let smaller = select(x, y, first_is_larger);
    if (smaller & 0x7fffffffu) == 0u {
        return larger;
    }
    // Three digits more than a mantissa: two that a subtraction may bring back, and one for all that is below.
    let top = (larger >> 23u) & 0xffu;
    let shift = min(top - ((smaller >> 23u) & 0xffu), 27u);
    let addend = float_mantissa(smaller) << 3u;
    let below = select(0u, 1u, (addend & ((1u << shift) - 1u)) != 0u);
    let aligned = (addend >> shift) | below;
    let whole = float_mantissa(larger) << 3u;
    let sum = select(whole + aligned, whole - aligned, ((larger ^ smaller) >> 31u) == 1u);
    if sum == 0u {
        return 0u;
    }
    // The leading one to place 27: a carry is there already, everything else moves up, and zeros come in below.
    let lift = countLeadingZeros(sum) - 4u;
    let placed = sum << lift;
    if top + 1u <= lift {
        return 0u; // a difference below the normal numbers, which is exact
    }
    let kept = placed >> 4u;
    let lost = placed & 0xfu;
    let up = (lost > 8u) || ((lost == 8u) && ((kept & 1u) == 1u));
    return float_join(larger & 0x80000000u, top + 1u - lift, kept + select(0u, 1u, up));
}

fn float_sub(a: u32, b: u32) -> u32 {
    return float_add(a, b ^ 0x80000000u);
}

#!/usr/bin/env python3
"""Readable reference of the codecs f32, f16, bf16, fp8 (src/codec/cast.rs, fp8.rs, mean.rs), intsgd and ef.

Written to be read, not to be fast: exact fractions, one element at a time, and no bit trick that the crate has too.
Every backend must give the same bits as this file. It needs no package; ef comes from loco_reference.py.

    python3 cast_reference.py --out .       # write the golden vectors: f32.json, f16.json, ...
    python3 cast_reference.py --check .     # derive them again and compare
"""
import random
import struct
from fractions import Fraction

import command
import loco_reference as loco

NAN = 0x7FC00000


def f32_value(bits):
    """Exact value of the f32 with these bits; subnormals count as zero; None for NaN and infinity."""
    exponent, mantissa = bits >> 23 & 0xFF, bits & 0x7FFFFF
    if exponent == 255:
        return None
    if exponent == 0:
        return Fraction(0)
    value = (1 + Fraction(mantissa, 1 << 23)) * Fraction(2) ** (exponent - 127)
    return -value if bits >> 31 else value


def exponent_of(value):
    """e with 2^e <= |value| < 2^(e+1); value is not 0."""
    value = abs(value)
    e = value.numerator.bit_length() - value.denominator.bit_length()
    return e if Fraction(2) ** e <= value else e - 1


class Float:
    """A small float: bits of exponent and mantissa, whether the last exponent is kept for infinity and NaN."""

    def __init__(self, exponent_bits, mantissa_bits, infinity=True):
        self.m, self.infinity = mantissa_bits, infinity
        self.bias = (1 << exponent_bits - 1) - 1
        self.sign = 1 << exponent_bits + mantissa_bits
        self.largest = self.sign - (1 << mantissa_bits) - 1 if infinity else self.sign - 2

    def value(self, code):
        """Exact value of a finite code."""
        exponent, mantissa = (code & self.sign - 1) >> self.m, code & (1 << self.m) - 1
        if exponent == 0:
            value = Fraction(mantissa, 1 << self.m) * Fraction(2) ** (1 - self.bias)
        else:
            value = (1 + Fraction(mantissa, 1 << self.m)) * Fraction(2) ** (exponent - self.bias)
        return -value if code & self.sign else value

    def nearest(self, value):
        """(magnitude code, clamped?) of the number nearest to |value|, ties to even, clamped to the largest."""
        value = abs(value)
        if value == 0:
            return 0, False
        e = max(exponent_of(value), 1 - self.bias)
        steps = round(value / Fraction(2) ** (e - self.m))          # Python rounds ties to even
        if steps == 2 << self.m:
            e, steps = e + 1, 1 << self.m
        # Below the first power of two the steps are the code; above, each power has 2^m codes.
        code = steps + (e + self.bias - 1 << self.m)
        return min(code, self.largest), code > self.largest


F16, BF16, E4M3, E5M2 = Float(5, 10), Float(8, 7), Float(4, 3, infinity=False), Float(5, 2)


def to_f32_bits(value):
    """Bits of the f32 nearest to value, ties to even; 0 for anything below the normal numbers."""
    if abs(value) < Fraction(2) ** -126:
        return 0
    e = exponent_of(value)
    steps = round(abs(value) / Fraction(2) ** (e - 23))
    if steps == 1 << 24:
        e, steps = e + 1, 1 << 23
    return (1 << 31 if value < 0 else 0) | (e + 127 << 23) | steps - (1 << 23)


def mean_of_floats(values, weights):
    """f32 bits of the weighted mean; values are exact, normal in f32 or 0, or None for one that is not finite."""
    total = sum(weights)
    used = [(w, v) for w, v in zip(weights, values) if w > 0]
    if any(v is None for _, v in used):
        return NAN
    if all(v == 0 for _, v in used):
        return 0
    top = max(exponent_of(v) for _, v in used if v != 0)
    guard = 27 - total.bit_length()
    unit = Fraction(2) ** (top - 23 - guard)
    return to_f32_bits(sum(round(w * v / unit) for w, v in used) * unit / total)


def pack(codes, bits):
    """32 / bits codes to a word, the first lowest."""
    per_word = 32 // bits
    return [sum(code << bits * k for k, code in enumerate(codes[i:i + per_word])) for i in range(0, len(codes), per_word)]


def unpack(words, bits, n):
    return [words[i * bits // 32] >> i * bits % 32 & (1 << bits) - 1 for i in range(n)]


class F32Codec:
    config, scale_log2 = {}, None

    def encode(self, gradient):
        return list(gradient), sum(f32_value(b) is None for b in gradient), 0

    def mean(self, packets, weights, n):
        return [mean_of_floats([f32_value(p[i]) for p in packets], weights) for i in range(n)]


class HalfCodec:
    scale_log2 = None

    config = {}

    def __init__(self, form):
        self.form = form

    def encode(self, gradient):
        codes, nonfinite, saturated = [], 0, 0
        for bits in gradient:
            value = f32_value(bits)
            if value is None:
                nonfinite += 1
                codes.append(0)
                continue
            code, clamped = self.form.nearest(value)
            saturated += clamped
            codes.append(code | (self.form.sign if bits >> 31 else 0))
        return pack(codes, 16), nonfinite, saturated

    def mean(self, packets, weights, n):
        values = [[self.form.value(c) for c in unpack(p, 16, n)] for p in packets]
        return [mean_of_floats([v[i] for v in values], weights) for i in range(n)]


class Fp8Codec:
    scale_log2 = None

    def __init__(self, exponent_bits, block):
        self.config = {"exponent_bits": exponent_bits, "block": block}
        self.form, self.last = (E4M3, 8) if exponent_bits == 4 else (E5M2, 15)
        self.block = block

    def encode(self, gradient):
        words, nonfinite, saturated = [], 0, 0
        for start in range(0, len(gradient), 4 * self.block):
            head, codes = [], []
            unit = gradient[start:start + 4 * self.block]
            for b in range(0, len(unit), self.block):
                values = [f32_value(bits) for bits in unit[b:b + self.block]]
                nonfinite += sum(v is None for v in values)
                values = [v or Fraction(0) for v in values]
                largest = max(map(abs, values))
                if largest == 0:
                    head.append(0)
                    codes += [0] * len(values)
                    continue
                top = exponent_of(largest)
                if top < 127 and self.form.nearest(largest / Fraction(2) ** (top - self.last))[1]:
                    top += 1
                head.append(top + 127)
                for value in values:
                    code, clamped = self.form.nearest(value / Fraction(2) ** (top - self.last))
                    saturated += clamped
                    codes.append(code | (self.form.sign if value < 0 and code else 0))
            words += pack(head, 8) + pack(codes, 8)
        return words, nonfinite, saturated

    def values(self, words, n):
        out, unit = [], 1 + self.block
        for at in range(n):
            base, inside = at // (4 * self.block) * unit, at % (4 * self.block)
            head = words[base] >> 8 * (inside // self.block) & 0xFF
            code = words[base + 1 + inside // 4] >> 8 * (inside % 4) & 0xFF
            value = self.form.value(code) * Fraction(2) ** (head - 127 - self.last) if head else Fraction(0)
            out.append(value if abs(value) >= Fraction(2) ** -126 else Fraction(0))
        return out

    def mean(self, packets, weights, n):
        values = [self.values(p, n) for p in packets]
        return [mean_of_floats([v[i] for v in values], weights) for i in range(n)]


class IntSgdCodec:
    def __init__(self, scale_log2):
        self.scale_log2, self.config = scale_log2, {"scale_log2": scale_log2}

    def encode(self, gradient):
        codes, nonfinite, saturated = [], 0, 0
        for bits in gradient:
            value = f32_value(bits)
            nonfinite += value is None
            code = round((value or 0) * Fraction(2) ** self.scale_log2)
            saturated += abs(code) > 127
            codes.append(max(-127, min(127, code)) & 0xFF)
        return pack(codes, 8), nonfinite, saturated

    def mean(self, packets, weights, n):
        scale = f32_value(loco.f32_bits(2.0 ** -self.scale_log2 / sum(weights)))
        out = []
        codes = [[c - 256 if c > 127 else c for c in unpack(p, 8, n)] for p in packets]
        for i in range(n):
            total = sum(w * c[i] for w, c in zip(weights, codes))
            out.append(to_f32_bits(f32_value(to_f32_bits(Fraction(total))) * scale))
        return out


# ---------------------------------------------------------------- golden vectors

def gradient(rng, n, codec, nonfinite_rate):
    """f32 bit patterns aimed at the places where implementations differ."""
    special = [0, 0x80000000, 1, 0x807FFFFF, 0x00800000, 0x00800001, 0x80FFFFFF, 0x7F7FFFFF, 0xFF7FFFFF]
    bad = [0x7FC00000, 0x7F800000, 0xFF800000, 0x7F800001, 0xFFFFFFFF]
    form = getattr(codec, "form", None)
    center = rng.choice((-120, -20, 0, 0, 0, 14, 100)) if codec.scale_log2 is None else -codec.scale_log2
    out = []
    for _ in range(n):
        kind = rng.random()
        if rng.random() < nonfinite_rate:
            out.append(rng.choice(bad))
        elif kind < 0.3:
            out.append(loco.f32_bits(rng.gauss(0, 1) * 2.0 ** center))
        elif kind < 0.6 and form:                                # on, and one ULP around, a tie of the format
            code = rng.randrange(form.largest)
            tie = (form.value(code) + form.value(code + 1)) / 2
            if form in (E4M3, E5M2):
                tie *= Fraction(2) ** max(-110, min(100, center))
            tie = to_f32_bits(tie * rng.choice((-1, 1)))
            out.append((tie + rng.choice((-1, 0, 0, 1))) & 0xFFFFFFFF)
        elif kind < 0.6 and codec.scale_log2 is not None:
            tie = loco.f32_bits((rng.randint(-130, 129) + 0.5) * 2.0 ** -codec.scale_log2)
            out.append((tie + rng.choice((-1, 0, 0, 1))) & 0xFFFFFFFF)
        elif kind < 0.9:
            near = max(1, min(254, center + 127 + rng.randint(-12, 4)))
            out.append(rng.getrandbits(1) << 31 | near << 23 | rng.getrandbits(23))
        elif kind < 0.94:
            out.append(rng.getrandbits(1) << 31 | rng.randint(0, 254) << 23 | rng.getrandbits(23))
        elif kind < 0.97 or not form:
            out.append(rng.choice(special))
        else:
            out.append(0)
    return [b if nonfinite_rate or b >> 23 & 0xFF != 255 else 0 for b in out]


def case(rng, codec, n, world_size, nonfinite_rate=0.0, gradients=None):
    most = rng.choice((1, 9, 1000, (1 << 21) // world_size - 1))
    weights = [rng.randint(1, most) for _ in range(world_size)]
    if world_size > 2:
        weights[rng.randrange(world_size)] = 0
    gradients = gradients or [gradient(rng, n, codec, nonfinite_rate) for _ in range(world_size)]
    ranks, packets = [], []
    for bits in gradients:
        words, nonfinite, saturated = codec.encode(bits)
        packets.append(words)
        step = {"step": 1, "gradient_bits": bits, "words": words, "nonfinite": nonfinite, "saturated": saturated}
        ranks.append({"steps": [step]})
    averages = [{"step": 1, "mean_bits": codec.mean(packets, weights, n)}]
    return {"n": n, "config": codec.config, "weights": weights, "ranks": ranks, "averages": averages}


def ef_case(rng, n, world_size, scale_log2, residual_scale_log2):
    """Classic error feedback: loco with decay 0 and no reset."""
    cfg = loco.Config(scale_log2, residual_scale_log2, decay=0, reset_every=0)
    made = loco.case(rng, n, cfg, world_size, 5, rng.choice((1, 511)), 0.02)
    made["config"] = {"scale_log2": scale_log2, "residual_scale_log2": residual_scale_log2}
    return made


def cases_of(name, rng):
    sizes = ((1, 1), (7, 2), (8, 3), (9, 5), (65, 4))
    if name == "ef":
        configs = ((19, 4), (0, 2), (-64, 0), (64, 4))
        return [ef_case(rng, n, world_size, *config) for config in configs for n, world_size in ((9, 1), (65, 3))]
    if name == "fp8":
        cases = []
        for exponent_bits in (4, 5):
            for block, lengths in ((32, (1, 31, 33, 128, 131)), (40, (9, 161)), (128, (513, 130))):
                codec = Fp8Codec(exponent_bits, block)
                cases += [case(rng, codec, n, rng.choice((1, 2, 3, 4))) for n in lengths]
                cases.append(case(rng, codec, 65, 2, 0.1))
        return cases
    codecs = {
        "f32": [F32Codec()], "f16": [HalfCodec(F16)], "bf16": [HalfCodec(BF16)],
        "intsgd": [IntSgdCodec(scale_log2) for scale_log2 in (22, 0, -64, 64)],
    }[name]
    cases = []
    for codec in codecs:
        cases += [case(rng, codec, n, world_size) for n, world_size in sizes]
        cases.append(case(rng, codec, 33, 2, 0.1))
    if name == "f32":
        # What a world of one gets back: subnormals and minus zero as plus zero, all else as it was.
        edges = [0, 0x80000000, 1, 0x807FFFFF, 0x00800000, 0x80800001, 0x7F7FFFFF, 0xFF7FFFFF, 0x3F800000]
        cases.append(case(rng, codecs[0], len(edges), 1, gradients=[edges]))
    return cases


def vectors(seed):
    def file(name):
        rng = random.Random(f"{name} {seed}")
        return {"codec": name, "spec": "CODECS.md section 3", "seed": seed, "cases": cases_of(name, rng)}
    return [file(name) for name in ("f32", "f16", "bf16", "fp8", "ef", "intsgd")]


if __name__ == "__main__":
    command.run(__doc__, vectors, 20261129)

#!/usr/bin/env python3
"""Readable reference of the ef21 codec (src/codec/ef21.rs): 4-bit codes of what changed, tracked on both ends.

Written to be read, not to be fast: exact fractions, rounded to f32 where the codec does it, one element at a time.
Every backend must give the same bits as this file. It needs no package.

    python3 ef21_reference.py --out .       # write the golden vectors
    python3 ef21_reference.py --check .     # derive them again and compare
"""
import random
import struct
from fractions import Fraction

import command

BLOCKS = 4                  # blocks of one unit, as many as scale bytes in a word
F32_MAX = Fraction((1 << 24) - 1) * Fraction(2) ** 104
F32_LEAST = Fraction(1, 1 << 126)


def power(exponent):
    return Fraction(2) ** exponent


def exponent_of(value):
    """floor(log2(value)) of a positive fraction."""
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    return exponent if power(exponent) <= value else exponent - 1


def to_f32(value):
    """Rounded to f32, ties to even; below the normal numbers 0, above the largest the largest."""
    if value == 0:
        return Fraction(0)
    step = power(max(exponent_of(abs(value)), -126) - 23)
    rounded = round(value / step) * step
    if abs(rounded) < F32_LEAST:
        return Fraction(0)
    return max(-F32_MAX, min(F32_MAX, rounded))


def bits_of(value):
    """The bits of a fraction that is an f32."""
    if value == 0:
        return 0
    exponent = exponent_of(abs(value))
    mantissa = abs(value) / power(exponent - 23)
    assert mantissa.denominator == 1 and exponent >= -126
    return (value < 0) << 31 | (exponent + 127) << 23 | int(mantissa) - (1 << 23)


def value_of(bits):
    """A finite f32 as a fraction; subnormals count as zero."""
    exponent = (bits >> 23) & 0xFF
    if exponent == 0:
        return Fraction(0)
    value = ((bits & 0x7FFFFF) | 0x800000) * power(exponent - 150)
    return -value if bits >> 31 else value


def is_finite_bits(bits):
    return (bits >> 23) & 0xFF != 0xFF


def add(a, b):
    return to_f32(a + b)


def sub(a, b):
    return to_f32(a - b)


def mul(a, b):
    return to_f32(a * b)


class Config:
    def __init__(self, block=64, base_log2=-50, momentum_log2=0):
        """block: elements that share a scale, a multiple of 8 in 32..1024
        base_log2: what the exponent of a scale byte counts from
        momentum_log2: k of the weight 2**-k of a new gradient in both averages; 0 = no averages
        """
        self.block, self.base_log2, self.momentum_log2 = block, base_log2, momentum_log2

    def as_dict(self):
        return dict(vars(self))


def scale_value(byte, cfg):
    return Fraction(0) if byte == 0 else (4 + byte % 4) * power(byte // 4 + cfg.base_log2)


def quantize(values, cfg):
    """-> (codes, scale byte, clamped codes): 4-bit codes of a block, as block4 has them."""
    largest = max((abs(v) for v in values), default=0)
    if largest == 0:
        return [0] * len(values), 0, 0
    unit = power(exponent_of(largest) - 20)
    h = [round(v / unit) for v in values]
    target = max(abs(v) for v in h) / Fraction(15, 2)
    first = exponent_of(target) - 3
    candidates = [((4 + m) * power(e), e, m) for e in range(first, first + 5) for m in range(4)]
    scale, e, m = min(candidates, key=lambda c: (abs(c[0] - target), -c[0]))
    byte = max(0, min(255, 4 * (e + exponent_of(unit) - cfg.base_log2) + m))
    if byte == 0:
        return [0] * len(values), 0, 0
    # A block far above the largest scale has all its codes at the clamp, whatever it is divided by.
    step = max(Fraction(4), scale_value(byte, cfg) / unit)
    rounded = [round(v / step) for v in h]
    codes = [max(-8, min(7, q)) for q in rounded]
    return codes, byte, sum(c != q for c, q in zip(codes, rounded))


class Encoder:
    """What one rank keeps: an f32 per element, and two more with momentum."""

    def __init__(self, n):
        self.tracked, self.v, self.u = ([Fraction(0)] * n for _ in range(3))

    def words(self, cfg):
        unit = BLOCKS * cfg.block
        out = []
        for start in range(0, len(self.tracked), unit):
            for plane in (self.tracked, self.v, self.u)[:3 if cfg.momentum_log2 else 1]:
                part = [bits_of(v) for v in plane[start:start + unit]]
                out += part + [0] * (unit - len(part))
        return out

    def encode(self, gradient_bits, cfg):
        """Returns (words, number of non-finite elements, number of clamped codes)."""
        n = len(gradient_bits)
        finite = [is_finite_bits(b) for b in gradient_bits]
        difference = []
        for i, bits in enumerate(gradient_bits):
            if not finite[i]:
                difference.append(Fraction(0))
                continue
            target = value_of(bits)
            if cfg.momentum_log2:
                eta = power(-cfg.momentum_log2)
                self.v[i] = add(self.v[i], sub(mul(target, eta), mul(self.v[i], eta)))
                self.u[i] = add(self.u[i], sub(mul(self.v[i], eta), mul(self.u[i], eta)))
                target = self.u[i]
            difference.append(sub(target, self.tracked[i]))
        packet, saturated, unit = [], 0, BLOCKS * cfg.block
        for start in range(0, n, unit):
            scales, codes = [], []
            for k in range(start, min(start + unit, n), cfg.block):
                block, scale, clamped = quantize(difference[k:min(k + cfg.block, n)], cfg)
                scales.append(scale)
                codes += block
                saturated += clamped
            packet.append(sum(scale << (8 * k) for k, scale in enumerate(scales)))
            for k in range(0, len(codes), 8):
                packet.append(sum((code & 15) << (4 * j) for j, code in enumerate(codes[k:k + 8])))
        follow(self.tracked, packet, cfg)
        return packet, n - sum(finite), saturated


def follow(tracked, packet, cfg):
    """What both ends do with a packet."""
    unit = BLOCKS * cfg.block
    for i in range(len(tracked)):
        at, place = i // unit * (1 + unit // 8), i % unit
        scale = (packet[at] >> (8 * (place // cfg.block))) & 0xFF
        code = (packet[at + 1 + place // 8] >> (4 * (place % 8))) & 15
        tracked[i] = add(tracked[i], (code - 16 if code & 8 else code) * scale_value(scale, cfg))


def average(tracked, packets, weights, cfg):
    """Follows every packet, also one of weight 0; then the weighted mean in rank order, as f32 bits."""
    total = sum(weights)
    mean = [Fraction(0)] * len(tracked[0])
    for values, packet, weight in zip(tracked, packets, weights):
        follow(values, packet, cfg)
        if weight == 0:
            continue
        factor = Fraction(1) if weight == total else mul(Fraction(weight), to_f32(Fraction(1, total)))
        mean = [add(sum_, mul(value, factor)) for sum_, value in zip(mean, values)]
    return [bits_of(value) for value in mean]


# ---------------------------------------------------------------- golden vectors

SPECIAL = [0x00000000, 0x80000000, 0x00000001, 0x807FFFFF, 0x00800000, 0x80800001, 0x7F7FFFFF, 0xFF7FFFFF]
NONFINITE = [0x7FC00000, 0x7F800000, 0xFF800000, 0x7F800001, 0xFFFFFFFF]


def f32_bits(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


def gradient(rng, n, kind, unit):
    out = []
    for i in range(n):
        if kind == "normal":
            out.append(f32_bits(rng.gauss(0.5, 1) * unit))
        elif kind == "few digits":                          # ties of codes and of scales
            out.append(f32_bits(rng.choice((-1, 1)) * rng.randint(0, 30) * unit))
        elif kind == "huge":
            out.append(f32_bits(rng.gauss(0, 1) * unit * (1000.0 if i % 37 == 5 else 1e-3)))
        elif kind == "special":
            out.append(rng.choice(SPECIAL))
        elif kind == "bits":
            bits = rng.getrandbits(32)
            out.append(bits if is_finite_bits(bits) else 0)
        elif kind == "small":                               # around the smallest normal numbers
            out.append(rng.getrandbits(1) << 31 | rng.randint(0, 3) << 23 | rng.getrandbits(23))
        elif kind == "nonfinite":
            out.append(rng.choice(NONFINITE) if rng.random() < 0.1 else f32_bits(rng.gauss(0, 1) * unit))
        else:
            assert kind == "zero"
            out.append(rng.choice((0, 0x80000000)))
    return out


def case(rng, n, cfg, world_size, kinds):
    encoders = [Encoder(n) for _ in range(world_size)]
    tracked = [[Fraction(0)] * n for _ in range(world_size)]
    weights = [rng.randint(0, 9) for _ in range(world_size)]
    weights[rng.randrange(world_size)] += 1
    ranks = [{"steps": []} for _ in range(world_size)]
    unit = 2.0 ** rng.randint(-30, -5)
    averages = []
    for step, kind in enumerate(kinds, 1):
        packets = []
        for rank, encoder in zip(ranks, encoders):
            bits = gradient(rng, n, kind, unit)
            words, nonfinite, saturated = encoder.encode(bits, cfg)
            packets.append(words)
            rank["steps"].append({
                "step": step, "gradient_bits": bits, "words": words, "state": encoder.words(cfg),
                "nonfinite": nonfinite, "saturated": saturated,
            })
        averages.append({"step": step, "mean_bits": average(tracked, packets, weights, cfg)})
        assert tracked == [encoder.tracked for encoder in encoders]
    return {"n": n, "config": cfg.as_dict(), "weights": weights, "ranks": ranks, "averages": averages}


def vectors(seed):
    rng = random.Random(seed)
    kinds = ["normal", "few digits", "huge", "special", "bits", "small", "nonfinite", "zero"]
    cases = []
    for cfg in (Config(block=32), Config(block=40, momentum_log2=1), Config(block=32, base_log2=-80),
                Config(block=32, base_log2=55, momentum_log2=16), Config(block=32, base_log2=-20, momentum_log2=3)):
        for n, world_size in ((1, 1), (7, 2), (9, 3), (65, 2), (4 * cfg.block + 33, 1)):
            cases.append(case(rng, n, cfg, world_size, rng.sample(kinds, 3)))
    for kind in kinds:
        cases.append(case(rng, 33, Config(block=32), 3, [kind] * 3))
        cases.append(case(rng, 33, Config(block=32, momentum_log2=2), 1, [kind] * 3))
    cases.append(case(rng, 257, Config(), 1, ["normal", "huge", "few digits"]))
    return [{"codec": "ef21", "spec": "CODECS.md section 3", "seed": seed, "cases": cases}]


if __name__ == "__main__":
    command.run(__doc__, vectors, 20261129)

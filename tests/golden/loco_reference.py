#!/usr/bin/env python3
"""Readable reference of the fixed-point LoCo codec (src/codec/loco.rs).

Written to be read, not to be fast: plain Python integers, one element at a time.
Every backend must give the same bits as this file. It needs no package.

    python3 loco_reference.py --out .       # write the golden vectors
    python3 loco_reference.py --check .     # derive them again and compare
"""
import random
import struct

import command

FRACTION_BITS = 12          # fixed-point digits below one 4-bit code
FIXED_MAX = 1 << 18         # |X| is clamped here: 64 codes
CODE_MIN, CODE_MAX = -8, 7
BYTE_MIN, BYTE_MAX = -128, 127


def f32_bits(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


def f32_from_bits(b):
    return struct.unpack("<f", struct.pack("<I", b))[0]


def is_finite_bits(b):
    return (b >> 23) & 0xFF != 0xFF


def clamp(v, lo, hi):
    return max(lo, min(hi, v))


def rne_shift(v, n):
    """v / 2**n rounded to the nearest integer, ties to even (v may be negative)."""
    if n == 0:
        return v
    return (v + (1 << (n - 1)) - 1 + ((v >> n) & 1)) >> n


def fixed(bits, scale_log2):
    """f32 bits -> fixed point in units of 2**-(scale_log2 + FRACTION_BITS), ties to even.

    Subnormal inputs count as zero, so that a device that flushes them agrees.
    """
    exponent = (bits >> 23) & 0xFF
    if exponent == 0:
        return 0
    mantissa = (bits & 0x7FFFFF) | 0x800000
    shift = exponent - 150 + scale_log2 + FRACTION_BITS      # value = mantissa * 2**shift
    if shift >= 0:
        magnitude = FIXED_MAX if shift > 31 else min(mantissa << shift, FIXED_MAX)
    elif shift <= -26:
        magnitude = 0
    else:
        magnitude = min(rne_shift(mantissa, -shift), FIXED_MAX)
    return -magnitude if bits >> 31 else magnitude


class Config:
    def __init__(self, scale_log2=19, residual_scale_log2=4, decay=205, reset_every=512):
        """scale s = 2**scale_log2 codes per gradient unit,     -64 <= scale_log2 <= 64
        residual scale s_e = s * 2**residual_scale_log2,       0 <= residual_scale_log2 <= 6
        decay: weight of the OLD residual in 1/256,             0 <= decay <= 255
               and (256 - decay) << residual_scale_log2 <= 4096 (so that i32 never overflows)
        reset_every: the residual is zeroed instead of updated on every reset_every-th step; 0 = never
        """
        assert -64 <= scale_log2 <= 64
        assert 0 <= residual_scale_log2 <= 6
        assert 0 <= decay <= 255 and (256 - decay) << residual_scale_log2 <= 4096
        assert reset_every >= 0
        self.scale_log2, self.residual_scale_log2 = scale_log2, residual_scale_log2
        self.decay, self.reset_every = decay, reset_every

    def as_dict(self):
        return dict(vars(self))


def encode_element(bits, residual, cfg, reset):
    """One gradient element (f32 bits) and its stored residual -> (code, new residual)."""
    if not is_finite_bits(bits):
        return 0, 0                                        # counted by the caller, never hidden
    h = fixed(bits, cfg.scale_log2) + (residual << (FRACTION_BITS - cfg.residual_scale_log2))
    code = clamp(rne_shift(h, FRACTION_BITS), CODE_MIN, CODE_MAX)
    if reset:
        return code, 0
    lost = h - (code << FRACTION_BITS)
    v = cfg.decay * (residual << FRACTION_BITS) + (256 - cfg.decay) * (lost << cfg.residual_scale_log2)
    assert -(1 << 31) <= v < (1 << 31)
    return code, clamp(rne_shift(v, FRACTION_BITS + 8), BYTE_MIN, BYTE_MAX)


def pack_codes(codes):
    """8 codes per little-endian u32, element k in bits 4k..4k+3; a short last word is zero-filled."""
    words = []
    for i in range(0, len(codes), 8):
        word = 0
        for k, code in enumerate(codes[i:i + 8]):
            word |= (code & 0xF) << (4 * k)
        words.append(word)
    return words


def encode(gradient_bits, residuals, cfg, step):
    """step counts from 1. Returns (words, new residuals, number of non-finite elements)."""
    reset = cfg.reset_every != 0 and step % cfg.reset_every == 0
    pairs = [encode_element(b, e, cfg, reset) for b, e in zip(gradient_bits, residuals)]
    nonfinite = sum(not is_finite_bits(b) for b in gradient_bits)
    return pack_codes([p[0] for p in pairs]), [p[1] for p in pairs], nonfinite


def unpack_codes(words, n):
    out = []
    for i in range(n):
        code = (words[i // 8] >> (4 * (i % 8))) & 0xF
        out.append(code - 16 if code & 8 else code)
    return out


def to_f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def average(packets, weights, n, cfg):
    """Weighted mean of world_size packets, f32 bits. weights are positive integers (samples per rank).

    sum_j weights[j] * code_j is an exact integer (|.| < 2**24 is required, so it is exact in f32 too);
    one f32 multiply by the f32 nearest to 1 / (sum(weights) * s) follows.
    """
    total = sum(weights)
    assert 8 * total < 1 << 24
    scale = to_f32(2.0 ** -cfg.scale_log2 / total)
    sums = [0] * n
    for words, weight in zip(packets, weights):
        for i, code in enumerate(unpack_codes(words, n)):
            sums[i] += weight * code
    return [f32_bits(to_f32(float(s) * scale)) if s else 0 for s in sums]


# ---------------------------------------------------------------- golden vectors

def gradient(rng, n, cfg):
    """f32 bit patterns aimed at the places where implementations differ."""
    unit = 2.0 ** -cfg.scale_log2
    special = [0x00000000, 0x80000000, 0x00000001, 0x807FFFFF, 0x00800000, 0x7F7FFFFF, 0xFF7FFFFF]
    out = []
    for _ in range(n):
        kind = rng.random()
        if kind < 0.55:
            out.append(f32_bits(rng.gauss(0, 2.5) * unit))
        elif kind < 0.85:                                   # on, and one ULP around, a rounding tie
            tie = f32_bits((rng.randint(-10, 9) + 0.5) * unit)
            out.append((tie + rng.choice((-1, 0, 0, 1))) & 0xFFFFFFFF)
        elif kind < 0.93:
            out.append(f32_bits(rng.uniform(-90, 90) * unit))
        else:
            out.append(rng.choice(special))
    return out


def case(rng, n, cfg, world_size, steps, first_step, nonfinite_rate):
    ranks = []
    residuals = [[0] * n for _ in range(world_size)]
    weights = [rng.randint(1, 9) for _ in range(world_size)]
    averages = []
    for rank in range(world_size):
        ranks.append({"steps": []})
    for step in range(first_step, first_step + steps):
        packets = []
        for rank in range(world_size):
            g = gradient(rng, n, cfg)
            for i in range(n):
                if rng.random() < nonfinite_rate:
                    g[i] = rng.choice((0x7FC00000, 0x7F800000, 0xFF800000, 0x7F800001, 0xFFFFFFFF))
            words, residuals[rank], bad = encode(g, residuals[rank], cfg, step)
            packets.append(words)
            ranks[rank]["steps"].append({
                "step": step,
                "gradient_bits": g,
                "words": words,
                "residual": list(residuals[rank]),
                "nonfinite": bad,
            })
        averages.append({"step": step, "mean_bits": average(packets, weights, n, cfg)})
    return {"n": n, "config": cfg.as_dict(), "weights": weights, "ranks": ranks, "averages": averages}


def vectors(seed):
    rng = random.Random(seed)
    cases = []
    configs = [
        Config(),
        Config(scale_log2=17, residual_scale_log2=2, decay=0, reset_every=0),
        Config(scale_log2=0, residual_scale_log2=4, decay=240, reset_every=3),
        Config(scale_log2=-3, residual_scale_log2=6, decay=192, reset_every=2),
        Config(scale_log2=30, residual_scale_log2=0, decay=128, reset_every=5),
    ]
    for cfg in configs:
        for n, world_size in ((1, 1), (7, 2), (8, 3), (9, 5), (65, 3), (257, 1)):
            cases.append(case(rng, n, cfg, world_size, 4, rng.choice((1, 511)), 0.0))
    cases.append(case(rng, 129, Config(), 2, 3, 1, 0.1))
    return [{"codec": "loco", "spec": "CODECS.md section 1", "seed": seed, "cases": cases}]


if __name__ == "__main__":
    command.run(__doc__, vectors, 20261129)

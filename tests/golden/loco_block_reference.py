#!/usr/bin/env python3
"""Readable reference of the codecs with one scale per block (src/codec/loco_block.rs, src/codec/block.rs).

Written to be read, not to be fast: exact fractions, one element at a time, every rule in the words of the documentation.
It needs no package. Golden vectors:

    python3 loco_block_reference.py --out .       # write loco_block.json, block8.json and block4.json
    python3 loco_block_reference.py --check .     # derive them again and compare
"""
import random
import struct
from fractions import Fraction

import command

BLOCKS = 4                                                  # of a unit: their scale bytes fill one word
DIVISOR = {2: Fraction(2), 4: Fraction(15, 2), 8: Fraction(128)}


def bits_of(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


def is_finite(bits):
    return (bits >> 23) & 0xFF != 0xFF


def value_of(bits):
    """The exact value of a finite f32; subnormals count as zero."""
    exponent = (bits >> 23) & 0xFF
    if exponent == 0 or exponent == 0xFF:
        return Fraction(0)
    magnitude = Fraction((bits & 0x7FFFFF) | 0x800000) * Fraction(2) ** (exponent - 150)
    return -magnitude if bits >> 31 else magnitude


def clamp(v, low, high):
    return max(low, min(high, v))


def below(x):
    """The smallest e with x < 2**e, of a positive power of two times an integer below 2**24."""
    e = -160
    while x >= Fraction(2) ** e:
        e += 1
    return e


class Scale:
    """(4 + m) * 2**e, e relative to 2**0."""

    def __init__(self, m, e):
        self.m, self.e = m, e

    def value(self):
        return (4 + self.m) * Fraction(2) ** self.e


def nearest_scale(x, unit_log2):
    """The scale nearest to x > 0, the larger one halfway between two; none below four units."""
    e = unit_log2
    while 8 * Fraction(2) ** e <= x:
        e += 1
    candidates = [Scale(m, e) for m in range(4)] + [Scale(0, e + 1)]
    return min(candidates, key=lambda scale: (abs(scale.value() - x), -scale.value()))


def next_scale(x, unit_log2):
    """The smallest scale above x > 0; none below four units."""
    scale = Scale(0, unit_log2)
    while scale.value() <= x:
        scale = Scale(scale.m + 1, scale.e) if scale.m < 3 else Scale(0, scale.e + 1)
    return scale


def to_byte(scale, base_log2):
    byte = 4 * (scale.e - base_log2) + scale.m
    return 0 if byte < 1 else min(byte, 255)


def from_byte(byte, base_log2, unit_log2):
    """What arithmetic takes a scale byte for: never less than four units."""
    scale = Scale(byte % 4, byte // 4 + base_log2)
    return scale if scale.e >= unit_log2 else Scale(0, unit_log2)


def quantize(x, unit_log2, bits, base_log2):
    """Exact numbers into (scale byte, codes, number of clamped codes, what was lost)."""
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    largest = max(map(abs, x))
    choose = next_scale if bits == 8 else nearest_scale
    byte = to_byte(choose(largest / DIVISOR[bits], unit_log2), base_log2) if largest else 0
    if byte == 0:
        return 0, [0] * len(x), 0, list(x)
    step = from_byte(byte, base_log2, unit_log2).value()
    rounded = [round(v / step) for v in x]                  # of a Fraction: ties to even
    codes = [clamp(r, low, high) for r in rounded]
    clamped = sum(r != c for r, c in zip(rounded, codes))
    return byte, codes, clamped, [v - c * step for v, c in zip(x, codes)]


def encode_block(gradient, residual_byte, residual, cfg, reset):
    """f32 bits and the stored residual of one block -> (byte, codes, clamped, new residual byte, new residual)."""
    base = cfg["base_log2"]
    old_scale = Fraction(0) if residual_byte == 0 else Scale(residual_byte % 4, residual_byte // 4 + base - 8).value()
    # No finite gradient reaches 2**top, nor does a residual: 128 * 7 * 2**e < 2**(10 + e).
    tops = [below(abs(value_of(b))) for b in gradient if value_of(b)]
    if residual_byte:
        tops.append(residual_byte // 4 + base - 8 + 10)
    if not tops:
        return 0, [0] * len(gradient), 0, 0, [0] * len(gradient)
    unit_log2 = max(tops) - 21
    unit = Fraction(2) ** unit_log2
    in_units = lambda v: round(v / unit) * unit
    old = [in_units(r * old_scale) if is_finite(b) else Fraction(0) for r, b in zip(residual, gradient)]
    h = [in_units(value_of(b)) + o for b, o in zip(gradient, old)]
    byte, codes, clamped, lost = quantize(h, unit_log2, cfg["bits"], base)
    if "decay" not in cfg or reset:
        return byte, codes, clamped, 0, [0] * len(gradient)
    weight = Fraction(cfg["decay"], 256)
    kept = [weight * o + (1 - weight) * l for o, l in zip(old, lost)]
    kept_byte, kept_codes, _, _ = quantize(kept, unit_log2 - 8, 8, base - 8)
    return byte, codes, clamped, kept_byte, kept_codes


def pack(codes, bits):
    """32 / bits codes per word, the first in the lowest bits."""
    words = []
    for i in range(0, len(codes), 32 // bits):
        word = 0
        for k, code in enumerate(codes[i:i + 32 // bits]):
            word |= (code % (1 << bits)) << (bits * k)
        words.append(word)
    return words


def encode(gradient, state, cfg, step):
    """state: a list of units, each ([4 residual bytes], [residuals]). Returns (words, saturated); updates state."""
    block, unit = cfg["block"], BLOCKS * cfg["block"]
    reset = cfg.get("reset_every", 0) != 0 and step % cfg["reset_every"] == 0
    words, saturated = [], 0
    for number, start in enumerate(range(0, len(gradient), unit)):
        here = gradient[start:start + unit]
        padded = here + [0] * (unit - len(here))
        residual_bytes, residuals = state[number]
        scale_bytes, codes = [], []
        for k in range(BLOCKS):
            part = slice(k * block, (k + 1) * block)
            byte, block_codes, clamped, residual_bytes[k], residuals[part] = encode_block(
                padded[part], residual_bytes[k], residuals[part], cfg, reset)
            scale_bytes.append(byte)
            codes += block_codes
            saturated += clamped
        words += pack(scale_bytes, 8) + pack(codes[:len(here)], cfg["bits"])
    return words, saturated


def unpack(words, n, cfg):
    """(scale byte, code) of each element."""
    block, unit, bits = cfg["block"], BLOCKS * cfg["block"], cfg["bits"]
    unit_words = 1 + unit * bits // 32
    out = []
    for i in range(n):
        number, place = divmod(i, unit)
        first = number * unit_words
        byte = (words[first] >> (8 * (place // block))) & 0xFF
        code = (words[first + 1 + place * bits // 32] >> (place * bits % 32)) % (1 << bits)
        out.append((byte, code - (1 << bits) if code >> (bits - 1) else code))
    return out


def to_f32(x):
    """The f32 nearest to a fraction in the normal range, ties to even, as a fraction."""
    if x == 0:
        return Fraction(0)
    e = 0
    while abs(x) >= Fraction(2) ** e:
        e += 1
    while abs(x) < Fraction(2) ** (e - 1):
        e -= 1
    ulp = Fraction(2) ** (e - 24)
    return round(x / ulp) * ulp


def average(packets, weights, n, cfg):
    """f32 bits of the weighted mean."""
    total = sum(weights)
    # As many places as leave the largest possible sum below 2**31.
    headroom = 0
    while (total * 7 * (1 << (cfg["bits"] - 1))) << (headroom + 1) < 1 << 31:
        headroom += 1
    used = [(unpack(packet, n, cfg), weight) for packet, weight in zip(packets, weights) if weight]
    mean = []
    for i in range(n):
        terms = [(elements[i], weight) for elements, weight in used if elements[i][0] != 0]
        largest = max((byte // 4 for (byte, _), _ in terms), default=0)
        total_sum = 0
        for (byte, code), weight in terms:
            product = weight * code * (4 + byte % 4) << headroom
            total_sum += round(Fraction(product, 1 << (largest - byte // 4)))
        factor = to_f32(Fraction(1, total)) * Fraction(2) ** (largest + cfg["base_log2"] - headroom)
        mean.append(bits_of(float(to_f32(to_f32(Fraction(total_sum)) * factor))))
    return mean


def gradient(rng, n):
    """Runs that share a magnitude; ties of quotients and thresholds, and now and then anything at all."""
    out = []
    while len(out) < n:
        unit = 2.0 ** (rng.randrange(-20, 4) if rng.random() < 0.7 else rng.randrange(-120, 110))
        kind = rng.randrange(6)
        for _ in range(rng.randrange(8, 40)):
            value = (0.0, rng.randrange(-1, 2), rng.randrange(-255, 256) / 2, rng.randrange(-15, 16) / 2,
                     rng.gauss(0, 1), rng.gauss(0, 1) ** 3)[kind]
            draw = rng.randrange(400)
            if draw == 0:
                out.append(rng.getrandbits(32))
            elif draw == 1:
                out.append(0x7F800000 | rng.getrandbits(23) | rng.getrandbits(1) << 31)
            elif draw == 2:
                out.append(rng.choice((0x80000000, 1, 0x807FFFFF, 0x00800000, 0x7F7FFFFF, 0xFF7FFFFF)))
            else:
                out.append(bits_of(value * unit))
    return out[:n]


def case(rng, n, cfg, world_size, steps, first_step):
    unit = BLOCKS * cfg["block"]
    weights = [rng.choice((1, 1, 3, 17, 64, 1000)) for _ in range(world_size)]
    if world_size == 3:
        weights = [5, 0, (1 << 21) - 6 if rng.random() < 0.5 else 2]
    ranks, packets = [], [[] for _ in range(steps)]
    for _ in range(world_size):
        state = [([0] * BLOCKS, [0] * unit) for _ in range(0, n, unit)]
        rows, bits = [], None
        for step in range(first_step, first_step + steps):
            kind = rng.randrange(3) if bits else 2
            if kind == 0:
                bits = [b ^ 0x80000000 for b in bits]       # takes back the last one: next to nothing is left
            elif kind == 2:
                bits = gradient(rng, n)                     # else the same again: only the residual is new
            words, saturated = encode(bits, state, cfg, step)
            row = {"step": step, "gradient_bits": bits, "words": words, "saturated": saturated,
                   "nonfinite": sum(not is_finite(b) for b in bits)}
            if "decay" in cfg:
                row["state"] = [word for residual_bytes, residuals in state
                                for word in pack(residual_bytes, 8) + pack(residuals, 8)]
            packets[step - first_step].append(words)
            rows.append(row)
        ranks.append({"steps": rows})
    averages = [{"step": first_step + k, "mean_bits": average(packets[k], weights, n, cfg)} for k in range(steps)]
    shown = {name: value for name, value in cfg.items() if name != "bits" or "decay" in cfg}
    return {"n": n, "config": shown, "weights": weights, "ranks": ranks, "averages": averages}


def vectors(seed):
    rng = random.Random(seed)
    loco = lambda *values: dict(zip(("bits", "block", "base_log2", "decay", "reset_every"), values))
    file = lambda codec, cases: {"codec": codec, "spec": "CODECS.md sections 2 and 3", "seed": seed, "cases": cases}
    cases = []
    for cfg in (loco(4, 64, -50, 0, 512), loco(8, 40, -20, 205, 3), loco(2, 32, 0, 64, 0), loco(4, 72, 55, 255, 0),
                loco(2, 136, -80, 128, 2)):
        for n, world_size in ((1, 1), (9, 2), (65, 3), (257, 1), (300, 1)):
            cases.append(case(rng, n, cfg, world_size, 3, rng.choice((1, 2, 511))))
    files = [file("loco-block", cases)]
    for bits in (8, 4):
        cases = []
        for block, base_log2 in ((64, -50), (48, 0)):
            cfg = {"bits": bits, "block": block, "base_log2": base_log2}
            for n, world_size in ((1, 1), (9, 5), (65, 3), (300, 2)):
                cases.append(case(rng, n, cfg, world_size, 2, 1))
        files.append(file(f"block{bits}", cases))
    return files


if __name__ == "__main__":
    command.run(__doc__, vectors, 20261130)

#!/usr/bin/env python3
"""Readable reference of the sign codec (src/codec/sign.rs): one bit per element, one scale per block, error feedback.

Written to be read, not to be fast: plain Python integers and exact fractions, one block at a time.
Every backend must give the same bits as this file. It needs no package.

    python3 sign_reference.py --out .       # write the golden vectors
    python3 sign_reference.py --check .     # derive them again and compare
"""
import random
import struct
from fractions import Fraction

import command

DIGITS = 19                 # binary digits of the block's largest gradient or residual that count
BLOCKS = 4                  # blocks of one unit, as many as scale bytes in a word


def f32_bits(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


def is_finite_bits(bits):
    return (bits >> 23) & 0xFF != 0xFF


def power(exponent):
    return Fraction(2) ** exponent


def f32_value(bits):
    """A finite f32 as a fraction; subnormals count as zero, so that a device that flushes them agrees."""
    exponent = (bits >> 23) & 0xFF
    if exponent == 0:
        return Fraction(0)
    value = ((bits & 0x7FFFFF) | 0x800000) * power(exponent - 150)
    return -value if bits >> 31 else value


class Config:
    def __init__(self, block=256, base_log2=-50, reset_every=0):
        """block: elements that share a scale, a multiple of 8 in 32..1024
        base_log2: what the exponent of a scale byte counts from
        reset_every: the residual is zeroed instead of kept on every reset_every-th step; 0 = never
        """
        assert 32 <= block <= 1024 and block % 8 == 0
        self.block, self.base_log2, self.reset_every = block, base_log2, reset_every

    def as_dict(self):
        return dict(vars(self))


def scale_value(byte, cfg):
    """What a scale byte means: 0 is zero, else (4 + low two bits) * 2**(high six bits + base_log2)."""
    return Fraction(0) if byte == 0 else (4 + byte % 4) * power(byte // 4 + cfg.base_log2)


def exponent_of(value):
    """floor(log2(value)) of a positive fraction."""
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    return exponent if power(exponent) <= value else exponent - 1


def scales_around(value, finest):
    """(scale, its byte counted from base exponent 0) near `value`, ascending; none is below 4 * finest."""
    first = max(exponent_of(value) - 2, exponent_of(finest)) if value > 0 else exponent_of(finest)
    first = max(first - 1, exponent_of(finest))
    return [((4 + m) * power(e), 4 * e + m) for e in range(first, first + 5) for m in range(4)]


def to_byte(number, cfg):
    """0 for what is below the smallest scale, 255 for what is above the largest."""
    return max(0, min(255, number - 4 * cfg.base_log2))


def nearest_scale(value, finest, cfg):
    """The byte of the scale nearest to `value`; half way, the larger one."""
    scale, number = min(scales_around(value, finest), key=lambda pair: (abs(pair[0] - value), -pair[0]))
    return to_byte(number, cfg), number - 4 * cfg.base_log2 > 255


def least_scale(value, finest, cfg):
    """The byte of the least scale that is not below `value`."""
    return to_byte(next(number for scale, number in scales_around(value, finest) if scale >= value), cfg)


def encode_block(gradient_bits, residuals, residual_scale, cfg, reset):
    """-> (signs, scale byte, residuals, residual scale byte, elements beyond the largest scale)"""
    count = len(gradient_bits)
    finite = [is_finite_bits(b) for b in gradient_bits]
    gradients = [f32_value(b) if ok else Fraction(0) for b, ok in zip(gradient_bits, finite)]
    step = scale_value(residual_scale, cfg)

    # Block floating point: the unit is 2**-18 of the power of two at or below the largest element. The residual
    # is known by its scale alone: below 2**10 units of 2**(exponent of its scale byte).
    tops = [exponent_of(abs(g)) for g in gradients if g != 0]
    if residual_scale != 0:
        tops.append(residual_scale // 4 + cfg.base_log2 + 9)
    if not tops:
        return [0] * count, 0, [0] * count, 0, 0
    unit = power(max(tops) - (DIGITS - 1))

    h = [round(g / unit) + round(r * step / unit) if ok else 0       # round() sends ties to even
         for g, r, ok in zip(gradients, residuals, finite)]
    if not any(h):
        return [0] * count, 0, [0] * count, 0, 0
    mean = Fraction(sum(abs(v) for v in h), count) * unit
    scale, beyond = nearest_scale(mean, unit, cfg)
    signs = [1 if v < 0 else 0 for v in h]
    sent = max(4, scale_value(scale, cfg) / unit) if scale else 0
    assert sent == int(sent)
    sent = int(sent)
    lost = [v - (-sent if s else sent) if ok else 0 for v, s, ok in zip(h, signs, finite)]

    kept, new = 0, [0] * count
    if any(lost) and not reset:
        fine = unit / 256                                             # no residual scale is below 4 of these
        kept = least_scale(max(abs(v) for v in lost) * unit / Fraction(255, 2), fine, cfg)
        if kept:
            step = max(4 * fine, scale_value(kept, cfg))
            new = [max(-127, min(127, round(v * unit / step))) for v in lost]
    return signs, scale, new, kept, count if beyond else 0


def bytes_of(words, count):
    return [(words[i // 4] >> (8 * (i % 4))) & 0xFF for i in range(count)]


def words_of(values):
    values = list(values) + [0] * (-len(values) % 4)
    return [sum((values[i + k] & 0xFF) << (8 * k) for k in range(4)) for i in range(0, len(values), 4)]


def encode(gradient_bits, state, cfg, step):
    """step counts from 1; `state` has 1 + block words per started unit and is changed.

    Returns (words, number of non-finite elements, number of elements beyond the largest scale)."""
    reset = cfg.reset_every != 0 and step % cfg.reset_every == 0
    unit = BLOCKS * cfg.block
    packet, saturated = [], 0
    for number, start in enumerate(range(0, len(gradient_bits), unit)):
        part = gradient_bits[start:start + unit]
        at = number * (1 + cfg.block)
        scales = bytes_of(state[at:at + 1], BLOCKS)
        residuals = [b - 256 if b > 127 else b for b in bytes_of(state[at + 1:at + 1 + cfg.block], unit)]
        signs, sent, kept, new = [], [], [], []
        for k in range(0, len(part), cfg.block):
            s, scale, r, r_scale, beyond = encode_block(
                part[k:k + cfg.block], residuals[k:k + cfg.block], scales[k // cfg.block], cfg, reset)
            signs += s
            sent.append(scale)
            new += r
            kept.append(r_scale)
            saturated += beyond
        packet += words_of(sent + [0] * (BLOCKS - len(sent)))
        for i in range(0, len(signs), 32):
            packet.append(sum(bit << k for k, bit in enumerate(signs[i:i + 32])))
        state[at:at + 1] = words_of(kept + [0] * (BLOCKS - len(kept)))
        state[at + 1:at + 1 + cfg.block] = words_of(new + [0] * (unit - len(new)))
    return packet, sum(not is_finite_bits(b) for b in gradient_bits), saturated


def to_f32(x):
    """The f32 nearest to a fraction, as a fraction; ties to even."""
    return Fraction(struct.unpack("<f", struct.pack("<f", float(x)))[0])


def average(packets, weights, n, cfg):
    """Weighted mean of one packet per rank, as f32 bits.

    Per block, every rank adds or subtracts one integer: its weight times the digits of its scale, in units so far
    below the largest scale that no sum reaches 2**31. The integers do not depend on the order of the ranks."""
    total = sum(weights)
    places = (0x7FFFFFFF // (total * 7)).bit_length() - 1
    reciprocal = to_f32(Fraction(1, total))
    unit = BLOCKS * cfg.block
    words = 1 + unit // 32
    mean = []
    for i in range(n):
        at, block, bit = i // unit * words, i % unit // cfg.block, i % unit
        used = []
        for packet, weight in zip(packets, weights):
            scale = (packet[at] >> (8 * block)) & 0xFF
            if weight and scale:
                used.append((weight, scale, (packet[at + 1 + bit // 32] >> (bit % 32)) & 1))
        largest = max((scale // 4 for _, scale, _ in used), default=0)
        total_term = 0
        for weight, scale, negative in used:
            term = round(weight * (4 + scale % 4) * power(places - (largest - scale // 4)))
            total_term += -term if negative else term
        factor = reciprocal * power(largest + cfg.base_log2 - places)
        mean.append(f32_bits(float(to_f32(to_f32(total_term) * factor))))
    return mean


# ---------------------------------------------------------------- golden vectors

SPECIAL = [0x00000000, 0x80000000, 0x00000001, 0x807FFFFF, 0x00800000, 0x7F7FFFFF, 0xFF7FFFFF]
NONFINITE = [0x7FC00000, 0x7F800000, 0xFF800000, 0x7F800001, 0xFFFFFFFF]


def gradient(rng, n, cfg, kind):
    """f32 bit patterns aimed at the places where implementations differ."""
    unit = 2.0 ** rng.randint(-30, -5)
    out = []
    for i in range(n):
        if kind == "normal":
            out.append(f32_bits(rng.gauss(0, 1) * unit))
        elif kind == "few digits":                          # means half way between scales, residuals half way
            out.append(f32_bits(rng.choice((-1, 1)) * rng.randint(0, 16) * unit))
        elif kind == "equal":
            out.append(f32_bits(unit * 1.25))
        elif kind == "huge":                                # one among tiny ones
            out.append(f32_bits(rng.gauss(0, 1) * unit * (1000.0 if i % 37 == 5 else 1e-3)))
        elif kind == "special":
            out.append(rng.choice(SPECIAL))
        elif kind == "bits":
            bits = rng.getrandbits(32)
            out.append(bits if is_finite_bits(bits) else 0)
        elif kind == "nonfinite":
            out.append(rng.choice(NONFINITE) if rng.random() < 0.1 else f32_bits(rng.gauss(0, 1) * unit))
        else:
            assert kind == "zero"
            out.append(rng.choice((0, 0x80000000)))
    return out


def case(rng, n, cfg, world_size, kinds, first_step):
    state_words = -(-n // (BLOCKS * cfg.block)) * (1 + cfg.block)
    states = [[0] * state_words for _ in range(world_size)]
    weights = [rng.randint(0, 9) for _ in range(world_size)]
    weights[rng.randrange(world_size)] += 1
    ranks = [{"steps": []} for _ in range(world_size)]
    averages = []
    for step, kind in enumerate(kinds, first_step):
        packets = []
        for rank in range(world_size):
            bits = gradient(rng, n, cfg, kind)
            words, nonfinite, saturated = encode(bits, states[rank], cfg, step)
            packets.append(words)
            ranks[rank]["steps"].append({
                "step": step, "gradient_bits": bits, "words": words, "state": list(states[rank]),
                "nonfinite": nonfinite, "saturated": saturated,
            })
        averages.append({"step": step, "mean_bits": average(packets, weights, n, cfg)})
    return {"n": n, "config": cfg.as_dict(), "weights": weights, "ranks": ranks, "averages": averages}


def vectors(seed):
    rng = random.Random(seed)
    kinds = ["normal", "few digits", "huge", "equal", "special", "bits", "nonfinite", "zero"]
    cases = []
    for cfg in (Config(block=32), Config(block=40, reset_every=3), Config(block=32, base_log2=-80),
                Config(block=64, base_log2=55), Config(block=32, base_log2=-20, reset_every=2)):
        for n, world_size in ((1, 1), (7, 2), (9, 3), (65, 2), (4 * cfg.block + 33, 1)):
            steps = rng.sample(kinds, 4)
            cases.append(case(rng, n, cfg, world_size, steps, rng.choice((1, 2))))
    for kind in kinds:
        cases.append(case(rng, 33, Config(block=32), 3, [kind] * 3, 1))
    cases.append(case(rng, 257, Config(), 1, ["normal", "huge", "few digits"], 1))
    cases.append(case(rng, 1025, Config(block=1024), 1, ["huge"], 1))
    return [{"codec": "sign", "spec": "CODECS.md section 3", "seed": seed, "cases": cases}]


if __name__ == "__main__":
    command.run(__doc__, vectors, 20261129)

"""Readable reference of the `topk` codec: fractions, sorting and lists of bits, one chunk at a time. It needs no package.

    python3 topk_reference.py --out .       # write the golden vectors
    python3 topk_reference.py --check .     # derive them again and compare

Numbers are exact fractions; what is rounded says so. Independent of the crate: nothing is shared but the words of its
documentation.
"""
import math
import random
from fractions import Fraction

import command

F32_MAX = Fraction(2) ** 128 - Fraction(2) ** 104
F32_NORMAL = Fraction(1, 2 ** 126)
F16_MAX = Fraction(65504)


# ---------------------------------------------------------------- floats

def power(exponent):
    return Fraction(2) ** exponent


def exponent_of(x):
    """The e with 2**e <= |x| < 2**(e + 1)."""
    x = abs(x)
    e = x.numerator.bit_length() - x.denominator.bit_length()
    return e if power(e) <= x else e - 1


def round_float(x, digits, least):
    """x to so many binary digits, none below 2**least; ties to even, as Python's round does."""
    if x == 0:
        return Fraction(0)
    unit = power(max(exponent_of(x) - digits + 1, least))
    return round(x / unit) * unit


def f32(x):
    """Rounded to f32; subnormal results are zero, those beyond the largest are the largest."""
    x = max(-F32_MAX, min(F32_MAX, round_float(x, 24, -149)))
    return x if abs(x) >= F32_NORMAL else Fraction(0)


def f32_from_bits(bits):
    """None for NaN and infinity; subnormals are zero."""
    exponent, mantissa = bits >> 23 & 0xFF, bits & 0x7FFFFF
    if exponent == 0xFF:
        return None
    if exponent == 0:
        return Fraction(0)
    value = (1 + Fraction(mantissa, 2 ** 23)) * power(exponent - 127)
    return -value if bits >> 31 else value


def f32_bits(x):
    if x == 0:
        return 0
    e = exponent_of(x)
    mantissa = abs(x) / power(e - 23)
    assert mantissa.denominator == 1 and -126 <= e <= 127
    return (0x80000000 if x < 0 else 0) | (e + 127) << 23 | int(mantissa) - 2 ** 23


def f16(x):
    """A positive number rounded to f16, and whether it was beyond the largest."""
    rounded = round_float(x, 11, -24)
    return (F16_MAX, True) if rounded > F16_MAX else (rounded, False)


def f16_bits(x):
    if x < power(-14):
        return int(x / power(-24))
    e = exponent_of(x)
    return (e + 15) << 10 | int(x / power(e - 10)) - 1024


def f16_from_bits(bits):
    exponent, mantissa = bits >> 10, bits & 0x3FF
    return mantissa * power(-24) if exponent == 0 else (1024 + mantissa) * power(exponent - 25)


# ---------------------------------------------------------------- configuration and layout

class Config:
    def __init__(self, chunk=4096, k=64, decay=243, residual_bits=32, contributors=0, clip=0, scale_log2=19):
        self.chunk, self.k, self.decay, self.residual_bits = chunk, k, decay, residual_bits
        self.contributors, self.clip, self.scale_log2 = contributors, clip, scale_log2

    def count(self, elements):
        """How many of a chunk of so many elements are sent."""
        return max(1, self.k * elements // self.chunk)


def low_bits_of(count, universe):
    bits = 0
    while count * 2 ** (bits + 1) <= universe:
        bits += 1
    return bits


def to_words(bits):
    """A list of bits into words, the first in the lowest place."""
    return [sum(bit << place for place, bit in enumerate(bits[at:at + 32])) for at in range(0, len(bits), 32)]


def from_words(words):
    return [word >> place & 1 for word in words for place in range(32)]


def number_bits(number, width):
    return [number >> place & 1 for place in range(width)]


def elias_fano(indices, universe):
    count = len(indices)
    width = low_bits_of(count, universe)
    low = [bit for index in indices for bit in number_bits(index, width)]
    high = [0] * (count + -(-universe // 2 ** width))
    for j, index in enumerate(indices):
        high[(index >> width) + j] = 1
    return to_words(low) + to_words(high)


def chunks(n, config):
    return [(start, min(config.chunk, n - start)) for start in range(0, n, config.chunk)]


# ---------------------------------------------------------------- residuals

def load_residual(words, config, elements):
    if config.residual_bits == 32:
        return [f32_from_bits(word) for word in words[:elements]]
    out = []
    for i in range(elements):
        byte = words[i // 4] >> 8 * (i % 4) & 0xFF
        byte -= 256 if byte >= 128 else 0
        block = i // 64
        exponent = words[config.chunk // 4 + block // 4] >> 8 * (block % 4) & 0xFF
        out.append(byte * power(exponent - 133))
    return out


def store_residual(values, config):
    padded = values + [Fraction(0)] * (config.chunk - len(values))
    if config.residual_bits == 32:
        return [f32_bits(value) for value in padded]
    codes, exponents = [], []
    for at in range(0, config.chunk, 64):
        block = padded[at:at + 64]
        largest = max(map(abs, block))
        exponent = exponent_of(largest) + 127 if largest else 0
        if exponent < 8:
            exponent, block = 0, [Fraction(0)] * 64
        exponents.append(exponent)
        codes += [max(-127, min(127, round(value / power(exponent - 133)))) for value in block]
    exponents += [0] * (-len(exponents) % 4)

    def pack(numbers):
        return [sum((n & 0xFF) << 8 * i for i, n in enumerate(numbers[at:at + 4])) for at in range(0, len(numbers), 4)]
    return pack(codes) + pack(exponents)


# ---------------------------------------------------------------- encode

def level_of(magnitudes, config):
    """The mean of magnitudes, each cut to 19 digits below the largest exponent among them, as an f16 of the scale."""
    magnitudes = [m for m in magnitudes if m]
    if not magnitudes:
        return Fraction(0), False
    unit = power(exponent_of(max(magnitudes)) - 18)
    mean = sum(math.floor(m / unit) for m in magnitudes) * unit / len(magnitudes)
    return f16(mean * power(config.scale_log2))


def encode_chunk(bits, residual_words, config):
    """(words, new residual words, non-finite elements, saturated elements)."""
    elements = len(bits)
    gradient = [f32_from_bits(b) for b in bits]
    old = load_residual(residual_words, config, elements)
    acc = [Fraction(0) if g is None else f32(f32(Fraction(config.decay, 256) * r) + g) for g, r in zip(gradient, old)]

    order = sorted(range(elements), key=lambda i: (-abs(acc[i]), i))
    sent = order[:config.count(elements)]
    nonzero = [i for i in sent if acc[i]]
    if len(nonzero) < len(sent):
        high, low = nonzero, []
    else:
        half = (len(sent) + 1) // 2
        high, low = sent[:half], sent[half:]
    low_level, low_saturated = level_of([abs(acc[i]) for i in low], config)
    high_level, high_saturated = level_of([abs(acc[i]) for i in high], config)

    code_bits = []
    for i in sorted(sent):
        code_bits += [int(acc[i] < 0), int(i in high)]
        level = high_level if i in high else low_level
        value = level * power(-config.scale_log2)
        acc[i] = f32(acc[i] - (-value if acc[i] < 0 else value))
    words = [f16_bits(low_level) | f16_bits(high_level) << 16] + to_words(code_bits) + elias_fano(sorted(sent), elements)
    saturated = len(low) * low_saturated + len(high) * high_saturated
    return words, store_residual(acc, config), sum(g is None for g in gradient), saturated


def encode(bits, state, config):
    words, new_state, nonfinite, saturated = [], [], 0, 0
    per_chunk = len(state) // len(chunks(len(bits), config))
    for number, (start, elements) in enumerate(chunks(len(bits), config)):
        piece = state[number * per_chunk:(number + 1) * per_chunk]
        w, s, bad, clamped = encode_chunk(bits[start:start + elements], piece, config)
        words, new_state, nonfinite, saturated = words + w, new_state + s, nonfinite + bad, saturated + clamped
    return words, new_state, nonfinite, saturated


# ---------------------------------------------------------------- average

def decode_chunk(words, elements, config):
    """({index: (sign, level)}, levels in f16, length in words), from the start of `words`."""
    count = config.count(elements)
    width = low_bits_of(count, elements)
    code_words, low_words = -(-count // 16), -(-count * width // 32)
    high_length = count + -(-elements // 2 ** width)
    length = 1 + code_words + low_words + -(-high_length // 32)
    levels = [f16_from_bits(words[0] & 0xFFFF), f16_from_bits(words[0] >> 16)]
    codes = from_words(words[1:1 + code_words])
    low = from_words(words[1 + code_words:1 + code_words + low_words])
    high = from_words(words[1 + code_words + low_words:length])
    places = [place for place, bit in enumerate(high) if bit]
    assert len(places) == count
    out = {}
    for j, place in enumerate(places):
        index = (place - j) * 2 ** width + sum(low[j * width + b] << b for b in range(width))
        out[index] = (-1 if codes[2 * j] else 1, codes[2 * j + 1])
    assert list(out) == sorted(out) and len(out) == count and max(out) < elements
    return out, levels, length


def decode(words, n, config):
    chunk_list, at = [], 0
    for _, elements in chunks(n, config):
        values, levels, length = decode_chunk(words[at:], elements, config)
        chunk_list.append((values, levels))
        at += length
    assert at == len(words)
    return chunk_list


def average(packets, weights, n, config):
    decoded = [decode(words, n, config) for words in packets]
    factors = [Fraction(1)] * len(packets)
    if config.clip:
        norms = [sum(levels[half] ** 2 for values, levels in packet for _, half in values.values()) if weight else 0
                 for packet, weight in zip(decoded, weights)]
        voters = sorted(norm for norm in norms if norm)
        median = voters[len(voters) // 2] if voters else 0
        for rank, norm in enumerate(norms):
            if norm > median:
                # floor(2**16 * sqrt(median / norm)), in integers of 2**-48; below 2**96 here.
                m, s = int(median * 2 ** 48), int(norm * 2 ** 48)
                assert s < 2 ** 96
                factors[rank] = Fraction(math.isqrt((m << 32) // s), 2 ** 16)
    sums, contributed = [Fraction(0)] * n, [0] * n
    for packet, weight, factor in zip(decoded, weights, factors):
        for (start, _), (values, levels) in zip(chunks(n, config), packet):
            levels = [f16(level * factor)[0] for level in levels]
            for index, (sign, half) in values.items():
                sums[start + index] += weight * sign * levels[half]
                contributed[start + index] += weight if levels[half] else 0
    total = sum(weights)
    out = []
    for value, part in zip(sums, contributed):
        divisor = part if config.contributors else total
        # The sum as an integer of 2**-24 is rounded to f32, then the product with the rounded inverse is.
        whole = round_float(value * 2 ** 24, 24, -149)
        inverse = round_float(power(-24 - config.scale_log2) / divisor, 24, -149) if divisor else 0
        out.append(f32_bits(round_float(whole * inverse, 24, -149)))
    return out


# ---------------------------------------------------------------- golden vectors

SPECIAL = [0x00000000, 0x80000000, 0x00000001, 0x807FFFFF, 0x00800000, 0x80800001, 0x7F7FFFFF, 0xFF7FFFFF]
NONFINITE = [0x7FC00000, 0x7F800000, 0xFF800000, 0x7F800001, 0xFFFFFFFF]


def gradient(rng, n, config, kind):
    """`ties`: few magnitudes, so that equal ones lie across every boundary; `sparse`: mostly zero; `wild`: any bits."""
    unit = power(-config.scale_log2)
    out = []
    for _ in range(n):
        draw = rng.random()
        if kind == "ties":
            value = Fraction(rng.choice([-3, -2, -2, -1, -1, 0, 1, 1, 2, 2, 3])) * unit
            out.append(f32_bits(f32(value)))
        elif kind == "sparse":
            value = Fraction(rng.gauss(0, 3)) * unit if draw < 0.02 else Fraction(0)
            out.append(f32_bits(f32(value)))
        elif kind == "wild" and draw < 0.1:
            bits = rng.getrandbits(32)
            out.append(bits if bits >> 23 & 0xFF != 0xFF else bits & 0xBFFFFFFF)
        elif kind == "wild" and draw < 0.2:
            out.append(rng.choice(SPECIAL))
        elif kind == "wild" and draw < 0.23:
            out.append(rng.choice(NONFINITE))
        else:
            out.append(f32_bits(f32(Fraction(rng.gauss(0, 3)) * unit)))
    return out


def case(rng, n, config, world_size, steps, kind, loud=()):
    """Ranks in `loud` have gradients 64 times larger: for the clip."""
    per_chunk = config.chunk if config.residual_bits == 32 else config.chunk // 4 + -(-config.chunk // 256)
    states = [[0] * per_chunk * len(chunks(n, config)) for _ in range(world_size)]
    weights = [rng.randint(1, 9) for _ in range(world_size)]
    if world_size > 2:
        weights[rng.randrange(world_size)] = 0
    ranks, averages = [{"steps": []} for _ in range(world_size)], []
    for step in range(1, steps + 1):
        packets = []
        for rank in range(world_size):
            bits = gradient(rng, n, config, kind)
            if rank in loud:
                bits = [b + (6 << 23) if 0 < (b >> 23 & 0xFF) < 240 else b for b in bits]
            words, states[rank], nonfinite, saturated = encode(bits, states[rank], config)
            packets.append(words)
            ranks[rank]["steps"].append({"step": step, "gradient_bits": bits, "words": words, "state": states[rank],
                                         "nonfinite": nonfinite, "saturated": saturated})
        averages.append({"step": step, "mean_bits": average(packets, weights, n, config)})
    return {"n": n, "config": dict(vars(config)), "weights": weights, "ranks": ranks, "averages": averages}


def vectors(seed):
    rng = random.Random(seed)
    cases = []
    small = dict(chunk=64, k=5)
    for kind in ("ties", "gauss", "sparse", "wild"):
        for n, world_size in ((1, 1), (8, 1), (63, 1), (64, 3), (65, 1)):
            cases.append(case(rng, n, Config(**small), world_size, 2, kind))
        cases.append(case(rng, 130, Config(**small, residual_bits=8, contributors=1), 3, 3, kind))
    cases.append(case(rng, 64, Config(**small, clip=1), 4, 2, "gauss", loud=(1,)))
    cases.append(case(rng, 100, Config(**small, clip=1, contributors=1, scale_log2=0), 5, 2, "ties", loud=(0, 3)))
    cases.append(case(rng, 64, Config(chunk=64, k=64, decay=256, scale_log2=-64), 2, 2, "ties"))
    cases.append(case(rng, 64, Config(chunk=64, k=33, decay=0, scale_log2=64), 2, 2, "wild"))
    cases.append(case(rng, 64, Config(chunk=64, k=1, residual_bits=8), 2, 3, "gauss"))
    cases.append(case(rng, 300, Config(chunk=128, k=37, residual_bits=8, scale_log2=4), 2, 2, "gauss"))
    cases.append(case(rng, 520, Config(chunk=512, k=100, residual_bits=8, scale_log2=-3), 1, 2, "wild"))
    cases.append(case(rng, 200, Config(), 1, 1, "gauss"))
    cases.append(case(rng, 4096, Config(residual_bits=8), 1, 1, "gauss"))
    return [{"codec": "topk", "spec": "CODECS.md section 3", "seed": seed, "cases": cases}]


if __name__ == "__main__":
    command.run(__doc__, vectors, 20261130)

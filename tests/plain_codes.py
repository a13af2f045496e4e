"""The codes again, in plain Python from their definitions: strings of bits, dicts, whole numbers."""

from __future__ import annotations

import heapq
from collections import Counter
from decimal import Decimal, localcontext
from itertools import pairwise

BITS, LOW = 12, 1 << 15
TOTAL = 1 << BITS


def to_bytes(bits: str) -> bytes:
    padded = bits + "0" * (-len(bits) % 8)
    return bytes(int(padded[i : i + 8], 2) for i in range(0, len(padded), 8))


def gamma(k: int) -> str:
    return "0" * (k.bit_length() - 1) + f"{k:b}"


def delta(k: int) -> str:
    return gamma(k.bit_length()) + f"{k:b}"[1:]


def omega(k: int) -> str:
    code = "0"
    while k > 1:
        code = f"{k:b}" + code
        k = k.bit_length() - 1
    return code


ELIAS = {"gamma": gamma, "delta": delta, "omega": omega}


def sign(s: int) -> str:
    return "1" if s % 2 else "0"


def elias_dense(symbols: list[int], code: str) -> bytes:
    return to_bytes("".join(ELIAS[code]((s + 1) // 2 + 1) + (sign(s) if s else "") for s in symbols))


def elias_sparse(symbols: list[int], code: str) -> bytes:
    places = [i for i, s in enumerate(symbols) if s]
    text = ""
    for last, place in pairwise([-1, *places]):
        text += ELIAS[code](place - last) + sign(symbols[place]) + ELIAS[code]((symbols[place] + 1) // 2)
    return to_bytes(text + ELIAS[code](len(symbols) - (places[-1] if places else -1)))


def golomb(gap: int, m: int) -> str:
    q, r = divmod(gap, m)
    bits = (m - 1).bit_length()
    brief = (1 << bits) - m
    if bits == 0:
        tail = ""
    elif r < brief:
        tail = f"{r:0{bits - 1}b}" if bits > 1 else ""
    else:
        tail = f"{r + brief:0{bits}b}"
    return "1" * q + "0" + tail


def gaps(places: list[int], m: int) -> bytes:
    return to_bytes("".join(golomb(b - a - 1, m) for a, b in pairwise([-1, *places])))


def golomb_runs(symbols: list[int], m: int) -> bytes:
    places = [i for i, s in enumerate(symbols) if s]
    text = "".join(
        golomb(b - a - 1, m) + sign(symbols[b]) + gamma((symbols[b] + 1) // 2) for a, b in pairwise([-1, *places])
    )
    return len(places).to_bytes(4, "little") + to_bytes(text)


def tokens(symbols: list[int], zero_runs: bool) -> list[tuple[int, str]]:
    """Token and plain bits: 32 + symbol, or k and the rest of a run of 2^k to 2^(k+1)-1 zeros."""
    out, run = [], 0
    for s in [*symbols, -1]:
        if zero_runs and s == 0:
            run += 1
            continue
        if run:
            out.append((run.bit_length() - 1, f"{run:b}"[1:]))
            run = 0
        if s >= 0:
            out.append((32 + s, ""))
    return out


def huffman_lengths(counts: dict[int, int], longest: int = 12) -> dict[int, int]:
    """Package-merge: `longest` times, pair up what there is and merge it with the leaves."""
    if len(counts) == 1:
        return dict.fromkeys(counts, 1)
    leaves = sorted(((w, [t]) for t, w in counts.items()), key=lambda leaf: (leaf[0], leaf[1]))
    items = leaves
    for _ in range(longest - 1):
        pairs = [(a[0] + b[0], a[1] + b[1]) for a, b in zip(items[::2], items[1::2], strict=False)]
        items = list(heapq.merge(leaves, pairs, key=lambda item: item[0]))
    return dict(Counter(t for _, part in items[: 2 * len(leaves) - 2] for t in part))


def huffman_codes(lengths: dict[int, int]) -> dict[int, str]:
    """Canonical: counted up in order of length, then of token."""
    codes, value, last = {}, 0, 0
    for length, token in sorted((n, t) for t, n in lengths.items()):
        value <<= length - last
        codes[token] = f"{value:0{length}b}"
        value, last = value + 1, length
    return codes


def huffman(symbols: list[int], zero_runs: bool) -> bytes:
    stream = tokens(symbols, zero_runs)
    lengths = huffman_lengths(Counter(t for t, _ in stream))
    codes = huffman_codes(lengths)
    used = max(lengths) + 1
    nibbles = [lengths.get(t, 0) for t in range(used)] + [0]
    head = used.to_bytes(2, "little") + bytes(
        nibbles[i] << 4 | nibbles[i + 1] for i in range(0, 2 * ((used + 1) // 2), 2)
    )
    return head + to_bytes("".join(codes[t] + bits for t, bits in stream))


def rare_ones(counts: dict[int, int]) -> set[int]:
    """Symbols with a share below 2^-13."""
    return {s for s, c in counts.items() if c * 2 * TOTAL < sum(counts.values())}


def share(part: int, n: int, total: int) -> int:
    return min(max((part * total + n // 2) // n, 1), TOTAL - 1)


def log2_256(f: int) -> int:
    """The floor of 256 log2(f), from 40 digits: floats could round up."""
    with localcontext() as context:
        context.prec = 40
        return int(256 * Decimal(f).ln() / Decimal(2).ln() + Decimal("1e-30"))


def worth_escaping(counts: dict[int, int]) -> bool:
    """Whether a frequency of 1 for each rare symbol would cost the others half a percent."""
    n = sum(counts.values())
    bits = sum(c * (BITS * 256 - log2_256(share(c, n, TOTAL))) // 256 for c in counts.values())
    return len(rare_ones(counts)) > 1 and (len(rare_ones(counts)) - 1) * n > 14 * bits


def frequencies(counts: dict[int, int]) -> dict[int, int]:
    """1 for what is rare, its share of the rest for what is not; 2^12 in all, where count / frequency says so."""
    rare = rare_ones(counts)
    common = sum(c for s, c in counts.items() if s not in rare)
    freq = {s: 1 if s in rare else share(c, common, TOTAL - len(rare)) for s, c in sorted(counts.items())}
    while (over := sum(freq.values()) - TOTAL) > 0:
        freq[min((s for s in freq if freq[s] > 1), key=lambda s: (counts[s] / (2 * freq[s] - 1), s))] -= 1
    for _ in range(-over):
        freq[max(freq, key=lambda s: (counts[s] / (2 * freq[s] + 1), -s))] += 1
    return freq


def rans(symbols: list[int], escapes: bool = True, lanes: int = 4, log: int = 0, gpu: bool = False) -> bytes:
    """Chunks of 2^log symbols, or one for all of them; a GPU escapes rare symbols only where that is worth it."""
    counts = dict(Counter(symbols))
    n = len(symbols)
    if len(counts) == 1:
        return bytes([1, symbols[0]])
    tail = b""
    coded = symbols
    rare = rare_ones(counts)
    if escapes and len(rare) > 1 and (not gpu or worth_escaping(counts)):
        escape = min(rare)
        coded = [escape if s in rare else s for s in symbols]
        inner = rans([s for s in symbols if s in rare], escapes=False, lanes=32 if gpu and n > 1 << 18 else 4)
        tail = bytes([escape]) + len(inner).to_bytes(4, "little") + inner
        counts = dict(Counter(coded))
    freq = frequencies(counts)
    start, c = {}, 0
    for s in sorted(freq):
        start[s], c = c, c + freq[s]
    last = max(freq)
    text = gamma(last + 1)
    for s in range(1, last + 1):
        near = freq.get(s - 2 if s % 2 else s - 1, 0) if s > 1 else 0
        change = freq.get(s, 0) - near
        text += gamma(2 * change + 1 if change >= 0 else -2 * change)
    table = to_bytes(text)
    log = log or max(13, (n - 1).bit_length())
    chunks = [rans_chunk(coded[i : i + (1 << log)], freq, start, lanes) for i in range(0, n, 1 << log)]
    kind = 2 | (4 if lanes == 32 else 0) | (8 if tail else 0)
    sizes = b"".join(len(chunk).to_bytes(4, "little") for chunk in chunks[:-1])
    return bytes([kind, log]) + table + tail + sizes + b"".join(chunks)


def rans_chunk(symbols: list[int], freq: dict[int, int], start: dict[int, int], lanes: int) -> bytes:
    """The states, then the words."""
    states, words = [LOW] * lanes, b""
    for i in reversed(range(len(symbols))):
        s, x = symbols[i], states[i % lanes]
        if x >= freq[s] << 19:
            words = (x & 0xFFFF).to_bytes(2, "little") + words
            x >>= 16
        states[i % lanes] = (x // freq[s] << BITS) + x % freq[s] + start[s]
    return b"".join(x.to_bytes(4, "little") for x in states) + words

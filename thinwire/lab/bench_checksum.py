"""What the checksum of a payload does not find: damaged payloads of several kinds, beside CRC-32C on the same ones.

A row is a kind of damage, a source, a size, and how many of the payloads that did change passed as whole. `low16`
counts those that changed before or behind the checksum and for which its low 16 bits were right all the same; it
shows what `missed` is too rare to show, since of a perfect hash it would be one in 65536.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np
import torch

from thinwire.compressors import Qsgd
from thinwire.core.payload import HEADER
from thinwire.core.types import Key
from thinwire.kernels import checksum
from thinwire.kernels.spec import COVERED
from thinwire.lab.records import Row

Bytes: TypeAlias = np.ndarray  # (payloads, size) uint8: changed in place
Ends: TypeAlias = np.ndarray  # the sizes that arrive
ELEMENTS = {144: 216, 544: 1008, 2080: 4032}  # elements of the payload of each size, at 4 bits
BASES = 64  # payloads that are damaged, of each source and size


def _flip(data: Bytes, bits: np.ndarray) -> None:
    data[np.arange(len(data)), bits >> 3] ^= (1 << (bits & 7)).astype(np.uint8)


def _flips(count: int) -> Callable[[Bytes, np.random.Generator], None]:
    def damage(data: Bytes, draw: np.random.Generator) -> None:
        for _ in range(count):
            _flip(data, draw.integers(0, 8 * data.shape[1], len(data)))

    return damage


def _line(data: Bytes, draw: np.random.Generator) -> None:
    bit = draw.integers(0, 32, len(data))
    for _ in range(2):
        _flip(data, 32 * draw.integers(0, data.shape[1] // 4, len(data)) + bit)


def _burst(data: Bytes, draw: np.random.Generator) -> None:
    length = draw.integers(2, 65, len(data))
    start = draw.integers(0, 8 * data.shape[1] - length + 1)
    for i in range(64):
        hit = (i < length) & ((i == 0) | (i == length - 1) | (draw.random(len(data)) < 0.5))
        rows = np.flatnonzero(hit)
        bits = start[rows] + i
        data[rows, bits >> 3] ^= (1 << (bits & 7)).astype(np.uint8)


def _run(data: Bytes, draw: np.random.Generator, longest: int) -> np.ndarray:
    """Which bytes of each payload lie in a run at a random place."""
    length = draw.integers(1, longest + 1, (len(data), 1))
    start = draw.integers(0, data.shape[1] - length + 1)
    place = np.arange(data.shape[1])
    inside: np.ndarray = (start <= place) & (place < start + length)
    return inside


def _overwritten(data: Bytes, draw: np.random.Generator) -> None:
    hit = _run(data, draw, 16)
    data[hit] = draw.integers(0, 256, int(hit.sum()))


def _zeroed(data: Bytes, draw: np.random.Generator) -> None:
    data[_run(data, draw, 64)] = 0


def _swapped(size: int) -> Callable[[Bytes, np.random.Generator], None]:
    def damage(data: Bytes, draw: np.random.Generator) -> None:
        count = data.shape[1] // size
        parts = data[:, : count * size].reshape(len(data), count, size).copy()
        rows, a, b = np.arange(len(data)), *draw.integers(0, count, (2, len(data)))
        parts[rows, a], parts[rows, b] = parts[rows, b], parts[rows, a]
        data[:, : count * size] = parts.reshape(len(data), -1)

    return damage


def _shifted(by: int) -> Callable[[Bytes, np.random.Generator], None]:
    def damage(data: Bytes, draw: np.random.Generator) -> None:
        start = draw.integers(HEADER.size, data.shape[1] - by, (len(data), 1))
        data[:, by:] = np.where(np.arange(by, data.shape[1]) < start + by, data[:, by:], data[:, :-by])

    return damage


def _cut(data: Bytes, draw: np.random.Generator) -> Ends:
    """The end is missing, and the header promises what is left."""
    ends = draw.integers(HEADER.size, data.shape[1], len(data))
    data[:, 20:24] = (ends - HEADER.size).astype("<u4").view(np.uint8).reshape(-1, 4)
    data[np.arange(data.shape[1]) >= ends[:, None]] = 0
    return ends


KINDS: dict[str, Callable[[Bytes, np.random.Generator], Ends | None]] = {
    "1 bit flipped": _flips(1),
    "2 bits flipped": _flips(2),
    "3 bits flipped": _flips(3),
    "the same bit of 2 words flipped": _line,
    "a burst of up to 64 bits": _burst,
    "1 to 16 bytes overwritten": _overwritten,
    "1 to 64 bytes zeroed": _zeroed,
    "2 words swapped": _swapped(4),
    "2 rows of 64 bytes swapped": _swapped(64),
    "shifted by a byte": _shifted(1),
    "shifted by a word": _shifted(4),
    "cut short, with the length to match": _cut,
}


def rows(mutations: int) -> Iterator[Row]:
    """One row for each kind, source and size; `mutations` damaged payloads in all."""
    each = -(-mutations // (len(KINDS) * len(SOURCES) * len(ELEMENTS)))
    draw = np.random.default_rng(0)
    for source in SOURCES:
        for size in ELEMENTS:
            whole = _payloads(source, size)
            for kind in KINDS:
                yield _row(kind, source, whole[draw.integers(0, BASES, each)], draw)


def _row(kind: str, source: str, whole: Bytes, draw: np.random.Generator) -> Row:
    seed = int(draw.integers(1 << 62))
    row: Row = {"kind": kind, "source": source, "size": whole.shape[1]}
    for name, check in CHECKS.items():
        sealed = whole.copy()
        sealed[:, COVERED : HEADER.size] = _as_bytes(check(whole, None))
        damaged = sealed.copy()
        ends = KINDS[kind](damaged, np.random.default_rng(seed))  # the same damage to both
        differs = damaged != sealed
        changed = differs.any(1)
        beside = (differs[:, :COVERED].any(1) | differs[:, HEADER.size :].any(1))[changed]
        wrong = check(damaged, ends)[changed] ^ damaged[changed, COVERED : HEADER.size].copy().view("<u4")[:, 0]
        row |= {"changed": int(changed.sum())} if name == "sum" else {}
        row |= {f"{name}_missed": int((wrong == 0).sum()), f"{name}_low16": int((wrong[beside] & 0xFFFF == 0).sum())}
    return row


def _as_bytes(check: np.ndarray) -> Bytes:
    return check.astype("<u4").view(np.uint8).reshape(-1, 4)


def _dense(n: int, seed: int) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def _sparse(n: int, seed: int) -> torch.Tensor:
    return _dense(n, seed) ** 9  # all but a few fields are zero


SOURCES: dict[str, Callable[[int, int], torch.Tensor]] = {"dense": _dense, "sparse": _sparse}


def _payloads(source: str, size: int) -> Bytes:
    made = [Qsgd(bits=4).encode(SOURCES[source](ELEMENTS[size], s), key=Key(step=s)).data for s in range(BASES)]
    data = torch.stack(made).numpy()
    assert data.shape[1] == size
    return data


def weighted(data: Bytes, ends: Ends | None = None) -> np.ndarray:
    """The checksum of thinwire.kernels.checksum of each payload; what lies behind an end is zero."""
    words = np.ascontiguousarray(data).view("<u4").astype(np.uint64)
    words[:, COVERED // 4] = 0
    keys = checksum.keys(0, words.shape[1]).numpy().astype(np.uint64)
    s: np.ndarray = (words * keys).sum(1, dtype=np.uint64)
    for shift in (32, 29):
        s = (s ^ (s >> np.uint64(shift))) * np.uint64(checksum.MIX)
    return (s >> np.uint64(32)).astype(np.uint32)


def _table() -> np.ndarray:
    c = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        c = np.where(c & 1, (c >> 1) ^ np.uint32(0x82F63B78), c >> 1)
    return c


def crc32c(data: Bytes, ends: Ends | None = None) -> np.ndarray:
    """CRC-32C of each payload without its checksum, by a table: the rule of format 1."""
    table, columns = _table(), np.ascontiguousarray(data.T)
    c = np.full(len(data), 0xFFFFFFFF, dtype=np.uint32)
    for place, column in enumerate(columns):
        if not COVERED <= place < HEADER.size:
            after = (c >> 8) ^ table[(c ^ column) & 255]
            c = after if ends is None else np.where(place < ends, after, c)
    return c ^ np.uint32(0xFFFFFFFF)


CHECKS: dict[str, Callable[[Bytes, Ends | None], np.ndarray]] = {"sum": weighted, "crc32c": crc32c}


def summary(rows: list[Row]) -> list[Row]:
    """The rows of each kind added up."""
    numbers = ("changed", *(f"{name}_{what}" for name in CHECKS for what in ("missed", "low16")))
    kinds = {kind: [r for r in rows if r["kind"] == kind] for kind in KINDS}
    return [{"kind": kind, **{n: sum(r[n] for r in some) for n in numbers}} for kind, some in kinds.items()]

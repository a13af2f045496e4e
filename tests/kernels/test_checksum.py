"""The checksum: its definition in Python's own integers, the tiers, parts in any order, and what it finds."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from battery import NATIVE, TIERS, vector
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from thinwire import Key, Layout, kernels
from thinwire.compressors import Natural, Qsgd
from thinwire.core.payload import HEADER as FIELDS
from thinwire.kernels import checksum
from thinwire.kernels.spec import CHECKED, COVERED, FLAGS, HEADER


def key(i: int) -> int:
    z = (i // 2 * 0x9E3779B97F4A7C15 + 0xD1B54A32D192ED03) % 2**64
    return (z ^ (z % 2**32) ** 2) >> 32 * (i % 2) & 0xFFFFFFFF


def plainly(data: bytes, first: int = 0) -> int:
    parts = (data[i : i + 4] for i in range(0, len(data), 4))
    return sum(int.from_bytes(part, "little") * key(first + i) for i, part in enumerate(parts)) % 2**64


def some(n: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, (n,), generator=torch.Generator().manual_seed(seed)).to(torch.uint8)


@pytest.mark.parametrize("tier", TIERS)
def test_every_size_has_the_sum_of_the_definition(tier: str) -> None:
    data = some(607)
    for n in range(601):
        at = n % 7  # the address need not be that of a word
        assert kernels.get(tier).total(data[at : at + n], n) == plainly(data[at : at + n].numpy().tobytes(), n)


@pytest.mark.parametrize("tier", TIERS)
def test_known_answers(tier: str) -> None:
    total = kernels.get(tier).total
    text = torch.frombuffer(bytearray(b"123456789"), dtype=torch.uint8)
    assert total(text) == 0x43DD45ACB0B87862
    assert checksum.finish(int(total(text))) == 0x7668A995
    assert total(torch.zeros(32, dtype=torch.uint8)) == 0
    assert total(torch.full((32,), 255, dtype=torch.uint8), 2**32 - 4) == plainly(b"\xff" * 32, 2**32 - 4)


@pytest.mark.parametrize("tier", TIERS)
@given(cuts=st.lists(st.integers(0, 700), max_size=6), n=st.integers(0, 2800), first=st.integers(0, 2**33))
def test_parts_add_up_in_any_order(tier: str, cuts: list[int], n: int, first: int) -> None:
    data, total = some(n), kernels.get(tier).total
    edges = [0, *sorted(min(4 * c, n) for c in cuts), n]
    parts = [int(total(data[a:b], first + a // 4)) for a, b in itertools.pairwise(edges)]
    random.Random(n).shuffle(parts)
    assert sum(parts) % 2**64 == total(data, first) == plainly(data.numpy().tobytes(), first)


@pytest.mark.parametrize("tier", NATIVE)
def test_threads_have_the_same_sum(tier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = some(3_000_001)
    answers = set()
    for threads in (1, 2, 3, 7):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        answers.add(kernels.get(tier).total(data, 9))
    assert answers == {kernels.get("reference").total(data, 9)}


@pytest.mark.parametrize("tier", NATIVE)
@pytest.mark.parametrize("c", [Qsgd(bits=1), Qsgd(bits=3), Qsgd(bits=8, block=100), Natural()], ids=lambda c: c.id)
def test_the_pass_that_writes_the_fields_sums_them(
    tier: str, c: Qsgd | Natural, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n, threads in ((0, 1), (1, 1), (515, 1), (100_003, 2), (700_001, 3)):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        layout = Layout.flat(n)
        body = torch.empty(c.nbytes(layout), dtype=torch.uint8)
        with kernels.force(tier):
            tail = c.write_fused(vector(n), layout, Key(), body, checksum=True)
        assert tail is not None
        side = body.numel() - tail.nbytes
        assert tail.partial == kernels.get("reference").total(body[side:], (HEADER + side) // 4)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("flags", [0, CHECKED])
def test_seals(tier: str, flags: int) -> None:
    """The checksum is that of the bytes, even where the end of the body is known only by its sum."""
    header = bytes([*range(FLAGS), flags, *range(FLAGS + 1, COVERED)])
    body = torch.arange(101, dtype=torch.uint8)
    body_total = plainly(body.numpy().tobytes(), 8) if flags else 0
    expected = checksum.finish(plainly(header) + body_total)
    partial = plainly(body[40:].numpy().tobytes(), 18)
    for tail in ((), (61, partial), (61, torch.tensor([partial - 2**64 * (partial >= 2**63)]))):
        data = torch.cat((torch.empty(HEADER, dtype=torch.uint8), body))
        kernels.get(tier).seal(data, header, *tail)
        assert data[:COVERED].numpy().tobytes() == header
        assert int.from_bytes(data[COVERED:HEADER].numpy().tobytes(), "little") == expected
        assert kernels.get("reference").sealed(data)
        assert kernels.get(tier).sealed(data)
        data[-1] += 1
        assert kernels.get(tier).sealed(data) == (flags == 0)
        data[0] += 1
        assert not kernels.get(tier).sealed(data)
    with pytest.raises(ValueError, match="whole word"):
        kernels.get(tier).seal(data, header, 60, 0)


def changes(data: np.ndarray, draw: np.random.Generator) -> Iterator[tuple[str, np.ndarray]]:
    """A payload with one change of each kind; some changes may leave it as it was."""
    n = len(data)
    for flips in (1, 2, 3):
        bits = np.unpackbits(data)
        bits[draw.choice(8 * n, flips, replace=False)] ^= 1
        yield f"{flips} bits", np.packbits(bits)
    bits = np.unpackbits(data)
    start = draw.integers(0, 8 * n - 64)
    bits[start : start + 64] = draw.integers(0, 2, 64)
    yield "burst", np.packbits(bits)
    a, b = 4 * draw.choice(n // 4, 2, replace=False)
    rows = data.copy()
    rows[a : a + 4], rows[b : b + 4] = data[b : b + 4], data[a : a + 4]
    yield "words swapped", rows
    rows = data.copy()
    rows[64:128], rows[192:256] = data[192:256], data[64:128]
    yield "rows swapped", rows
    zeroed = data.copy()
    zeroed[draw.integers(0, n) :][:40] = 0
    yield "zeroed", zeroed
    for by in (1, 4):
        yield f"shifted by {by}", np.concatenate((data[:32], np.zeros(by, np.uint8), data[32:-by]))
    start = draw.integers(32, n)
    shorter = np.concatenate(
        (data[:20], np.frombuffer(int(start - 32).to_bytes(4, "little"), np.uint8), data[24:start])
    )
    yield "cut short", shorter


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("n", [700, 5000])
def test_changes_are_found(tier: str, n: int) -> None:
    payload = Qsgd(bits=4).encode(vector(n))
    assert FIELDS.size == HEADER
    data, draw = payload.data.numpy(), np.random.default_rng(n)
    for _ in range(50):
        for kind, changed in changes(data, draw):
            flagged = changed.copy()
            flagged[FLAGS] |= CHECKED  # without this flag the body is not covered; `open` refuses other flags
            if not np.array_equal(flagged, data):
                assert not kernels.get(tier).sealed(torch.from_numpy(flagged)), kind


@pytest.mark.parametrize("tier", TIERS)
def test_the_same_bit_of_two_words_is_found(tier: str) -> None:
    """A broken line of a bus."""
    data = some(32 + 4096)
    kernels.get(tier).seal(data, bytes([0] * FLAGS + [CHECKED] + [0] * (COVERED - FLAGS - 1)))
    draw = random.Random(1)
    for _ in range(300):
        a, b = draw.sample(range(8, 8 + 1024), 2)
        bit, byte = 1 << draw.randrange(8), draw.randrange(4)
        for place in (a, b):
            data[4 * place + byte] ^= bit
        assert not kernels.get(tier).sealed(data)
        for place in (a, b):
            data[4 * place + byte] ^= bit
    assert kernels.get(tier).sealed(data)


@pytest.mark.parametrize("tier", TIERS)
def test_equal_words_that_change_places_in_rows_of_zeros_are_found(tier: str) -> None:
    """Keys in arithmetic progression would not see this."""
    draw = random.Random(2)
    total = kernels.get(tier).total
    for _ in range(300):
        rows = torch.zeros(40, 64, dtype=torch.uint8)
        (a, b), (p, q) = draw.sample(range(40), 2), draw.sample(range(16), 2)
        rows[a, 4 * p] = rows[b, 4 * q] = 1
        assert total(rows.view(-1), 8) != total(rows[swapped(a, b)].view(-1), 8)


def test_keys_are_not_0_and_few_are_equal_or_powers_of_two_of_each_other() -> None:
    """Chance makes 2 pairs of 2^17 keys equal; in arithmetic progression thousands would be twice others."""
    keys = checksum.keys(0, 1 << 17).numpy()
    assert keys.min() > 0
    known = np.unique(keys)
    assert len(keys) - len(known) < 10
    shifted = np.sort(np.concatenate([keys << c for c in range(1, 31)]))
    places = np.searchsorted(known, shifted).clip(max=len(known) - 1)
    assert (known[places] == shifted).sum() < 20


def swapped(a: int, b: int) -> list[int]:
    order = list(range(40))
    order[a], order[b] = b, a
    return order

"""Noise: published vectors, agreement of the tiers, independence of the streams."""

from __future__ import annotations

import pytest
import torch
from battery import TIERS

from thinwire import Key, kernels
from thinwire.kernels.philox import first, philox

# Random123's known answers: rounds, counter, key, output.
KNOWN = [
    (7, [0] * 4, [0] * 2, [0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48]),
    (7, [0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x5207DDC2, 0x45165E59, 0x4D8EE751, 0x8C52F662]),
    (
        7,
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0x4DFCCABA, 0x190A87F0, 0xC47362BA, 0xB6B5242A],
    ),
    (10, [0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    (10, [0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        10,
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("rounds", "counter", "key", "expected"), KNOWN)
def test_published_vectors(rounds: int, counter: list[int], key: list[int], expected: list[int]) -> None:
    words = philox([torch.tensor([c]) for c in counter], (key[0], key[1]), rounds)
    assert [int(w) for w in words] == expected


@pytest.mark.parametrize("tier", TIERS)
def test_published_vector_through_every_tier(tier: str) -> None:
    """Key zero, counter zero: each word of the first counter, halves swapped and as it is, is a row of lane 0."""
    noise = kernels.get(tier).noise(Key(), 512)
    rows = [h for w in KNOWN[0][3] for h in ((w << 16 | w >> 16) & 0xFFFFFFFF, w)]
    assert noise.view(8, 64)[:, 0].tolist() == rows


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("n", [1, 63, 512, 1000, 70_001])
def test_tiers_draw_the_same_noise(tier: str, n: int) -> None:
    key = Key(seed=(77 << 32) | 1234, step=2**32 - 1, rank=2**24 - 1, bucket=9, hop=255, offset=512 * 5)
    assert torch.equal(kernels.get(tier).noise(key, n), kernels.get("reference").noise(key, n))


def test_offset_is_a_place_in_the_same_stream() -> None:
    tier = kernels.get("cpu")
    whole = tier.noise(Key(seed=3), 4096)
    assert torch.equal(tier.noise(Key(seed=3, offset=1024), 512), whole[1024:1536])


def test_noise_is_uniform() -> None:
    noise = kernels.get("cpu").noise(Key(seed=5), 1 << 20)
    expected = (1 << 20) / 256
    for shift in (24, 16, 8, 0):
        counts = torch.bincount((noise >> shift) & 255, minlength=256).double()
        chi2 = ((counts - expected) ** 2 / expected).sum().item()
        assert 150 < chi2 < 380  # 255 degrees of freedom: 5 standard deviations


def test_streams_are_uncorrelated() -> None:
    """Keys that differ in one field, by one or by one high bit: no correlation beyond chance, at any small lag."""
    n = 1 << 16
    base = Key(seed=1, step=1, rank=1, bucket=1)
    changes = [{f: v} for f in ("seed", "step", "rank", "bucket") for v in (0, 2, 1 << 20)] + [{"hop": 1}]
    tier = kernels.get("cpu")
    streams = [tier.noise(k, n).double() for k in [base, *(base.fold(**c) for c in changes)]]
    rows = torch.stack([(s - s.mean()) / s.std() for s in streams])
    limit = 5 / n**0.5
    for lag in (0, 1, 8, 64, 512):  # 64: the row that shares a word
        product = rows @ rows.roll(lag, 1).T / n
        if lag == 0:
            product.fill_diagonal_(0)
        assert product.abs().max() < limit


def test_the_first_element_alone() -> None:
    for key in (Key(), Key(seed=2**64 - 1, step=5, rank=3, hop=200, offset=1024)):
        assert first(key) == int(kernels.get("reference").noise(key, 1))

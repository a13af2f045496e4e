"""The Walsh-Hadamard transform and random rotations: orthogonal, their own inverse, and the bits of the reference."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from battery import NATIVE, TIERS, vector

from thinwire import Key, kernels
from thinwire.compressors.eden import CENTROIDS
from thinwire.kernels import hadamard
from thinwire.kernels.hadamard import Blocking


@pytest.mark.parametrize("k", range(17))
def test_every_size_has_the_bits_of_the_reference(k: int) -> None:
    x = vector(1 << 17)
    expected = x.clone()
    with kernels.force("reference"):
        hadamard.hadamard(expected, 1 << k)
    for tier in NATIVE:
        got = x.clone()
        with kernels.force(tier):
            hadamard.hadamard(got, 1 << k)
        assert torch.equal(got, expected), tier
    hadamard.hadamard(got, 1 << k)  # its own inverse
    assert (got - x).abs().max() < 2e-6 * (k + 1)


def test_the_matrix_is_hadamards() -> None:
    h = torch.eye(128)
    hadamard.hadamard(h, 128)
    index = torch.arange(128)
    parity = torch.stack([(index[:, None] & index) >> bit & 1 for bit in range(7)]).sum(0) % 2
    assert torch.equal(h.sign(), 1.0 - 2.0 * parity)
    assert (h @ h.T - torch.eye(128)).abs().max() < 1e-6


@pytest.mark.parametrize("rotations", [1, 2])
@pytest.mark.parametrize("block", [128, 4096, 65536])
@pytest.mark.parametrize("n", [0, 1, 100, 128, 5000, 70_001])
def test_rotations_are_inverted_and_keep_lengths(n: int, block: int, rotations: int) -> None:
    x, cut = vector(n, "heavy"), Blocking(n, block, 512)
    words = hadamard.streams(Key(seed=2**40 + 3, step=5, rank=7, offset=1024), rotations)
    r = hadamard.rotate(x, cut, words, 0.25)
    with kernels.force("reference"):
        assert torch.equal(hadamard.rotate(x, cut, words, 0.25), r)
        back = hadamard.unrotate(r.clone(), cut, words)
    assert r.double().norm().item() == pytest.approx(0.25 * x.double().norm().item(), rel=1e-5)
    got = hadamard.unrotate(r, cut, words)
    assert torch.equal(got, back)
    assert (got - 0.25 * x).double().norm() <= 1e-5 * x.double().norm()


def test_signs_are_fair_and_differ_by_key() -> None:
    streams = hadamard.streams(Key(seed=1), 2) + hadamard.streams(Key(seed=1, rank=1), 1)
    flips = [hadamard.signs(words, 1 << 16, torch.device("cpu")) for words in streams]
    for one in flips:
        assert abs(one.mean().item()) < 4 / 256
    for a, b in itertools.combinations(flips, 2):
        assert abs((a * b).mean().item()) < 4 / 256


@pytest.mark.parametrize("tier", TIERS)
def test_the_peak_leaves_out_what_is_not_finite(tier: str) -> None:
    x = vector(200_000)
    top = x.abs().max().item()
    x[5], x[70_000], x[199_999] = math.inf, math.nan, -math.inf
    with kernels.force(tier):
        assert hadamard.peak(x) == top
        assert hadamard.peak(torch.empty(0)) == 0
        assert hadamard.unit(torch.zeros(9)) == 1
        for scale in (2e-38, 1.0, 3e38):
            assert 0.5 <= scale / hadamard.unit(torch.tensor([scale])) < 4
        assert hadamard.unit(torch.tensor([1e-45])) == 2.0**-126


def test_bad_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match=r"block of 2\^0 .. 2\^16"):
        hadamard.hadamard(torch.zeros(96), 24)
    with pytest.raises(ValueError, match="contiguous float32"):
        hadamard.hadamard(torch.zeros(64, dtype=torch.float64), 64)


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_centroids_are_the_fixed_point_of_lloyd(bits: int) -> None:
    """Each is the mean of a standard normal between the midpoints to its neighbours."""
    c = CENTROIDS[bits]
    edges = [0.0, *((a + b) / 2 for a, b in itertools.pairwise(c)), math.inf]
    density = [math.exp(-e * e / 2) / math.sqrt(2 * math.pi) for e in edges]
    tail = [math.erfc(e / math.sqrt(2)) / 2 for e in edges]
    for j, value in enumerate(c):
        assert value == pytest.approx((density[j] - density[j + 1]) / (tail[j] - tail[j + 1]), rel=1e-12)

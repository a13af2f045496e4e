"""Declared facts, measured: bias, omega and delta of every instance, on the fastest tier."""

from __future__ import annotations

import math

import pytest
import torch
from battery import INSTANCES, vector
from torch import Tensor

from thinwire import Key, Layout
from thinwire.compressors import (
    AtomoSpectral,
    IntBlock,
    KLevel,
    LowPrecision,
    Natural,
    NaturalDithering,
    Qsgd,
    RandomK,
    TernGrad,
)
from thinwire.compressors.block import omega_max
from thinwire.compressors.rotated_code import RotatedCode
from thinwire.core.compressor import Compressor

each_instance = pytest.mark.parametrize("c", INSTANCES, ids=lambda c: c.id)


def dimension(c: Compressor) -> int:
    """A dimension that is one block, so that the bound is not diluted."""
    return min(getattr(c, "block", None) or 512, 512)


def draws(c: Compressor, x: Tensor, count: int) -> Tensor:
    """(count, d) independent decodings of `x`."""
    layout = Layout.flat(x.numel())
    keys = (Key(seed=11, step=i) for i in range(count))
    return torch.stack([c.decode(c.encode(x, layout, key, checksum=False), layout, key=key) for key in keys])


def spiked(d: int, levels: int) -> Tensor:
    """The worst vector of `omega_max`: one entry 1 and d - 1 equal small ones."""
    x = torch.full((d,), (math.sqrt(levels**2 + d - 1) - levels) / max(1, d - 1))
    x[0] = 1.0
    return x


@each_instance
def test_declared_error_bounds_hold(c: Compressor, long: bool) -> None:
    """Without `--long`, fewer draws of vectors that are not near the bound of any compressor."""
    d = dimension(c)
    omega, delta = c.omega(d), c.delta(d)
    assert c.unbiased == (omega is not None)
    assert delta is None or 0 < delta <= 1
    for kind in ("gauss", "heavy", "one-hot", "constant", "spiked"):
        x = spiked(d, 1) if kind == "spiked" else vector(d, kind)
        repeats = 40 if c.unbiased else 60 if isinstance(c, RandomK | RotatedCode) else 1
        if repeats > 1 and kind in ("heavy", "one-hot", "constant") and not long:
            repeats = 12
        error = (draws(c, x, repeats) - x).double().square().sum(1) / x.double().square().sum()
        mean, spread = error.mean().item(), error.std(correction=0).item() / math.sqrt(repeats)
        if omega is not None:
            assert mean <= omega + 4 * spread + 1e-6, kind
        if delta is not None:
            assert mean <= (1 - delta) + 4 * spread + 1e-6, kind


@pytest.mark.parametrize("c", [c for c in INSTANCES if c.unbiased], ids=lambda c: c.id)
def test_declared_unbiasedness(c: Compressor, long: bool) -> None:
    """Two thousand draws: of 100 keys, each on a vector that holds x twenty times, whose mean is one value.

    The twenty vary as x alone does, but for the singular vectors of a matrix, which they would change: 600 draws,
    or 300 without `--long`.
    """
    x = vector(dimension(c), seed=4)
    copies = 1 if isinstance(c, AtomoSpectral) else 20
    count = 100 if copies > 1 else 600 if long else 300
    q = draws(c, x.repeat(copies), count).view(count, copies, -1).double().mean(1)
    variance = q.var(0)
    # Rare levels may not be seen at all: their variance is taken to be at least 5% of the mean one.
    spread = ((variance + 0.05 * variance.mean()) / count).sqrt() + 1e-12
    z = (q.mean(0) - x.double()) / spread
    assert z.abs().max() < 5.5
    assert z.square().mean() < 1 + 5 * math.sqrt(2 / x.numel())


@pytest.mark.parametrize(
    ("c", "s"),
    [(TernGrad(clip=None), 1), (Qsgd(bits=2), 1), (Qsgd(bits=4), 7), (IntBlock(3, 512, "stochastic"), 3)],
    ids=str,
)
def test_the_max_bound_is_attained(c: Compressor, s: int) -> None:
    x = spiked(512, s)
    error = (draws(c, x, 400) - x).square().sum(1).mean() / x.square().sum()
    assert error.item() == pytest.approx(omega_max(s, 512), rel=0.05)


def test_the_nearest_bound_is_attained() -> None:
    c = IntBlock(bits=4, block=256)
    x = torch.full((256,), 0.4999 / 7)
    x[0] = 1.0
    error = (draws(c, x, 1)[0] - x).square().sum() / x.square().sum()
    delta = c.delta(256)
    assert delta is not None
    assert error.item() == pytest.approx(1 - delta, rel=1e-3)


def test_the_range_bound_is_attained() -> None:
    c = KLevel(k=2)
    x = torch.zeros(512)
    x[0], x[1] = 1.0, -1.0
    error = (draws(c, x, 50) - x).square().sum(1).mean() / x.square().sum()
    assert error.item() == pytest.approx(c.omega(512), rel=1e-6)


@pytest.mark.parametrize("c", [IntBlock(), Qsgd(bits=8), Qsgd(levels=7, norm="l2", block=64)], ids=str)
def test_denormal_blocks_keep_their_precision(c: Compressor) -> None:
    x = vector(512, "denormal")
    ulp = 2.0**-149
    normal = draws(c, vector(512), 1)[0] * 1e-40
    tiny = draws(c, x, 1)[0]
    assert (tiny - normal).abs().max() <= 200 * ulp  # the step of a level is itself rounded to an ulp


@pytest.mark.parametrize(
    ("c", "step"),
    [
        (TernGrad(clip=None), 1.0),
        (Qsgd(levels=1, block=None), 1.0),
        (Qsgd(bits=8, block=None), 1 / 127),
        (KLevel(k=16), 2 / 15),
        (LowPrecision(bits=2), 1.0),
        (Natural(), None),
        (NaturalDithering(levels=4, norm="max", block=None), 1 / 8),
    ],
    ids=str,
)
@pytest.mark.parametrize("small", [3e-7, 7e-6, 1e-4])
def test_small_elements_of_long_vectors_are_not_lost(c: Compressor, step: float | None, small: float) -> None:
    """One spike and a million elements far below a level: their sum survives, unbiased."""
    d, repeats = 1 << 20, 4
    x = torch.full((d,), small)
    x[0], x[1] = 1.0, -1.0
    sums = (draws(c, x, repeats)[:, 2:]).double().sum(1)
    exact = small * (d - 2)
    midway = (2 / 15) ** 2 / 4  # zero lies between two points of the k-level grid
    variance = midway if isinstance(c, KLevel) else small * (step or small)
    assert abs(sums.mean().item() - exact) < 5 * math.sqrt(variance * d / repeats) + 1e-3 * exact

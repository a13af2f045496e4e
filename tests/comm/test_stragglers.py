"""Stragglers: their means, that a factor depends on its key alone, and what is refused."""

from __future__ import annotations

import math
from statistics import fmean, pstdev

import pytest

from thinwire.comm.stragglers import (
    Constant,
    Exponential,
    LogNormal,
    ShiftedExponential,
    Stragglers,
    Transient,
    uniform,
)

DRAWS = 20_000
MODELS: list[tuple[Stragglers, float, float]] = [  # mean and standard deviation
    (Constant({0: 3.0}), 3.0, 0.0),
    (Exponential(), 1.0, 1.0),
    (ShiftedExponential(0.5), 1.5, 0.5),
    (LogNormal(0.4), 1.0, math.sqrt(math.exp(0.16) - 1)),
    (Transient(0.1, 5.0), 1.4, 4 * math.sqrt(0.09)),
]


@pytest.mark.parametrize(("model", "mean", "deviation"), MODELS, ids=lambda value: type(value).__name__)
def test_means_and_deviations(model: Stragglers, mean: float, deviation: float) -> None:
    drawn = [model.factor(0, turn, 7) for turn in range(DRAWS)]
    assert fmean(drawn) == pytest.approx(mean, abs=5 * deviation / DRAWS**0.5)
    assert pstdev(drawn) == pytest.approx(deviation, rel=0.05)


def test_a_factor_depends_on_its_key_alone() -> None:
    keys = [(rank, turn, seed) for rank in range(5) for turn in range(5) for seed in range(5)]
    drawn = [uniform(*key) for key in keys]
    assert drawn == [uniform(*key) for key in keys]
    assert len(set(drawn)) == len(keys)
    assert all(0 < u < 1 for u in drawn)


def test_bounds() -> None:
    assert min(ShiftedExponential(2.0).factor(0, turn, 0) for turn in range(1000)) >= 1
    assert {Transient(0.5, 5.0).factor(1, turn, 0) for turn in range(100)} == {1.0, 5.0}
    assert Constant({0: 3.0}).factor(1, 0, 0) == 1


@pytest.mark.parametrize("model", [model for model, _, _ in MODELS])
def test_a_model_is_its_repr(model: Stragglers) -> None:
    assert eval(repr(model)) == model


@pytest.mark.parametrize(
    "call",
    [
        lambda: Constant({0: -1.0}),
        lambda: ShiftedExponential(-0.1),
        lambda: LogNormal(-1.0),
        lambda: Transient(1.5, 2.0),
        lambda: Transient(0.5, -2.0),
    ],
)
def test_refusals(call: type) -> None:
    with pytest.raises(ValueError, match="write"):
        call()

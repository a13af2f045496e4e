"""Randomised mean estimation: the paper's error, the best centres and probabilities, and its costs."""

from __future__ import annotations

import math

import pytest
import torch
from sheet import decoded, gauss
from torch import Tensor

from thinwire import Key, Layout, PayloadError, methods
from thinwire.compressors import Centred, CentredK, Wangni
from thinwire.compressors.centred import centre, distances, mean
from thinwire.compressors.wangni import inverse_lambda
from thinwire.core.compressor import Compressor
from thinwire.lab.world import World

D, N = 400, 4
SKEWED = [gauss(D, seed=r).exp() + 2.0 * r for r in range(N)]  # means of 1.6, 3.6, ..., and a long tail


def chances(x: Tensor, mu: float, s: float) -> Tensor:
    a = distances(x, mu).double().abs()
    return (a / inverse_lambda(distances(x, mu), s)).clamp(max=1.0)


def error(x: Tensor, mu: float, p: Tensor) -> float:
    """sum_j (1/p_j - 1) (x_j - mu)^2."""
    a = x.double() - mu
    return float(torch.where(a != 0, (1 / p - 1) * a * a, 0.0).sum())


def measured(c: Compressor, steps: int = 50) -> tuple[float, float]:
    """E|mean - exact|^2 of the mean over ranks, and the squared distance of the mean of all draws from it."""
    exact = torch.stack(SKEWED).double().mean(0)
    world = World(
        methods.rdme(ratio=0.1, p="optimal" if isinstance(c, Centred) else "uniform").exchange, Layout.flat(D)
    )
    assert world.exchange.channels[0].compressor == c
    draws = torch.stack([world.step(SKEWED) for _ in range(steps)]).double()
    return (draws - exact).square().sum(1).mean().item(), (draws.mean(0) - exact).square().sum().item()


def test_the_mean_over_ranks_errs_as_the_paper_says() -> None:
    """(1/n^2) sum_ij (1/p_ij - 1) (x_ij - mu_i)^2, and (1/n^2) sum_i (d/k - 1) |x_i - mu_i|^2 for fixed places."""
    best = [centre(x, 40.0, rounds=1) for x in SKEWED]
    optimal = sum(error(x, mu, chances(x, mu, 40.0)) for x, mu in zip(SKEWED, best, strict=True)) / N**2
    uniform = sum(9 * float((x.double() - mean(x)).square().sum()) for x in SKEWED) / N**2
    for c, formula in ((Centred(0.1), optimal), (CentredK(0.1), uniform)):
        found, bias = measured(c)
        assert found == pytest.approx(formula, rel=0.1)
        assert bias == pytest.approx(formula / 50, rel=0.6)
    assert optimal < 0.5 * uniform


def test_no_other_centre_is_better_for_equal_probabilities() -> None:
    x, p = SKEWED[1], torch.full((D,), 0.1, dtype=torch.float64)
    assert mean(x) == pytest.approx(float(x.double().mean()), rel=1e-6)
    for other in (0.0, mean(x) - 0.1, mean(x) + 0.1):
        assert error(x, other, p) > error(x, mean(x), p)


def test_every_turn_lowers_the_error_and_the_weighted_mean_is_best() -> None:
    x, s = SKEWED[2], 40.0
    centres = [centre(x, s, rounds) for rounds in range(4)]
    errors = [error(x, mu, chances(x, mu, s)) for mu in centres]
    assert errors == sorted(errors, reverse=True)
    assert errors[1] < 0.97 * errors[0]
    p = chances(x, centres[0], s)
    for other in (centres[0], centres[1] - 0.05, centres[1] + 0.05):
        assert error(x, other, p) > error(x, centres[1], p)


def test_probabilities_sum_to_the_budget_and_certain_elements_are_exact() -> None:
    x = SKEWED[0].clone()
    x[:3] = 1e4
    c = Centred(0.1)
    mu = centre(x, 40.0, rounds=1)
    p = chances(x, mu, 40.0)
    assert float(p.sum()) == pytest.approx(40, rel=1e-4)
    draws = [decoded(c, x, step) for step in range(30)]
    for q in draws:
        assert torch.allclose(q[:3], x[:3])
        away = {round(float(v), 2) for v in (q - mu)[p < 1].abs()}
        assert away <= {0.0, round(inverse_lambda(distances(x, mu), 40.0), 2)}
    assert sum(int((q != mu).sum()) for q in draws) / 30 == pytest.approx(40, rel=0.05)


def test_bits() -> None:
    """Fixed places: the centre and k values. Optimal: the centre beside what Wangni's sparsification sends."""
    layout, x = Layout.flat(D), SKEWED[0] - mean(SKEWED[0])
    assert CentredK(0.1).encode(x, layout).body.numel() == 4 + 4 * 40
    sizes = [
        sum(c.encode(x, layout, Key(step=i)).body.numel() for i in range(20)) for c in (Centred(0.1, 0), Wangni(0.1))
    ]
    assert sizes[0] == pytest.approx(sizes[1] + 20 * 4, abs=20)


def test_a_constant_is_sent_exactly() -> None:
    for c in (Centred(), CentredK()):
        assert torch.equal(decoded(c, torch.full((700,), 0.7)), torch.full((700,), 0.7))


def test_nan_spoils_the_whole_vector() -> None:
    x = gauss(50)
    x[7] = math.inf
    for c in (Centred(0.1), CentredK(0.1)):
        assert decoded(c, x).isnan().all()


def test_bad_settings_and_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match="0 < ratio <= 1"):
        CentredK(ratio=0)
    with pytest.raises(ValueError, match="write 0 to keep to the mean"):
        Centred(rounds=-1)
    with pytest.raises(ValueError, match="optimal"):
        methods.rdme(p="best")  # type: ignore[arg-type]
    with pytest.raises(PayloadError):
        Centred().add(torch.zeros(4, dtype=torch.uint8), Layout.flat(3), Key(), torch.zeros(3), 1.0)

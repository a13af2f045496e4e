"""The specification's facts about gossip on a ring of 8: least squares that differ between ranks.

Sixty-four unknowns, full gradients, a step of 0.02. The specification does not give its data: ours are another draw.
The tests take 250 steps in place of 4000, with --long, and otherwise 100, where the error of the mean is on its
way: with a memory it is that without compression at any time. The distance of the mean model from the optimum, and
that of the models from their mean, both over the length of the optimum:

                             the specification    here, 250 steps    1000 steps
    D-PSGD                         .057 / .126        .043 / .123    .036 / .123
    no compression, eta .2                            .129 / .420    .125 / .420
    top 10%, eta .2
        DeepSqueeze                .18  / .59         .128 / .603    .125 / .641
        CHOCO-SGD                  .18  / .40         .129 / .420
        no memory                  .52  / 1.10        .344 / 1.18    .379 / 1.23
    scaled sign, eta .2
        DeepSqueeze                .18  / .48         .129 / .478    .125 / .481
        CHOCO-SGD                                     .129 / .420
        no memory                  .47  / 1.08        .297 / 1.07    .314 / 1.11
    QSGD 15 levels, eta .2
        any of the three           .18  / .40         .130 / .423 at most

After 100 steps it is .240 / .423 without compression, .240 / .563 and .370 / 1.05 for DeepSqueeze and no memory with
top 10%, .243 / .472 and .347 / .941 with scaled signs; .181 / .124 with D-PSGD.

Distances between ranks are the specification's to 10%; errors of the mean are 0.6 to 0.75 of them throughout.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import NamedTuple

import pytest
import torch
from swarms import normal
from torch import Tensor

from thinwire import Channel
from thinwire.compressors import Identity, Qsgd, ScaledSign, Shrunk, TopK
from thinwire.core.compressor import Compressor
from thinwire.exchange import Dcd, Gossip, Mix
from thinwire.lab.swarm import Swarm
from thinwire.memory import Difference, ErrorFeedback, Memory, NoMemory

N, D, LR = 8, 64, 0.02
PLAIN = {100: (0.240, 0.4234), 250: (0.129, 0.420)}  # by steps: without compression, error and distance
FAR = 1e3  # of the length of a model: it diverges
A = normal(N, 100, D) / 10
B = (A @ normal(N, D, 1, seed=1))[..., 0]
PULLS = (A.mT @ B[..., None])[..., 0]
OPTIMUM = torch.linalg.solve((A.mT @ A).mean(0), PULLS.mean(0))
ONE_LEVEL = Qsgd(levels=1, norm="l2", block=D)  # loses 5.5 times the squared length
FIFTEEN = Qsgd(levels=15, norm="l2", block=D)


class End(NamedTuple):
    """Where a run ended, in lengths of the optimum."""

    error: float  # of the mean model
    apart: float  # the models from their mean
    drift: float  # the largest of the mean from what plain SGD on the mean gradient would do, in a step
    steps: int  # until it ended, or was far off


def gradients(models: Tensor) -> Tensor:
    return (A.mT @ (A @ models[..., None]))[..., 0] - PULLS


@cache
def run(exchange: Gossip, steps: int) -> End:
    swarm, length = Swarm(exchange, N, torch.zeros(D, dtype=torch.float64)), float(OPTIMUM.norm())
    drift = 0.0
    for _ in range(steps):
        updates = -LR * gradients(swarm.models)
        due = swarm.mean + updates.mean(0)
        swarm.step(updates)
        drift = max(drift, float((swarm.mean - due).abs().max()))
        if not swarm.distance < FAR * length:
            break
    error = float((swarm.mean - OPTIMUM).norm())
    return End(error / length, swarm.distance / length, drift, swarm.steps)


@pytest.fixture
def steps(long: bool) -> int:
    return 250 if long else 100


def mix(c: Compressor, memory: Memory, eta: float = 0.2) -> Mix:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*lets errors grow")  # where they do is a fact below
        return Mix(Channel(c, memory), eta=eta)


def deepsqueeze(c: Compressor, eta: float = 0.2) -> Mix:
    return mix(c, ErrorFeedback(), eta)


def choco(c: Compressor, eta: float = 0.2) -> Mix:
    return mix(c, Difference(), eta)


def naive(c: Compressor, eta: float = 0.2) -> Mix:
    return mix(c, NoMemory(), eta)


def test_d_psgd_has_a_floor(steps: int) -> None:
    """The distance of the ranks is at its floor after 50 steps, the error of the mean after 250."""
    end = run(Mix(eta=1.0, early=True), steps)
    assert (end.error, end.apart) == pytest.approx((0.043, 0.123) if steps == 250 else (0.181, 0.124), rel=0.05)


@pytest.mark.parametrize("c", [TopK(ratio=0.1), ScaledSign()], ids=lambda c: c.id)
def test_a_memory_reaches_the_error_without_compression(c: Compressor, steps: int) -> None:
    """At the same eta. DeepSqueeze sends models, which do not shrink: its ranks stay further apart than CHOCO's."""
    plain = run(naive(Identity()), steps)
    assert (plain.error, plain.apart) == pytest.approx(PLAIN[steps], rel=0.05)
    assert run(deepsqueeze(c), steps).error == pytest.approx(plain.error, rel=0.1)
    assert run(choco(c), steps).error == pytest.approx(plain.error, rel=0.05)
    assert run(choco(c), steps).apart == pytest.approx(plain.apart, rel=0.05)
    assert 1.1 * plain.apart < run(deepsqueeze(c), steps).apart < 1.6 * plain.apart  # there 1.48 and 1.2


@pytest.mark.parametrize("c", [TopK(ratio=0.1), ScaledSign()], ids=lambda c: c.id)
def test_without_a_memory_it_is_worse(c: Compressor, steps: int) -> None:
    """The specification: 2.9 and 2.6 times the error of DeepSqueeze, 1.9 and 2.3 times as far apart.

    Here: 2.7 and 2.3, 1.95 and 2.2 after 250 steps, 1.54 and 1.43, 1.9 and 2.0 after 100.
    """
    without, with_memory = run(naive(c), steps), run(deepsqueeze(c), steps)
    worse = without.error / with_memory.error
    assert 2 < worse < 3.2 if steps > 200 else 1.35 < worse < 2
    assert 1.7 < without.apart / with_memory.apart < 2.6


def test_fifteen_levels_are_too_mild_to_matter() -> None:
    plain = run(naive(Identity()), 50)
    for exchange in (deepsqueeze(FIFTEEN), choco(FIFTEEN), naive(FIFTEEN)):
        end = run(exchange, 50)
        assert end.error == pytest.approx(plain.error, rel=0.05)
        assert end.apart == pytest.approx(plain.apart, rel=0.05)


def test_the_mean_is_that_of_plain_sgd(steps: int) -> None:
    for exchange in (
        deepsqueeze(ScaledSign()),
        choco(TopK(ratio=0.1)),
        naive(ScaledSign()),
    ):
        assert run(exchange, steps).drift < 1e-14
    assert run(Mix(eta=1.0, early=True), steps).drift < 1e-14


def test_one_level_diverges() -> None:
    """What is left out grows by the root of omega per step. The specification: in less than 100 steps; here 25."""
    for exchange in (deepsqueeze(ONE_LEVEL), choco(ONE_LEVEL), Dcd(Channel(ONE_LEVEL))):
        end = run(exchange, 100)
        assert end.apart > FAR
        assert end.steps < 50


def test_one_level_divided_by_one_plus_omega_converges_with_a_small_eta(long: bool) -> None:
    """Then it is a contraction. With eta = .5 it still overshoots, by 4% per step: far off in 175 and 214 steps.

    With eta = 1 it is far off in 63 and 74.
    """
    much, steps = (0.5, 150) if long else (1.0, 50)
    c = Shrunk(ONE_LEVEL)
    assert c.scale == pytest.approx(1 / 6.5, rel=0.05)
    plain = run(naive(Identity(), 0.05), steps)
    for small, large in ((deepsqueeze(c, 0.05), deepsqueeze(c, much)), (choco(c, 0.05), choco(c, much))):
        end = run(small, steps)
        assert end.error == pytest.approx(plain.error, rel=0.05)
        assert end.apart == pytest.approx(plain.apart, rel=0.1)
        assert run(large, 400).apart > FAR

"""SlowMo and BMUF on the clock, beside the equations of their papers done by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from points import LR, WORKERS, D, close, locally, run, spread
from torch import Tensor

import thinwire as tw
from thinwire import methods
from thinwire.topology.mixing import matrices


def by_hand(
    outer: Callable[[Tensor, Tensor, float], Tensor], every: int = 3, lr: Callable[[int], float] = lambda _: LR
) -> Tensor:
    """Twelve steps; `outer(anchor, mean, lr)` is where the ranks set out from next."""
    anchor = torch.zeros(D)
    for start in range(0, 12, every):
        steps = range(start, start + every)
        anchor = outer(anchor, locally(anchor, steps, lr).mean(0), lr(steps[-1]))
    return anchor


@pytest.mark.parametrize("moved", [False, True], ids=["constant", "moved"])
def test_slowmo_follows_the_learning_rate(moved: bool) -> None:
    """u = beta u + (x_old - x) / gamma; x = x_old - alpha gamma u, with the gamma of the round."""
    u = torch.zeros(D)

    def lr(step: int) -> float:
        return 0.02 if moved and step >= 6 else LR

    def slow(old: Tensor, mean: Tensor, gamma: float) -> Tensor:
        u.mul_(0.7).add_((old - mean) / gamma)
        return old - 0.9 * gamma * u

    course = run(methods.slowmo(every=3, alpha=0.9, beta=0.7), lr=lr)
    due = by_hand(slow, lr=lr)
    for x in course.models:
        close(x, due)
    assert spread(course.models) == 0


def test_slowmo_survives_a_learning_rate_of_zero() -> None:
    course = run(methods.slowmo(every=3), lr=lambda step: 0.0 if step >= 6 else LR)
    assert torch.equal(course.before[0][6], course.models[0])  # nobody moved, so neither does the anchor


@pytest.mark.parametrize("nesterov", [False, True], ids=["classical", "nesterov"])
def test_bmuf_is_the_papers(nesterov: bool) -> None:
    """D = eta_b D + zeta G; x = x + D; with Nesterov ranks set out from x + eta_b D, from where G is measured."""
    d, x = torch.zeros(D), torch.zeros(D)

    def block(start: Tensor, mean: Tensor, _: float) -> Tensor:
        d.mul_(0.75).add_(0.8 * (mean - start))
        x.add_(d)
        return x + 0.75 * d if nesterov else x.clone()

    found = run(methods.bmuf(every=3, zeta=0.8, eta_b=0.75, nesterov=nesterov)).models
    due = by_hand(block)
    for one in found:
        close(one, due)


def test_bmuf_is_slowmo_while_the_learning_rate_stays() -> None:
    bmuf, slow = run(methods.bmuf(every=3, eta_b=0.6)), run(methods.slowmo(every=3, alpha=1.0, beta=0.6))
    close(bmuf.models, slow.models)


@pytest.mark.parametrize(
    ("graph", "base"),
    [
        ("one-peer", methods.sgp(every=3)),
        ("exponential", methods.sgp("exponential", every=3)),
        ("ring", methods.d_psgd(early=False, every=3)),
    ],
)
def test_slowmo_over_a_graph(graph: str, base: tw.Method) -> None:
    """Without momentum it is the gossip that it runs over; with it, each rank has a u of its own."""
    plain = run(methods.slowmo(every=3, beta=0.0, topology=graph)).models
    close(plain, run(base).models)
    assert spread(plain) > 1e-3 or graph == "one-peer"
    if graph == "one-peer":
        return  # W changes from round to round
    w = next(matrices(tw.topology.get(graph), WORKERS)).float()
    anchors, u = torch.zeros(WORKERS, D), torch.zeros(WORKERS, D)
    for start in range(0, 12, 3):
        ends = torch.stack([locally(anchors[rank], range(start, start + 3))[rank] for rank in range(WORKERS)])
        u = 0.7 * u + (anchors - w @ ends) / LR
        anchors = anchors - LR * u
    close(run(methods.slowmo(every=3, beta=0.7, topology=graph)).models, anchors)

"""ECQ-SGD on the synthetic regressions of the specification, section 2."""

from __future__ import annotations

import pytest
import torch
from battery import vector
from torch import Tensor

from thinwire import Channel, Key, Layout, methods
from thinwire.codecs import Rans
from thinwire.compressors import Qsgd
from thinwire.core.compressor import encode_with_feedback
from thinwire.exchange import AllGather
from thinwire.lab.world import World
from thinwire.memory import ErrorFeedback

RANKS, BATCH, SAMPLES = 4, 64, 10_000
Feedback = tuple[float, float]  # alpha and beta


def distances(d: int, ways: list[Feedback | None], steps: int) -> Tensor:
    """|w - w*| of every way, over the last 100 steps; None is float32. One block per vector, L2 scaling, 4 levels.

    The ranks' gradients lie side by side in one vector, one block each, so that a step takes one encode per way.
    """
    g = torch.Generator().manual_seed(0)
    x, truth = torch.randn(SAMPLES, d, generator=g), torch.randn(d, generator=g)
    y = x @ truth + 0.1 * torch.randn(SAMPLES, generator=g)
    q, layout = Qsgd(levels=4, norm="l2", block=d), Layout.flat(RANKS * d)
    w, residuals = torch.zeros(len(ways), d), torch.zeros(len(ways), RANKS * d)
    total = torch.zeros(len(ways))
    for step in range(steps):
        picked = torch.randint(SAMPLES, (RANKS * BATCH,), generator=g)
        rows = x[picked]
        error = rows @ w.T - y[picked, None]
        grads = torch.einsum("rbm,rbd->mrd", error.view(RANKS, BATCH, -1), rows.view(RANKS, BATCH, d)) / BATCH
        for i, way in enumerate(ways):
            grad = grads[i].reshape(-1)
            if way is not None:
                key, (alpha, beta) = Key(seed=1, step=step), way
                payload = encode_with_feedback(q, grad, residuals[i], layout, key, alpha=alpha, beta=beta)
                grad = q.decode(payload, layout)
            w[i] -= 0.02 * grad.view(RANKS, d).mean(0)
        if step >= steps - 100:
            total += (w - truth).norm(dim=1) / 100
    return total


@pytest.mark.parametrize("d", [256, 1024])
def test_it_recovers_two_thirds_of_what_quantising_costs(d: int, long: bool) -> None:
    steps = 1500 if long else 600
    exact, qsgd, ecq = distances(d, [None, (0.0, 0.0), (0.2, 0.9)], steps).tolist()
    assert qsgd > 1.15 * exact
    assert (qsgd - ecq) / (qsgd - exact) >= 0.65


@pytest.mark.parametrize("d", [256, 1024])
def test_plain_feedback_diverges_and_says_so(d: int) -> None:
    """omega is above 1, so alpha = beta = 1 feeds back more than it sends."""
    with pytest.warns(UserWarning, match="lets errors grow"):
        Channel(Qsgd(levels=4, norm="l2", block=d), ErrorFeedback())
    with pytest.warns(UserWarning, match="lets errors grow"):
        methods.ecq_sgd(alpha=1.0, beta=1.0, block=d)
    (distance,) = distances(d, [(1.0, 1.0)], steps=300).tolist()
    assert not distance < 1e6


def test_both_hops_keep_the_feedback_and_the_papers_form_is_one_argument_away() -> None:
    up, down = methods.ecq_sgd().exchange.channels
    assert up == down == Channel(Qsgd(levels=4, norm="l2"), ErrorFeedback(alpha=0.2, beta=0.9), Rans())
    assert methods.ecq_sgd(exchange="all-gather").exchange == AllGather(up)


def test_the_default_sends_a_bit_and_a_fifth() -> None:
    """Of four ranks, both ways: 3/4 of an element's entropy to the owners of shards, and as much from them."""
    n = 1 << 16
    world = World(methods.ecq_sgd().exchange, Layout.flat(n))
    for step in range(3):
        world.step([vector(n, seed=4 * step + rank) for rank in range(4)])
    assert 8 * world.traffic[0].bytes / 3 / n == pytest.approx(1.2, abs=0.05)

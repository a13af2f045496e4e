"""Gossip against the papers' equations, written with whole matrices: one row per rank, W from the left.

Both use the same compressor and the same keys, so that they draw the same noise. Ranks start equal, as do their
estimates of each other. What a sender keeps is float32, here as there: otherwise an element may be rounded to the
other side, which is a whole level of the quantiser.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from swarms import normal, together
from torch import Tensor

from thinwire import Channel, Key, Layout
from thinwire.compressors import Identity, Qsgd, ScaledSign, TopK
from thinwire.core.compressor import Compressor
from thinwire.exchange import Dcd, Ecd, Gossip, Mix
from thinwire.memory import Difference, ErrorFeedback
from thinwire.topology import Matching, OnePeer, Ring, Topology, Torus

N, D, STEPS = 6, 60, 5
Coded = Callable[[Tensor, int], Tensor]
"""C of every row, in a step."""
Paper = Callable[[Tensor, Coded, Topology, float], Tensor]
"""Models after the steps, from the models, C, W and eta."""


def coded(c: Compressor) -> Coded:
    layout = Layout.flat(D)

    def rows(x: Tensor, step: int) -> Tensor:
        keys = [Key(step=step, rank=rank) for rank in range(len(x))]
        return torch.stack(
            [c.decode(c.encode(r.float(), layout, k), layout, key=k).double() for r, k in zip(x, keys, strict=True)]
        )

    return rows


def updates() -> Iterator[tuple[int, Tensor]]:
    return ((step, 0.1 * normal(N, D, seed=50 + step)) for step in range(STEPS))


def naive(x: Tensor, c: Coded, topology: Topology, eta: float) -> Tensor:
    for step, u in updates():
        m = c(x + u, step)
        x = x + u + eta * (topology.matrix(N, step) @ m - m)
    return x


def d_psgd(x: Tensor, c: Coded, topology: Topology, eta: float) -> Tensor:
    for step, u in updates():
        m = c(x, step)
        x = x + eta * (topology.matrix(N, step) @ m - m) + u
    return x


def deepsqueeze(x: Tensor, c: Coded, topology: Topology, eta: float) -> Tensor:
    e = torch.zeros_like(x).float()
    for step, u in updates():
        v = (x + u).float() + e
        m = c(v, step)
        e = v - m.float()
        x = x + u + eta * (topology.matrix(N, step) @ m - m)
    return x


def choco_sgd(x: Tensor, c: Coded, topology: Topology, eta: float) -> Tensor:
    h = x.float()
    for step, u in updates():
        h = h + c((x + u).float() - h, step).float()
        x = x + u + eta * (topology.matrix(N) @ h.double() - h)
    return x


def dcd_psgd(x: Tensor, c: Coded, topology: Topology, eta: float) -> Tensor:
    for step, u in updates():
        x = x + c(topology.matrix(N) @ x - x + u, step)
    return x


def ecd_psgd(x: Tensor, c: Coded, topology: Topology, eta: float) -> Tensor:
    y = x.clone()
    for step, u in updates():
        t = step + 1
        now = topology.matrix(N) @ y + u
        y = (1 - 2 / t) * y + (2 / t) * c((1 - t / 2) * x + (t / 2) * now, step)
        x = now
    return x


BIASED: list[Compressor] = [ScaledSign(), TopK(ratio=0.1)]
UNBIASED: list[Compressor] = [Qsgd(bits=8), Qsgd(bits=4, block=20)]


def trained(exchange: Gossip) -> Tensor:
    """The models after the steps."""
    swarm = together(exchange, N, normal(D))
    for _, u in updates():
        swarm.step(u)
    return swarm.models


def check(exchange: Gossip, paper: Paper, eta: float = 1.0) -> None:
    """The models are the same, and differ from those without an exchange."""
    start, models = normal(1, D).repeat(N, 1), trained(exchange)
    expected = paper(start, coded(exchange.channels[0].compressor), exchange.topology, eta)
    assert float((models - expected).abs().max()) < 1e-5
    assert float((models - start - sum(u for _, u in updates())).abs().max()) > 0.1


@pytest.mark.parametrize("topology", [Ring(), OnePeer(), Matching()], ids=lambda t: t.id)
@pytest.mark.parametrize("c", [*BIASED, *UNBIASED], ids=lambda c: c.id)
def test_no_memory_and_error_feedback(c: Compressor, topology: Topology) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*lets errors grow")
        remembers = Channel(c, ErrorFeedback())
    check(Mix(Channel(c), topology, 0.3), naive, 0.3)
    check(Mix(Channel(c), topology, 0.3, early=True), d_psgd, 0.3)
    check(Mix(remembers, topology, 0.3), deepsqueeze, 0.3)


@pytest.mark.parametrize("topology", [Ring(), Torus()], ids=lambda t: t.id)
@pytest.mark.parametrize("c", [*BIASED, *UNBIASED], ids=lambda c: c.id)
def test_differences(c: Compressor, topology: Topology) -> None:
    check(Mix(Channel(c, Difference()), topology, 0.3), choco_sgd, 0.3)
    check(Mix(Channel(c, Difference()), topology, 0.3, copies=True), choco_sgd, 0.3)
    check(Dcd(Channel(c), topology), dcd_psgd)


@pytest.mark.parametrize("topology", [Ring(), Torus()], ids=lambda t: t.id)
@pytest.mark.parametrize("c", UNBIASED, ids=lambda c: c.id)
def test_extrapolations(c: Compressor, topology: Topology) -> None:
    check(Ecd(Channel(c), topology), ecd_psgd)


def test_which_d_psgd_is_what_without_compression() -> None:
    """DeepSqueeze and CHOCO-SGD with eta = 1 mix models after the local step, DCD and ECD those before it."""
    late, early = Mix(eta=1.0), Mix(eta=1.0, early=True)
    same: dict[Gossip, Gossip] = {
        Mix(Channel(Identity(), ErrorFeedback()), eta=1.0): late,
        Mix(Channel(Identity(), Difference()), eta=1.0): late,
        Dcd(): early,
        Ecd(): early,
    }
    models = {exchange: trained(exchange) for exchange in {late, early, *same}}
    for exchange, plain in same.items():
        assert float((models[exchange] - models[plain]).abs().max()) < 1e-5
    assert float((models[late] - models[early]).abs().max()) > 0.01

"""Error feedback loses nothing: what came out and what the residuals hold is what went in."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from battery import vector
from torch import Tensor

from thinwire import Channel, Layout
from thinwire.compressors import OneBit, Qsgd, ScaledSign
from thinwire.core.compressor import Compressor
from thinwire.exchange import AllGather, ScatterGather
from thinwire.lab.world import World
from thinwire.memory import ErrorFeedback

LAYOUT = Layout(("w", "b", "v"), ((40, 50), (33,), (300,)))
COMPRESSORS: list[Compressor] = [ScaledSign(), OneBit(), Qsgd(bits=4)]
FACTORS = [1.0, 1.0, 0.5, 2.0]  # of the learning rate, in turn


def inputs(step: int) -> list[Tensor]:
    return [vector(LAYOUT.numel, seed=4 * step + r) for r in range(4)]


@pytest.mark.parametrize("rescaled", [False, True])
@pytest.mark.parametrize("c", COMPRESSORS, ids=str)
def test_all_gather_conserves(c: Compressor, rescaled: bool) -> None:
    conserves(World(AllGather(Channel(c, ErrorFeedback())), LAYOUT), lambda w: w.mean("send.residual"), rescaled)


@pytest.mark.parametrize("rescaled", [False, True])
@pytest.mark.parametrize("c", COMPRESSORS, ids=str)
def test_scatter_gather_conserves(c: Compressor, rescaled: bool) -> None:
    """The workers' residuals on average, and the owners'."""
    conserves(World(ScatterGather(Channel(c, ErrorFeedback())), LAYOUT), both_hops, rescaled)


def both_hops(world: World) -> Tensor:
    return world.mean("up.send.residual") + world.joined("down.send.residual")


def conserves(world: World, held: Callable[[World], Tensor], rescaled: bool) -> None:
    """sum_t lr_t out_t + lr_T residuals = sum_t lr_t mean x_t, whatever happens to lr."""
    lr, given, got = 1.0, torch.zeros(LAYOUT.numel), torch.zeros(LAYOUT.numel)
    for step in range(20):
        factor = FACTORS[step % 4] if rescaled else 1.0
        if factor != 1.0:
            lr *= factor
            world.rescale(1 / factor)
        xs = inputs(step)
        given += lr * torch.stack(xs).mean(0)
        got += lr * world.step(xs)
        assert torch.allclose(got + lr * held(world), given, atol=2e-4)
    assert (got - given).norm() > 1e-2 * given.norm()  # something was held back

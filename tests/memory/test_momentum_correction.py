"""DGC's memory against the paper's equations."""

from __future__ import annotations

import math

import pytest
import torch
from battery import vector
from sheet import decoded

from thinwire import Channel, Layout
from thinwire.compressors import TopK
from thinwire.exchange import AllGather
from thinwire.lab.world import World
from thinwire.memory import ErrorFeedback, MomentumCorrection

LAYOUT = Layout.flat(600)


def inputs(step: int, n: int = 600) -> list[torch.Tensor]:
    return [vector(n, seed=4 * step + r) for r in range(4)]


@pytest.mark.parametrize("nesterov", [False, True])
def test_without_momentum_it_is_error_feedback(nesterov: bool) -> None:
    """Bit for bit p = e + g, e = p - C(p); and ErrorFeedback, which sums in another order, to rounding."""
    ef = World(AllGather(Channel(TopK(0.05), ErrorFeedback())), LAYOUT)
    dgc = World(AllGather(Channel(TopK(0.05), MomentumCorrection(0.0, nesterov))), LAYOUT)
    residuals = [torch.zeros(600) for _ in range(4)]
    for step in range(20):
        out, other = dgc.step(inputs(step)), ef.step(inputs(step))
        assert torch.equal(out != 0, other != 0)
        assert torch.allclose(out, other, atol=1e-5)
        for rank, g in enumerate(inputs(step)):
            p = residuals[rank] + g
            residuals[rank] = p - decoded(TopK(0.05), p)
            assert torch.equal(dgc.states[rank]["send.residual"], residuals[rank])


@pytest.mark.parametrize("nesterov", [False, True])
def test_the_equations(nesterov: bool) -> None:
    world = World(AllGather(Channel(TopK(0.05), MomentumCorrection(0.9, nesterov))), LAYOUT, 1)
    u, v = torch.zeros(600), torch.zeros(600)
    for step in range(10):
        g = vector(600, seed=step)
        u = 0.9 * (u + g) if nesterov else 0.9 * u + g
        v = v + u + g if nesterov else v + u
        mask = torch.zeros(600, dtype=torch.bool)
        mask[v.abs().topk(30).indices] = True
        assert torch.allclose(world.step([g]), v * mask, atol=1e-5)
        u, v = u * ~mask, v * ~mask
        assert torch.allclose(world.states[0]["send.velocity"], u, atol=1e-5)
        assert torch.allclose(world.states[0]["send.residual"], v, atol=1e-5)


def test_everything_sent_is_plain_momentum_that_is_masked_away() -> None:
    world = World(AllGather(Channel(TopK(1.0), MomentumCorrection(0.9))), LAYOUT)
    for step in range(3):
        assert torch.allclose(world.step(inputs(step)), torch.stack(inputs(step)).mean(0), atol=1e-6)


def test_clipping() -> None:
    world = World(AllGather(Channel(TopK(1.0), MomentumCorrection(0.9, clip=3.0))), LAYOUT)
    xs = inputs(0)
    expected = torch.stack([x * (3.0 / math.sqrt(4) / x.norm()) for x in xs]).mean(0)
    assert torch.allclose(world.step(xs), expected, atol=1e-6)
    short = [x * 1e-3 for x in xs]
    assert torch.allclose(world.step(short), torch.stack(short).mean(0), atol=1e-9)


def test_a_bad_step_leaves_the_state() -> None:
    world = World(AllGather(Channel(TopK(0.05), MomentumCorrection())), LAYOUT)
    world.step(inputs(0))
    before = {name: t.clone() for name, t in world.states[1].items()}
    bad = inputs(1)
    bad[1][7] = math.inf
    assert world.step(bad).isnan().all()
    assert all(torch.equal(t, before[name]) for name, t in world.states[1].items())


def test_a_new_learning_rate_rescales_what_was_held_back() -> None:
    world = World(AllGather(Channel(TopK(0.05), MomentumCorrection())), LAYOUT)
    world.step(inputs(0))
    u, v = (world.states[0][f"send.{name}"].clone() for name in ("velocity", "residual"))
    world.rescale(2.0)
    assert torch.equal(world.states[0]["send.velocity"], u)
    assert torch.equal(world.states[0]["send.residual"], 2 * v)


@pytest.mark.parametrize("settings", [{"momentum": 1.0}, {"momentum": -0.1}, {"clip": 0.0}])
def test_settings_out_of_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="write"):
        MomentumCorrection(**settings)  # type: ignore[arg-type]

"""Choices on the clock: smaller at equal error where tensors differ; LAGS by hand."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

import thinwire as tw
from thinwire.engine.schedules.adapted import add_finite
from thinwire.lab.world import World
from thinwire.sim import Network, Problem, Simulation, simulate
from thinwire.sync import Layer, hidden
from thinwire.sync.hiding import gather_seconds

N, LR = 2, 0.1
SCALES = {"large": 1.0, "small": 1e-3}


class Uneven(nn.Module):
    """Two tensors, of which one has gradients a thousand times as large."""

    def __init__(self) -> None:
        super().__init__()
        self.large = nn.Parameter(torch.zeros(16, 64))
        self.small = nn.Parameter(torch.zeros(64, 64))


def loss(model: nn.Module, rank: int, step: int) -> Tensor:
    """Its gradient is noise that differs between ranks and steps."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    slopes = {name: torch.randn(p.shape, generator=generator) for name, p in model.named_parameters()}
    return torch.stack([SCALES[name] * (p * slopes[name]).sum() for name, p in model.named_parameters()]).sum()


def run(method: tw.Method, steps: int = 4) -> Simulation:
    problem = Problem(Uneven, loss, partial(SGD, lr=LR), seconds=0.1)
    return simulate(method, problem, N, steps=steps, network=Network("1gbit", "1ms"), min_size=0)


def sent(done: Simulation) -> float:
    return done.stats[0]["bytes_sent"]


@pytest.mark.parametrize("kind", ["bits", "ratio", "rank"])
def test_what_hardly_counts_gets_little(kind: str) -> None:
    uniform = {"bits": 4, "ratio": 0.1, "rank": 2}[kind]
    done = run(tw.methods.adaptive(kind, uniform, every=2))  # type: ignore[arg-type]
    fixed = run(tw.methods.adaptive(kind, uniform, every=1000))  # type: ignore[arg-type]
    assert [stats["choices"] for stats in done.stats] == [2] * N
    assert done.stats[0]["chosen_size"] == done.stats[1]["chosen_size"] < 0.95
    assert sent(done) < sent(fixed)
    assert fixed.stats[0]["chosen_size"] == 1.0
    first, second = (nn.utils.parameters_to_vector(model.parameters()) for model in done.models)
    assert torch.equal(first, second)


def test_the_uniform_setting_is_that_of_each_tensor() -> None:
    """Two tensors of 64, a share of 1/8: 8 elements of each move, and not 16 of the one with larger gradients."""

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.large, self.small = nn.Parameter(torch.zeros(64)), nn.Parameter(torch.zeros(64))

    def slopes(model: nn.Module, rank: int, step: int) -> Tensor:
        slope = torch.arange(1.0, 65.0)
        return (model.get_parameter("large") * slope).sum() + (model.get_parameter("small") * slope).sum() / 1000

    problem = Problem(Pair, slopes, partial(SGD, lr=LR))
    for kind, steps in ((f"ratio,uniform={1 / 8}", 1), (f"ratio,uniform={1 / 8},every=1", 2)):  # the start; a choice
        done = simulate(tw.method(f"adaptive:kind={kind}"), problem, N, steps=steps, min_size=0)
        moved = [int((done.models[0].get_parameter(name) != 0).sum()) for name in ("large", "small")]
        assert done.stats[0]["chosen_size"] == 1.0, kind
        assert moved == [8 * steps, 8 * steps], kind


@pytest.mark.parametrize("scale", [0.0, 1e25])
def test_what_cannot_be_measured_stays_uniform(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCALES, "large", scale)  # nothing, or squares beyond float32
    done = run(tw.methods.adaptive("bits", 4, every=2))
    assert [stats["choices"] for stats in done.stats] == [2] * N
    assert done.stats[0]["chosen_size"] == 1.0  # what is left are the equal blocks of one tensor
    assert done.models[0].get_parameter("small").isfinite().all()


def test_lags_with_all_of_each_layer_is_sgd_and_takes_k_of_each() -> None:
    whole, plain = run(tw.methods.lags(1.0)), run(tw.methods.sgd())
    for name in SCALES:
        ours, theirs = (done.models[0].get_parameter(name) for done in (whole, plain))
        assert torch.allclose(ours, theirs, atol=1e-7)
    some = run(tw.methods.lags(0.1, {"small": 0.5}), steps=1)
    moved = {name: int((some.models[0].get_parameter(name) != 0).sum()) for name in SCALES}
    assert 102 <= moved["large"] <= 204  # k of each rank, at other places or the same
    assert 2048 <= moved["small"] <= 4096


def test_the_residuals_of_lags_are_what_was_not_sent() -> None:
    method, steps = tw.methods.lags(0.1), 3
    exchange, layout = method.exchange, tw.Layout(("a", "b"), ((40,), (60,)))
    world = World(exchange, layout, N)
    x = [torch.randn(N, 100, generator=torch.Generator().manual_seed(step)) for step in range(steps)]
    total = torch.stack([world.step(rows) for rows in x]).sum(0)
    left = torch.stack([member.state["send.residual"] for member in world.members]).mean(0)
    assert torch.allclose(total + left, torch.stack(x).sum(0).mean(0), atol=1e-5)


def test_shares_that_hide() -> None:
    layers = [Layer("top", 100_000, 0.3), Layer("middle", 100_000, 0.1), Layer("bottom", 100_000, 0.0)]
    before = None
    for rate in (8e8, 8e7, 8e6, 8e5):
        found = hidden(layers, ranks=4, rate=rate, latency=1e-3)
        assert found["top"] >= found["middle"] >= found["bottom"] == 0.001
        for layer, time in zip(layers, (0.2, 0.1, 0.0), strict=True):  # until the next layer's gradient is ready
            k = round(found[layer.name] * layer.numel)
            late = 2 * gather_seconds(100, 100_000, 4, rate, 1e-3) > 0.1  # the cap itself takes too long
            assert late or k == 100 or gather_seconds(k, layer.numel, 4, rate, 1e-3) <= time
            assert late or k == layer.numel or gather_seconds(k + 1, layer.numel, 4, rate, 1e-3) > time
        if before is not None:
            assert found["middle"] < before["middle"]  # a slower link carries less
        before = found
    slow = hidden(layers, ranks=4, rate=8e3)  # 100 elements take longer than backward: no time is left for others
    assert {*slow.values()} == {0.001}
    with pytest.raises(ValueError, match="write ranks >= 2"):
        hidden(layers, ranks=1, rate=8e6)


@pytest.mark.parametrize("shape", [(), (0,), (7,), (1, 300_000), (300, 1000), (64, 64, 3, 3)])
def test_what_is_seen_is_the_sum_of_what_is_finite(shape: tuple[int, ...]) -> None:
    grad, seen = torch.randn(shape, generator=torch.Generator().manual_seed(0)), torch.ones(shape)
    grad.view(-1)[3:4], grad.view(-1)[4:5] = math.nan, math.inf
    if grad.dim() == 4:
        grad = grad.to(memory_format=torch.channels_last)
    add_finite(seen, grad)
    assert torch.equal(seen, 1 + grad.nan_to_num(0.0, 0.0, 0.0))

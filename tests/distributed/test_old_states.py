"""States of thinwire 0.1 from before slots were declared, and push-sum's weight in the form that it has now.

The files hold what two ranks saved after three steps, and the models that the same program had after five.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks
from torch import Tensor, nn

import thinwire as tw
from thinwire import Method, Overlap
from thinwire.core.config import from_json
from thinwire.sync import Param, Sync
from thinwire.topology import Weights

FOLDER = Path(__file__).parent / "old_states"
NAMES = ("push-sum", "ef-signsgd", "choco-sgd")
SMALL = Overlap(bucket_mb=80 / 2**20, chunk_mb=80 / 2**20)
GRAPH = Weights(((0.5, 0.25), (0.5, 0.75)), directed=True)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(100 * step + dist.get_rank()))
        optimizer.zero_grad()
        (model(x) - x[:, :3].sin()).square().mean().backward()
        optimizer.step()


def flat(model: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def old(rank: int) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(FOLDER / f"rank{rank}.pt")
    return state


def gone_on(name: str, overlap: Overlap) -> tuple[Tensor, Tensor, list[str]]:
    """The model after five steps, as it was and as it is; and the names in the state."""
    saved = old(dist.get_rank())[name]
    before = from_json(saved["wire"][f"rank{dist.get_rank()}"]["method"])
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tw.attach(model, optimizer, Method(before.exchange, before.sync, overlap), min_size=0) as wire:
        model.load_state_dict(saved["model"])
        wire.load_state_dict(saved["wire"])
        keys = list(wire.state_dict()[f"rank{dist.get_rank()}"]["tensors"])
        train(model, optimizer, range(3, 5))
    return saved["after"], flat(model), keys


@pytest.mark.parametrize("name", NAMES)
def test_an_old_state_goes_on(name: str) -> None:
    for before, after, _ in on_ranks(gone_on, 2, name, Overlap()):
        assert torch.allclose(before, after, rtol=0, atol=1e-6)


def test_an_old_weight_is_one_number_now_under_any_plan() -> None:
    for before, after, keys in on_ranks(gone_on, 2, "push-sum", SMALL):
        assert torch.allclose(before, after, rtol=0, atol=1e-5)  # sums of other vectors, rounded differently
        assert "send.weight|0:5|0.bias" in keys
        assert not any(key.startswith("send.weight|0|") for key in keys)


def weighed(overlap: Overlap) -> tuple[Tensor, Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Five steps in one go; and three, a checkpoint, and two more under another plan."""
    method = tw.exchange.PushSum(topology=GRAPH)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    key = f"rank{dist.get_rank()}"
    with tw.attach(model, optimizer, Method(method, Sync(of=Param())), min_size=0) as wire:
        train(model, optimizer, range(3))
        state = wire.state_dict()
        train(model, optimizer, range(3, 5))
    whole = flat(model)
    again = net()
    optimizer = torch.optim.SGD(again.parameters(), lr=0.1)
    with tw.attach(again, optimizer, Method(method, Sync(of=Param()), overlap), min_size=0) as wire:
        wire.load_state_dict(state)
        taken = wire.state_dict()
        train(again, optimizer, range(3, 5))
    return whole, flat(again), state[key]["tensors"], taken[key]["tensors"]


@pytest.mark.parametrize("overlap", [Overlap(), SMALL], ids=["the same plan", "smaller buckets"])
def test_the_weight_survives(overlap: Overlap) -> None:
    for whole, again, saved, taken in on_ranks(weighed, 2, overlap):
        assert torch.equal(whole, again) if overlap == Overlap() else torch.allclose(whole, again, atol=1e-6)
        (value,) = {t.item() for key, t in saved.items() if key.startswith("send.weight")}
        assert {t.item() for key, t in taken.items() if key.startswith("send.weight")} == {value}
        assert value != 1
        assert sum(t.numel() for key, t in saved.items() if key.startswith("send.weight")) == 4  # parameters

"""Models of small tensors in real processes: what travels compressed, what is said of it, other plans' states."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import torch
import torch.distributed as dist
from nets import equal_everywhere, flat
from ranks import on_ranks
from torch import Tensor, nn

import thinwire as tw

BIG = "6.weight"


class Lines(logging.Handler):
    """What is logged."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def net(*, big: bool = False) -> nn.Sequential:
    """Three matrices of 4,900 elements each, and one of 11,200."""
    torch.manual_seed(0)
    layers = [layer for _ in range(3) for layer in (nn.Linear(70, 70), nn.Tanh())]
    return nn.Sequential(*layers, *([nn.Linear(70, 160)] if big else []))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> float:
    value = 0.0
    for step in steps:
        x = torch.randn(16, 70, generator=torch.Generator().manual_seed(2 * step + dist.get_rank()))
        optimizer.zero_grad()
        loss = (model(x)[:, :70] - x.flip(1)).square().mean()
        loss.backward()
        optimizer.step()
        value = loss.item()
    return value


def attached(method: tw.Method, **settings: Any) -> tuple[dict[str, float], float, list[str], list[str]]:
    """Figures and the last loss, and what was warned of and logged."""
    model, heard = net(), Lines()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    log = logging.getLogger("thinwire")
    log.addHandler(heard)
    log.setLevel(logging.INFO)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with tw.attach(model, optimizer, method, **settings) as wire:
            value = train(model, optimizer, range(5))
            assert equal_everywhere(flat(model))
            figures = wire.stats()
    log.removeHandler(heard)
    return figures, value, [f"{one.filename} {one.message}" for one in told], heard.lines


def resumed(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[dict[str, Tensor], bool]]:
    """What memories hold under another plan, by entry and parameter; and whether ranks stay equal."""
    model = net(big=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    out = []
    state: dict[str, Any] = {}
    for settings in (before, after):
        with tw.attach(model, optimizer, tw.methods.ef_signsgd(), **settings) as wire:
            if state:
                wire.load_state_dict(state)
            else:
                train(model, optimizer, range(3))
            state = wire.state_dict()
            out.append((state[f"rank{dist.get_rank()}"]["tensors"], equal_everywhere(flat(model))))
            train(model, optimizer, range(3, 4))
    return out


def small_tensors() -> tuple[Any, ...]:
    packed, all_, plain = (attached(tw.methods.int4(), **how) for how in ({}, {"min_size": 0}, {"min_size": 10_000}))
    return packed, all_, plain, attached(tw.methods.sgd()), resumed({"min_size": 10_000}, {})


def test_small_matrices_travel_compressed_and_attach_says_what_does() -> None:
    for rank, (packed, all_, plain, sgd, (old, new)) in enumerate(on_ranks(small_tensors, 2)):
        (figures, value, told, logged), (full, same, *_), (float32, exact, warned, _) = packed, all_, plain
        assert figures["ratio"] > 0.9 * full["ratio"] > 6
        assert abs(value - exact) + abs(same - exact) < 0.02 * exact
        line = (
            "int4: 98.6% of the bytes travel compressed; 3 tensors travel in float32, of which 4.bias is the largest"
        )
        assert (told, logged) == ([], [line] if rank == 0 else [])
        assert 0.99 < float32["ratio"] < 1.01
        assert len(warned) == (rank == 0)
        for one in warned:
            assert one.startswith(__file__)
            assert "int4: 0.0% of the bytes travel compressed; 6 tensors travel in float32" in one
            assert "to compress every tensor, write min_size=0. print(wire.plan())" in one
        assert sgd[2:] == ([], [])  # where nothing is compressed, nothing is said
        (before, _), (after, equal) = old, new
        big, small = (
            [key for key in after if key.startswith("up.send.residual") and (BIG in key) == is_big]
            for is_big in (True, False)
        )
        assert big
        assert small
        assert equal
        assert all(torch.equal(before[key], after[key]) and before[key].any() for key in big)
        assert not any(key in before or after[key].any() for key in small)

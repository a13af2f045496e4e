"""Lazy uploads through attach and DDP: skipped rounds are counted, steps are measured, runs resume bit for bit."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from nets import batch, equal_everywhere, flat, net, said, train
from ranks import on_ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import thinwire as tw
from thinwire import Method, Overlap
from thinwire.core.method import METHODS

NAMES = ["lag", "laq", "slaq:slack=1e-06"]


def same_batch(step: int) -> tuple[Tensor, Tensor]:
    """Full gradients: the data of a rank does not change."""
    return batch(0)


def start(name: str, overlap: Overlap | None = None) -> tuple[nn.Module, torch.optim.Optimizer, tw.Wire]:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    method = METHODS.parse(name)
    return (
        model,
        optimizer,
        tw.attach(model, optimizer, Method(method.exchange, overlap=overlap or Overlap()), min_size=0),
    )


def lazily(name: str) -> dict[str, Any]:
    """Ten steps; then a second run that takes over after five, and a third one with other buckets."""
    model, optimizer, wire = start(name)
    train(model, optimizer, range(5), same_batch)
    kept = {"model": model.state_dict(), "wire": wire.state_dict()}
    kept["model"] = {key: value.clone() for key, value in kept["model"].items()}
    train(model, optimizer, range(5, 10), same_batch)
    wire.detach()
    stats = wire.stats()
    before = flat(model)
    resumed, optimizer, wire = start(name)
    resumed.load_state_dict(kept["model"])
    wire.load_state_dict(kept["wire"])
    train(resumed, optimizer, range(5, 10), same_batch)
    wire.detach()
    other, optimizer, wire = start(name, Overlap(bucket_mb=2048 / 2**20, chunk_mb=2048 / 2**20))
    other.load_state_dict(kept["model"])
    wire.load_state_dict(kept["wire"])
    train(other, optimizer, range(5, 10), same_batch)
    wire.detach()
    motion = next(iter(kept["wire"].values()))["motion"]
    hooks = len(optimizer._optimizer_step_post_hooks)
    return {
        "stats": stats,
        "equal": equal_everywhere(before) and equal_everywhere(flat(other)),
        "resumed": torch.equal(before, flat(resumed)),
        "near": float((before - flat(other)).norm() / before.norm()),
        "motion": motion,
        "hooks": hooks,
    }


def every_name() -> list[dict[str, Any]]:
    return [lazily(name) for name in NAMES]


@pytest.fixture(scope="module")
def found() -> dict[str, list[dict[str, Any]]]:
    """What each rank found, by name."""
    return dict(zip(NAMES, map(list, zip(*on_ranks(every_name, 2), strict=True)), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_uploads_are_skipped_counted_and_resumed(name: str, found: dict[str, list[dict[str, Any]]]) -> None:
    results = found[name]
    for result in results:
        stats = result["stats"]
        assert stats["uploads"] + stats["uploads_skipped"] == 10
        assert stats["uploads"] >= 1
        assert result["equal"]
        assert result["resumed"]
        assert result["near"] < 0.01
        assert len(result["motion"]) == 5
        assert all(step > 0 for step in result["motion"])
        assert result["hooks"] == 0
    assert results[0]["motion"] == results[1]["motion"]
    if name == "lag":
        assert sum(result["stats"]["uploads_skipped"] for result in results) > 0


def with_ddp() -> dict[str, Any]:
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    refused = said(lambda: tw.ddp_hook(METHODS.parse("lag"), model))
    state, hook = tw.ddp_hook(METHODS.parse("lag"), model, optimizer, min_size=0)
    model.register_comm_hook(state, hook)
    train(model, optimizer, range(6), same_batch)
    stats, kept = state.stats(), next(iter(state.state_dict().values()))
    return {"refused": refused, "stats": stats, "equal": equal_everywhere(flat(model)), "motion": kept["motion"]}


def test_ddp_needs_the_optimizer_and_then_skips_too() -> None:
    for result in on_ranks(with_ddp, 2):
        assert (
            "lag looks at the steps of the optimizer; write tw.ddp_hook(method, model, optimizer)"
            in result["refused"]
        )
        assert result["stats"]["uploads"] >= 1
        assert result["equal"]
        assert len(result["motion"]) == 6


def noted(name: str) -> list[str]:
    """What attach logs."""
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("thinwire").addHandler(handler)
    model = net()
    tw.attach(model, torch.optim.SGD(model.parameters(), lr=0.05), METHODS.parse(name)).detach()
    return heard


def test_rank_0_says_what_the_method_is_for() -> None:
    first, second = on_ranks(noted, 2, "laq:bits=3")
    assert first == ["laq:bits=3: " + tw.methods.laq().recipe.note]
    assert second == []

"""One file for all ranks, which rank 0 writes: any number of ranks resume from it."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from nets import flat, net, said, train
from ranks import on_ranks
from torch import Tensor

import thinwire as tw
from thinwire import Method

REMEMBERS = ("ef-signsgd", "diloco:every=2")


def resumed(method: Method, path: str, *, gathers: bool) -> bool:
    """Whether a run that goes on from what rank 0 has saved has the weights of the one that saved it."""
    rank, model = dist.get_rank(), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    with tw.attach(model, optimizer, method, min_size=0, timeout=20.0) as wire:
        train(model, optimizer, range(5))
        own = optimizer.state_dict()
        state = {"model": model.state_dict(), "wire": wire.gather_state() if gathers else wire.state_dict()}
        if rank == 0:
            tw.save({**state, "optimizer": own}, path)
        elif gathers:
            assert not state["wire"]
        dist.barrier()
        own = copy.deepcopy(own)
        train(model, optimizer, range(5, 8))
    again = net()
    optimizer = torch.optim.SGD(again.parameters(), lr=0.05, momentum=0.9)
    with tw.attach(again, optimizer, method, min_size=0, timeout=20.0) as wire:
        state = torch.load(path)
        again.load_state_dict(state["model"])
        optimizer.load_state_dict(
            own if method.sync.of.models else state["optimizer"]
        )  # local steps have moments per rank
        wire.load_state_dict(state["wire"])
        train(again, optimizer, range(5, 8))
    return torch.equal(flat(model), flat(again))


def cases(folder: str) -> tuple[dict[str, bool], str]:
    """Which methods resumed; and what is said to the state of rank 0 alone where ranks have memories."""
    kept = {name: resumed(tw.method(name), f"{folder}/{name}", gathers=True) for name in REMEMBERS}
    kept["int4"] = resumed(tw.method("int4"), f"{folder}/int4", gathers=False)
    late = replace(tw.method("qsgd"), sync=tw.Sync(staleness=2))
    kept["late"] = resumed(late, f"{folder}/late", gathers=False)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with tw.attach(model, optimizer, tw.method("ef-signsgd"), min_size=0, timeout=20.0) as wire:
        state = torch.load(f"{folder}/ef-signsgd")["wire"]
        words = said(partial(wire.load_state_dict, {"rank0": state["rank0"]}))
    return kept, words


def on_three(folder: str) -> Tensor:
    """The residuals of this rank, of a file that two ranks made; files of methods without memory load as well."""
    out = torch.zeros(0)
    for name in ("ef-signsgd", "int4"):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        with tw.attach(model, optimizer, tw.method(name), min_size=0, timeout=20.0) as wire:
            state = torch.load(f"{folder}/{name}")
            model.load_state_dict(state["model"])
            wire.load_state_dict(state["wire"])
            if name == "ef-signsgd":
                out = residual(wire.state_dict()[f"rank{dist.get_rank()}"])
            train(model, optimizer, range(5, 7))
    return out


def residual(state: dict[str, Any]) -> Tensor:
    return torch.cat([x for key, x in sorted(state["tensors"].items()) if key.startswith("up.send.residual|")])


def test_a_run_goes_on_from_one_file_on_as_many_ranks_and_on_more(tmp_path: Path) -> None:
    for kept, words in on_ranks(cases, 2, str(tmp_path)):
        assert all(kept.values()), kept
        assert words.startswith("ValueError: ")
        assert "rank 1 was given the state of rank 0, and each has memories of its own" in words
        assert "one file with wire.gather_state()" in words
    before = torch.load(tmp_path / "ef-signsgd")["wire"]
    mean = torch.stack([residual(before[f"rank{rank}"]) for rank in range(2)]).mean(0)
    assert float(mean.norm()) > 0
    after = torch.stack(on_ranks(on_three, 3, str(tmp_path))).mean(0)
    assert torch.allclose(mean, after, rtol=0, atol=1e-6)

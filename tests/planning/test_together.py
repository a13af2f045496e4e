"""Ranks that measure at the same time: who shares a machine, who is slowest, and what a beat leaves as it is."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from ranks import on_ranks
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Optimizer

import thinwire as tw
from thinwire.planning import company as who
from thinwire.planning.alone import ENGINE, overheads, own_group
from thinwire.planning.beat import Beat
from thinwire.planning.company import Company
from thinwire.planning.profile import typical
from thinwire.planning.script import Ask, Script, Work

LATE = 0.03  # seconds


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))


def makes(model: nn.Module) -> tuple[Any, Optimizer]:
    """Steps of which those that DDP wraps take longer on rank 1."""
    optimizer, x = SGD(model.parameters(), lr=0.1), torch.ones(2, 64)

    def step() -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        if isinstance(model, DistributedDataParallel) and dist.get_rank() == 1:
            time.sleep(LATE)
        optimizer.step()

    return step, optimizer


def kept(group: dist.ProcessGroup) -> tuple[bool, int]:
    """Whether a sum of a beat leaves a rank's own gradient as it is, and how many beats there were."""
    model, beat = net(), Beat(group)
    with own_group() as own:
        wrapped = DistributedDataParallel(model, process_group=own)
        wrapped.register_comm_hook(beat, allreduce_hook)
        wrapped(torch.full((1, 64), 1.0 + dist.get_rank())).sum().backward()
    alone = net()
    alone.load_state_dict(model.state_dict())
    alone(torch.full((1, 64), 1.0 + dist.get_rank())).sum().backward()
    pairs = zip(model.parameters(), alone.parameters(), strict=True)
    return all(torch.allclose(p.grad, q.grad / beat.size()) for p, q in pairs), beat.beats  # type: ignore[arg-type,operator]


def measured() -> dict[str, Any]:
    rank = dist.get_rank()
    together = Company.of_group()
    assert together.mates is not None
    mine = Script((Work(1.0 + 2 * rank, 2.0), Ask("gather", 8.0)))
    (script,) = typical((mine,), together)
    other = Script((*mine.parts, Work(1.0))) if rank else mine
    who.machine = lambda: f"machine {dist.get_rank()}"
    apart = Company.of_group()
    return {
        "here": (together.here, apart.here, apart.mates),
        "slowest": together.slowest([1.0 + rank, 5.0 - rank]),
        "typical": script,
        "differs": typical((other,), together) == (other,),
        "kept": kept(together.mates),
        "spent": overheads(net(), makes, together, ["ddp"]),
    }


def test_ranks_of_one_machine_measure_together() -> None:
    ranks = on_ranks(measured, 2)
    for found in ranks:
        assert found["here"] == (2, 1, None)
        assert found["slowest"] == [2.0, 5.0]
        assert found["typical"] == Script((Work(2.0, 2.0), Ask("gather", 8.0)))
        assert found["differs"]
        assert found["kept"] == (True, 1)
        assert set(found["spent"]) == {"ddp", ENGINE}
        assert found["spent"]["ddp"] > LATE / 2  # only rank 1 is late, and both know


def different() -> str:
    try:
        tw.plan(net(), torch.ones(2, 64), methods=["sgd" if dist.get_rank() else "qsgd"])
    except ValueError as error:
        return str(error)
    return ""


def test_ranks_that_ask_for_different_plans_are_refused() -> None:
    assert all("ranks ask for different methods, hosts or links" in said for said in on_ranks(different, 2))

"""Ranks that measure at the same time: who shares a machine, who is slowest, and what a beat leaves as it is."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Optimizer

import thinwire as tw
from thinwire.planning import alone, gauge, trial
from thinwire.planning import company as who
from thinwire.planning.alone import ENGINE, overheads, own_group
from thinwire.planning.beat import Beat
from thinwire.planning.choice import ALIKE
from thinwire.planning.company import Company
from thinwire.planning.rivals import RIVALS
from thinwire.planning.script import Ask, Script, Work, typical

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


def planned() -> dict[str, Any]:
    """With the link measured, and a few real steps of all, whatever they are forecast to take."""
    trial.REACH, trial.TURNS, trial.STEPS = 1e9, 1, 5
    alone.WARM, alone.TURNS, gauge.TURNS = 3, 1, 1  # rough figures do
    model = nn.Sequential(net(), nn.Dropout())
    before = [p.detach().clone() for p in model.parameters()]
    torch.manual_seed(dist.get_rank())
    drawn, elsewhere = torch.get_rng_state(), random.getstate()
    heard: list[str] = []
    found = tw.plan(model, torch.ones(2, 64), methods=["qsgd"], say=heard.append)
    return {
        "heard": heard,
        "found": found,
        "model": all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True)),
        "grads": [p.grad for p in model.parameters()],
        "random": torch.equal(torch.get_rng_state(), drawn) and random.getstate() == elsewhere,
        "world": dist.get_world_size(),
    }


@pytest.mark.timeout(300)  # many parts are measured, and machines are busy
def test_ranks_plan_on_their_own_link_and_agree() -> None:
    first, second = on_ranks(planned, 2)
    for ended in (first, second):
        found = ended["found"]
        assert "the link" in ended["heard"]
        assert (found.hosts, found.here, found.parameters) == (2, 2, 2 * 64 * 65)
        assert found.rate > 0
        assert {row.method for row in found.rows} == {*RIVALS, "qsgd"}
        assert found.tried
        for row in found.rows:
            assert row.tried_ms > 0  # all of them took steps
            assert 0 < row.step_ms_p20 <= row.step_ms <= row.step_ms_p80
        best = min(row.tried_ms for row in found.rows)
        assert found.row(found.recommended).tried_ms <= (1 + ALIKE) * best  # by these, and not by forecasts
        assert found.doubt == ""
        assert ended["model"]
        assert ended["grads"] == [None] * 4
        assert ended["random"]
        assert ended["world"] == 2  # the group is as it was
    assert first["found"].recommended == second["found"].recommended
    tried = [{row.method: row.tried_ms for row in ended["found"].rows} for ended in (first, second)]
    assert tried[0] == tried[1]  # the slowest rank counts on both

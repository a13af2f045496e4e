"""Planned buckets in real processes: all ranks change over in one round, and a checkpoint resumes bit for bit."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
from nets import equal_everywhere, flat, net, train
from ranks import on_ranks
from torch.nn.parallel import DistributedDataParallel

import thinwire as tw
from thinwire.engine import planner

KB = 2**-10
METHOD = tw.Method(
    tw.method("ecq-sgd").exchange, overlap=tw.Overlap(bucket_mb=4 * KB, chunk_mb=4 * KB, buckets="planned")
)
STEPS = 2 * (planner.ROUNDS + 1)  # that are measured, one of each plan for nothing


def cut(wire: tw.Wire) -> list[list[str]]:
    return [[item.name for item in parcel.items] for parcel in wire.plan().parcels]


def trained() -> dict[str, Any]:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with tw.attach(model, optimizer, METHOD, min_size=0) as wire:
        plans = [cut(wire)]
        for step in range(STEPS + 3):
            train(model, optimizer, range(step, step + 1))
            if cut(wire) != plans[-1]:
                plans.append(cut(wire))
        saved, at = wire.state_dict(), flat(model)
        train(model, optimizer, range(STEPS + 3, STEPS + 5))
        equal = equal_everywhere(flat(model))
    again = net()
    torch.nn.utils.vector_to_parameters(at, again.parameters())
    optimizer = torch.optim.SGD(again.parameters(), lr=0.05)
    with tw.attach(again, optimizer, METHOD, min_size=0) as wire:
        wire.load_state_dict(saved)
        resumed = cut(wire) == plans[-1]
        train(again, optimizer, range(STEPS + 3, STEPS + 5))
    return {"plans": plans, "equal": equal, "resumed": resumed, "same": torch.equal(flat(model), flat(again))}


def under_ddp() -> dict[str, Any]:
    model = DistributedDataParallel(net())
    wire, hook = tw.ddp_hook(METHOD, model, min_size=0)
    model.register_comm_hook(wire, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    train(model, optimizer, range(STEPS + 2))
    planned = wire._loop.planner
    done = planned is not None and planned.measured.done
    wire.detach()
    return {"equal": equal_everywhere(flat(model)), "planned": done}


def both() -> tuple[dict[str, Any], dict[str, Any]]:
    with mock.patch.object(planner, "WORTH", -1.0):  # here a plan may gain nothing, and is taken all the same
        return trained(), under_ddp()


def test_all_ranks_change_over_together_and_resume() -> None:
    results = on_ranks(both, 2)
    first, _ = results[0]
    for attached, hooked in results:
        assert attached["plans"] == first["plans"]
        assert len(attached["plans"]) >= 2  # the fixed buckets, the small ones, and, if it is another, the plan
        assert attached["equal"]
        assert attached["resumed"]
        assert attached["same"]
        assert hooked == {"equal": True, "planned": True}

"""Choices in real processes: the same on all ranks, under attach and under DDP; a checkpoint holds them."""

from __future__ import annotations

import copy
from typing import Any

import torch
from nets import equal_everywhere, flat, net, same, train
from ranks import on_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import thinwire as tw

METHOD = tw.methods.adaptive("ratio", 0.1, every=3)


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def choosing() -> dict[str, Any]:
    model = net()
    with tw.attach(model, optimizer := sgd(model), METHOD, min_size=50) as wire:
        train(model, optimizer, range(5))
        saved, halfway = copy.deepcopy(wire.state_dict()), copy.deepcopy(model.state_dict())
        train(model, optimizer, range(5, 8))
        end, state, stats = flat(model), wire.state_dict(), wire.stats()
    again = net(seed=9)
    with tw.attach(again, optimizer := sgd(again), METHOD, min_size=50) as wire:
        wire.load_state_dict(saved)
        again.load_state_dict(halfway)
        train(again, optimizer, range(5, 8))
        resumed = torch.equal(flat(again), end) and same(wire.state_dict(), state)
        wire.switch(tw.methods.topk(0.1))  # the residuals go on
        train(again, optimizer, range(8, 9))
    hooked = DistributedDataParallel(net())
    handle, hook = tw.ddp_hook(METHOD, hooked, optimizer := sgd(hooked), min_size=50)
    hooked.register_comm_hook(handle, hook)
    train(hooked, optimizer, range(8))
    under_ddp = torch.equal(flat(hooked), end)
    handle.detach()
    (own,) = state.values()
    return {
        "equal": equal_everywhere(end),
        "resumed": resumed,
        "ddp": under_ddp,
        "choice": own["choice"],
        "seen": [key for key in own["tensors"] if key.startswith("seen")],
        "stats": stats,
    }


def test_choices_are_the_same_everywhere_and_survive() -> None:
    first, second = on_ranks(choosing, 2)
    for one in (first, second):
        assert one["equal"]
        assert one["resumed"]
        assert one["ddp"]
        assert one["stats"]["choices"] == 2
        assert one["stats"]["chosen_size"] < 1
    assert first["choice"] == second["choice"]
    assert any(first["choice"].values())
    assert first["seen"]  # rank 0 alone keeps the sum
    assert not second["seen"]

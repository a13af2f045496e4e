"""Ranks with different numbers of batches: nobody waits in vain, and all leave the block with one model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from nets import batch, equal_everywhere, flat, loss, net, said
from ranks import on_ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import thinwire as tw
from thinwire.core.method import Method

UNEVEN, NONE_AT_ALL = (5, 2, 7), (0, 4, 3)
SHORT = ("late", "forward", "cr-psgd", "d-admm:every=2", "streaming", "ad-psgd:topology=star", "asgd")
LONG = (
    *("planned", "qsgd:bits=4", "ef-signsgd", "powersgd", "adaptive:every=3", "lag", "marina", "dgc", "signum"),
    *("one-bit-adam", "choco-sgd", "d-psgd", "sgp", "moniqua", "deepsqueeze", "edge-admm", "local-sgd:every=3"),
    *("slowmo:every=2", "diloco:every=3", "adacomm", "overlap-local-sgd:every=2", "cocod-sgd:every=2"),
    *("easgd:every=2", "one-shot", "ssp", "r2sp", "easgd-async", "dbpg:l1=0.001,kkt=0.0009"),
    *("consensus-admm:every=2", "async-diloco:every=2", "pipe-sgd"),
)


def method(name: str) -> Method:
    """By id, or a combination that has none."""
    overlaps = {"forward": tw.Overlap(into_forward="need"), "planned": tw.Overlap(buckets="planned", bucket_mb=0.001)}
    if name in overlaps:
        return replace(tw.method("int4"), overlap=overlaps[name])
    if name == "late":
        return replace(tw.method("ef-signsgd"), sync=tw.Sync(staleness=2))
    return tw.method(
        {"streaming": "streaming-diloco:every=4,fragments=2,delay=1", "cr-psgd": "cr-psgd:budget=400"}.get(name, name)
    )


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, wire: tw.Wire, count: int) -> None:
    for step in range(count):
        if wire.batch(8) == 0:
            return
        optimizer.zero_grad()
        value = loss(model, batch(step))
        value.backward()
        wire.report_loss(value)
        optimizer.step()


def joined(name: str, counts: Sequence[int]) -> tuple[bool, bool, bool]:
    """Two blocks: whether all left the second with one model, whether detach did, and if training went on in it."""
    model = net()
    optimizer: torch.optim.Optimizer = torch.optim.SGD(
        model.parameters(), lr=0.05, momentum=0.0 if "-admm" in name or name == "dgc" else 0.9
    )
    if name == "one-bit-adam":
        optimizer = tw.optim.OneBitAdam(model.parameters(), lr=0.01)
    with tw.attach(model, optimizer, method(name), min_size=0, timeout=20.0) as wire:
        for block in range(2):
            before = flat(model)
            with wire.join():
                steps(model, optimizer, wire, counts[(dist.get_rank() + block) % len(counts)])
        served = wire.method.exchange.served  # then a worker without a batch knows nothing of the others' steps
        equal = equal_everywhere(flat(model)) or served
        moved = not torch.equal(before, flat(model)) or served or name == "cr-psgd"
    return equal, equal_everywhere(flat(model)), moved and bool(flat(model).isfinite().all())


def several(names: Sequence[str], counts: Sequence[Sequence[int]]) -> dict[Any, tuple[bool, bool, bool]]:
    return {(name, batches): joined(name, batches) for name in names for batches in counts}


def gradients_by_hand(counts: Sequence[int]) -> Tensor:
    """SGD with the mean over all ranks, where those that have ended have zeros; steps get shorter."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(max(counts)):
        optimizer.param_groups[0]["lr"] = 0.05 / (step + 1)
        optimizer.zero_grad()
        for rank, count in enumerate(counts):
            if step < count:
                (loss(model, batch(step, rank)) / len(counts)).backward()
        optimizer.step()
    return torch.cat([flat(model), *(state["momentum_buffer"].flatten() for state in optimizer.state.values())])


def against_hand() -> dict[str, Any]:
    """Gradients under attach and under ddp_hook, as many batches, and what is refused."""
    out: dict[str, Any] = {}
    rank = dist.get_rank()
    for way in ("attach", "ddp_hook"):
        model: nn.Module = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        if way == "attach":
            wire = tw.attach(model, optimizer, tw.method("sgd"), timeout=20.0)
        else:
            model = DistributedDataParallel(model)
            wire, hook = tw.ddp_hook(tw.method("sgd"), model, optimizer, timeout=20.0)
            model.register_comm_hook(wire, hook)
        with wire.join():
            for step in range(UNEVEN[rank]):
                optimizer.param_groups[0]["lr"] = 0.05 / (step + 1)  # ranks that have ended know nothing of it
                optimizer.zero_grad()
                loss(model, batch(step)).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1000.0)
                optimizer.step()
        out[way] = torch.cat(
            [flat(model), *(state["momentum_buffer"].flatten() for state in optimizer.state.values())]
        )
        wire.detach()
    even = []
    for joins in (False, True):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        with tw.attach(model, optimizer, tw.method("ef-signsgd"), min_size=0, timeout=20.0) as wire:
            for _ in range(2):
                if joins:
                    with wire.join():
                        steps(model, optimizer, wire, 3)
                else:
                    steps(model, optimizer, wire, 3)
        even.append(flat(model))
    out["even"] = torch.equal(*even)
    model, other = net(), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    second = torch.optim.LBFGS(other.parameters())
    with tw.attach(model, optimizer, tw.method("sgd")) as wire, tw.attach(other, second, tw.method("sgd")) as lbfgs:
        words = [said(lbfgs.join().__enter__)]
        with wire.join():
            words += [said(wire.consensus), said(partial(wire.switch, tw.method("int4"))), said(wire.gather_state)]
            words += [said(wire.join().__enter__)]
        with pytest.raises(ZeroDivisionError), wire.join():
            raise ZeroDivisionError  # the others are not waited for
        out["consensus"] = wire.consensus().distance
    out["words"] = words
    return out


@pytest.mark.timeout(240)
def test_every_kind_of_schedule(long: bool) -> None:
    case = ((*SHORT, *LONG), (UNEVEN, NONE_AT_ALL)) if long else (SHORT, (NONE_AT_ALL,))
    for found in on_ranks(several, 3, *case, timeout=200.0):
        assert [case for case, kept in found.items() if not all(kept)] == []


def test_gradients_are_means_over_all_ranks() -> None:
    reference = gradients_by_hand(UNEVEN)
    for found in on_ranks(against_hand, 3):
        assert torch.allclose(found["attach"], reference, rtol=0, atol=1e-5)
        assert torch.allclose(found["ddp_hook"], reference, rtol=0, atol=1e-5)
        assert found["even"]
        assert found["consensus"] < 1e-6
        lbfgs, consensus, switch, gather, again = found["words"]
        assert lbfgs.startswith("ValueError: LBFGS compares the losses of all ranks")
        assert "wire.consensus() needs all ranks at once, and some may have ended" in consensus
        assert "wire.switch(method) needs all ranks at once" in switch
        assert "wire.gather_state() needs all ranks at once" in gather
        assert "another join() is open in this process" in again

"""A payload that is damaged on the way and checked later, as on a GPU: named on every rank, and no step is taken."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from nets import batch as data
from nets import flat, loss, net, said
from ranks import on_ranks
from torch import Tensor

import thinwire as tw
from thinwire.comm.processes import Processes
from thinwire.core.payload import HEADER
from thinwire.core.verdicts import Verdicts
from thinwire.engine.round import Promise
from thinwire.engine.runner import Runner


def damaged(name: str) -> tuple[str, bool]:
    """A bit of a message to rank 0 turns over in the third round."""
    trade, context, rounds = Processes._trade, Runner.context, 0

    def bad(self: Processes, *args: Any, **kwargs: Any) -> dict[int, Tensor]:
        arrived = trade(self, *args, **kwargs)
        if rounds == 2 and dist.get_rank() == 0:
            for data in arrived.values():
                if data.numel() > HEADER.size:
                    data[HEADER.size + 9] ^= 1
        return arrived

    def later(self: Runner, going: Any, *args: Any) -> Promise:
        going.verdicts.append(Verdicts())
        return context(self, going, *args)._replace(verdicts=going.verdicts[-1])

    Processes._trade, Runner.context = bad, later  # type: ignore[method-assign,assignment]
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with tw.attach(model, optimizer, tw.method(name), min_size=0, timeout=20.0):
        for rounds in range(2):
            optimizer.zero_grad()
            loss(model, data(rounds)).backward()
            optimizer.step()
        rounds, before = 2, flat(model)
        optimizer.zero_grad()
        words = said(lambda: loss(model, data(2)).backward())
        return words, torch.equal(flat(model), before)


def looks() -> list[str]:
    """What the training loop's thread does in one backward pass over several buckets."""
    wait, look, context, seen = Runner.wait, Verdicts.raise_if_any, Runner.context, []

    async def waited(self: Runner, going: Any) -> Any:
        agreed = await wait(self, going)
        seen.append("wait")
        return agreed

    def looked(self: Verdicts) -> None:
        seen.append("look")
        look(self)

    def later(self: Runner, going: Any, *args: Any) -> Promise:
        going.verdicts.append(Verdicts())
        return context(self, going, *args)._replace(verdicts=going.verdicts[-1])

    Runner.wait, Verdicts.raise_if_any, Runner.context = waited, looked, later  # type: ignore[method-assign,assignment]
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    method = replace(tw.method("qsgd:bits=4"), overlap=tw.Overlap(bucket_mb=0.002))
    with tw.attach(model, optimizer, method, min_size=0):
        loss(model, data(0)).backward()
    return seen


def test_checks_are_waited_for_when_all_buckets_have_arrived() -> None:
    for seen in on_ranks(looks, 2):
        buckets = seen.count("wait")
        assert buckets > 1
        assert seen == ["wait"] * buckets + ["look"] * buckets


def test_it_is_named_before_the_step() -> None:
    for name in ("qsgd:bits=4", "ecq-sgd:code=bits"):
        results = on_ranks(damaged, 2, name)
        assert all(same for _, same in results)
        assert all("PayloadError" in words for words, _ in results), results
        assert all("of step 2, bucket 0, hop 0: the checksum does not match" in words for words, _ in results)
        assert "rank 0" in results[1][0]  # whose part of the mean was not sent

"""A rank that is alive and late: who it is, and what it does, in the log and in every rank's error."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from nets import net, said, train
from ranks import PATIENCE, on_ranks

import thinwire as tw
from thinwire.core.comm import Comm
from thinwire.engine import waiting

WAIT = 3.0 * PATIENCE


def evaluate() -> None:
    """What only one rank does."""
    time.sleep(WAIT + 1.5 * PATIENCE)


def attached(work: Callable[[tw.Wire, Callable[[range], None]], None]) -> str:
    """What is raised of `work` with a wire and a training loop."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)

    def run() -> None:
        with tw.attach(model, optimizer, tw.methods.qsgd(), min_size=0, timeout=WAIT) as wire:
            work(wire, lambda steps: train(model, optimizer, steps))

    return said(run)


def late_and_slow() -> tuple[str, str, list[str]]:
    rank, logged = dist.get_rank(), list[str]()
    waiting.ASK, waiting.FIRST = 0.5, 2.0  # as 2 and 5, sooner
    waiting.log.warning = lambda text, *words: logged.append(text % words)  # type: ignore[method-assign]

    def late(wire: tw.Wire, loop: Callable[[range], None]) -> None:
        loop(range(2))
        if rank == 2:
            evaluate()
        loop(range(2, 4))

    def slow(wire: tw.Wire, loop: Callable[[range], None]) -> None:
        async def work(comm: Comm) -> None:
            await comm.sleep(WAIT + PATIENCE if rank == 1 else 0.0)  # as if the network took so long
            await comm.all_reduce(torch.zeros(1))

        transport = wire._transport
        transport.wait(transport.launch(work))

    return attached(late), attached(slow), logged


def test_who_is_late_is_named_and_a_network_that_is_slow_is_said_to_be() -> None:
    ended = on_ranks(late_and_slow, 3)
    for rank, (late, slow, logged) in enumerate(ended):
        if rank == 2:
            assert late.startswith("PeerError: the other ranks have waited for this one, rank 2 of 3, for "), late
        else:
            assert late.startswith("PeerError: rank 2 of 3 did not come to an exchange within "), late
            assert "it was last seen at test_late.py:" in late
            assert "in evaluate, after 2 rounds" in late
        assert slow.startswith("PeerError: an exchange timed out on rank"), slow
        assert "none is late" in slow
        assert [text.split(":")[0] for text in logged] == ["still waiting for rank 2, 2 s"] * (rank == 0)

"""ADMM between real processes: every rank ends, with the bits of the virtual driver, and nothing is left over."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks
from torch import Tensor

from thinwire import Channel, Context, Key, Layout
from thinwire.codecs import Rans
from thinwire.comm import Comm, run
from thinwire.comm.processes import Processes
from thinwire.compressors import Qsgd
from thinwire.exchange.admm import Admm
from thinwire.topology import Edges, Ring, Star

D, ROUNDS = 3000, 8
HOUSE = Edges("0-1 1-2 2-3 3-0 2-4 3-4")
EXCHANGES = {
    4: [
        Admm(),
        Admm(order="index"),
        Admm(topology=Star(), order="index", wire="fp64"),
        Admm(Channel(Qsgd(bits=4), codec=Rans())),  # sizes are asked for
    ],
    5: [Admm(topology=HOUSE), Admm(Channel(Qsgd(bits=4), codec=Rans()), HOUSE, order="index")],
    6: [Admm(topology=Ring())],
}


async def rounds(comm: Comm, exchange: Admm) -> tuple[Tensor, Tensor]:
    """f_i(x) = 1/2 |x - b_i|^2, exact argmins, in float32."""
    layout = Layout.flat(D)
    b = torch.randn(D, generator=torch.Generator().manual_seed(comm.rank))
    x, state = torch.zeros(D), exchange.init(layout, comm)
    penalty = exchange.penalty(comm.rank, comm.size)
    for k in range(ROUNDS):
        ctx = Context(comm, layout, Key(seed=3, step=k, rank=comm.rank))
        await exchange.begin(x, state, ctx)
        x = await exchange((b - state["linear"]) / (1 + penalty), state, ctx)
    return x, state["gamma"]


def in_processes(n: int) -> list[tuple[Tensor, Tensor, int]]:
    """Every exchange in turn on one group: a message that was left over would reach the wrong one."""
    driver = Processes({tuple(range(n)): dist.group.WORLD})  # type: ignore[dict-item]
    results = []
    for exchange in EXCHANGES[n]:
        before = driver.traffic.messages
        x, gamma = driver.run(rounds(driver.comm, exchange))
        results.append((x, gamma, driver.traffic.messages - before))
    return results


@pytest.mark.parametrize("n", list(EXCHANGES))
def test_processes_give_the_bits_of_the_virtual_driver(n: int) -> None:
    real: list[list[Any]] = on_ranks(in_processes, n, n)
    for number, exchange in enumerate(EXCHANGES[n]):
        virtual = run(lambda comm, exchange=exchange: rounds(comm, exchange), n)  # type: ignore[misc]
        asked = 1 if exchange.wire == "fp64" or exchange.channel.predictable else 2
        for rank in range(n):
            x, gamma, messages = real[rank][number]
            assert torch.equal(x, virtual.results[rank][0])
            assert torch.equal(gamma, virtual.results[rank][1])
            assert messages == asked * ROUNDS * len(exchange.topology.around(rank, n).peers)

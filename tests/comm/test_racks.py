"""Racks: uplinks that hosts share. Times against their formulas, to 1e-9."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import torch

from thinwire.comm.clock import VirtualClock
from thinwire.comm.network import Network
from thinwire.core.comm import Comm
from thinwire.core.errors import PeerError

MB = torch.zeros(1_000_000, dtype=torch.uint8)  # 8 ms at 1 Gbit/s
LATENCY = 0.001


def run(program: Callable[[Comm], Coroutine[Any, Any, float]], n: int = 8, **racks: float) -> list[float]:
    clock = VirtualClock(n, Network("1gbit", LATENCY, **racks))  # type: ignore[arg-type]
    tasks = [clock.spawn(rank, program(clock.comm(rank))) for rank in range(n)]
    clock.run()
    return [task.result for task in tasks]


def posts(pairs: dict[int, int]) -> Callable[[Comm], Coroutine[Any, Any, float]]:
    sources = {to: source for source, to in pairs.items()}

    async def program(comm: Comm) -> float:
        if comm.rank in pairs:
            await comm.post(pairs[comm.rank], MB)
        if comm.rank in sources:
            await comm.recv(sources[comm.rank])
        return await comm.now()

    return program


async def gather(comm: Comm) -> float:
    await comm.all_gather(MB)
    return await comm.now()


async def scatter(comm: Comm) -> float:
    await comm.all_to_all([MB] * comm.size)
    return await comm.now()


async def ring(comm: Comm) -> float:
    await comm.all_reduce(torch.zeros(250_000))
    return await comm.now()


def test_one_message_across_racks_takes_as_long_as_inside_one() -> None:
    for pairs, to in (({0: 1}, 1), ({0: 4}, 4)):
        assert run(posts(pairs), racks=2, oversubscription=4.0)[to] == pytest.approx(LATENCY + 0.008, abs=1e-9)


@pytest.mark.parametrize("over", [1.0, 2.0, 4.0])
def test_messages_of_a_rack_share_its_uplink(over: float) -> None:
    """Four messages of 8 ms through an uplink of 4 / over Gbit/s; the last has waited for the others."""
    times = run(posts({0: 4, 1: 5, 2: 6, 3: 7}), racks=2, oversubscription=over)
    assert times[7] == pytest.approx(LATENCY + 0.008 * max(1.0, over), abs=1e-9)


@pytest.mark.parametrize("program", [gather, scatter])
def test_all_to_all_messages_fill_the_uplinks(program: Callable[[Comm], Coroutine[Any, Any, float]]) -> None:
    """4 hosts send 4 MB each to the other rack: 16 MB through the uplink, or 7 MB through each host's own link."""
    assert max(run(program)) == pytest.approx(LATENCY + 7 * 0.008, abs=1e-9)
    assert max(run(program, racks=2)) == pytest.approx(LATENCY + 7 * 0.008, abs=1e-9)
    assert max(run(program, racks=2, oversubscription=4.0)) == pytest.approx(LATENCY + 16 * 0.008, abs=1e-9)


def test_a_ring_passes_an_uplink_once_at_a_time() -> None:
    """2 (P - 1) (latency + M / (P rate)): oversubscription by fewer than the hosts of a rack costs a ring nothing."""
    plain = 14 * (LATENCY + 0.008 / 8)
    assert run(ring, racks=2, oversubscription=4.0)[0] == pytest.approx(plain, abs=1e-9)
    assert run(ring, racks=2, oversubscription=8.0)[0] == pytest.approx(14 * (LATENCY + 0.016 / 8), abs=1e-9)


def test_racks_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="there are 4 hosts; write racks=4 or less"):
        VirtualClock(4, Network(racks=5))
    with pytest.raises(ValueError, match="write 1 or more"):
        Network(racks=0)
    with pytest.raises(ValueError, match="uplinks of a quarter"):
        Network(oversubscription=0.0)


def test_whoever_waits_for_a_dead_rank_is_told() -> None:
    clock = VirtualClock(3, Network("1gbit", LATENCY))
    for rank in range(3):
        clock.spawn(rank, ring(clock.comm(rank)))
    clock.fail(2, 0.0)
    with pytest.raises(PeerError, match="rank 2 died at 0 s; rank 0 waits in all_reduce; rank 1 waits") as told:
        clock.run()
    assert told.value.ranks == (2,)

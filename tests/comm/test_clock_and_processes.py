"""The clock and real processes: the same requests, the same answers, the same bytes."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from battery import LAYOUT
from nets import exchange_twice
from ranks import on_ranks
from torch import Tensor

from thinwire.comm import Comm
from thinwire.comm.clock import VirtualClock
from thinwire.comm.processes import Processes

METHODS = ("qsgd:bits=4,exchange=all-gather", "int8", "choco-sgd")  # all-gather, scatter-gather, gossip


def everybody() -> Processes:
    group = dist.group.WORLD
    assert group is not None
    return Processes({tuple(range(dist.get_world_size())): group})


async def letters(comm: Comm) -> list[Any]:
    """Ranks post to rank 0 before it takes anything; it answers each, and sees the order of one sender kept."""
    started = await comm.now()
    await comm.compute(0.0)
    if comm.rank:
        for turn in range(3):
            x = torch.full((1000 * turn,), float(turn))
            await comm.post(0, x)
            x.fill_(-1.0)
        posted = await comm.now() - started
        source, answer = await comm.recv(0)
        await comm.send(0, torch.tensor([comm.rank]))
        return [posted < 1.0, source, answer.dtype, answer.tolist()]
    await comm.sleep(1.5)
    first = [(await comm.recv(1))[1] for _ in range(3)]
    others = [await comm.recv() for _ in range(3 * (comm.size - 2))]
    for rank in range(1, comm.size):
        await comm.post(rank, torch.tensor([rank], dtype=torch.uint8))
    last = sorted([int((await comm.recv())[1]) for _ in range(1, comm.size)])
    return [_plain(first), [source for source, _ in others], _plain([x for _, x in others]), last]


def _plain(xs: list[Tensor]) -> list[tuple[int, float]]:
    return [(len(x), float(x.sum())) for x in xs]


def send_letters() -> tuple[list[Any], int, int, int]:
    driver = everybody()
    heard = driver.run(letters(driver.comm))
    driver.finish()
    return heard, driver.traffic.bytes, driver.traffic.messages, len(driver._posted)


@pytest.mark.parametrize("size", [2, 3])
def test_posts_sleeps_and_times_are_answered_as_on_the_clock(size: int) -> None:
    clock = VirtualClock(size)
    tasks = [clock.spawn(rank, letters(clock.comm(rank))) for rank in range(size)]
    clock.run()
    for rank, (heard, nbytes, messages, kept) in enumerate(on_ranks(send_letters, size)):
        assert heard == tasks[rank].result
        mails = size - 1 if rank == 0 else 4  # each with its kind and size, 16 bytes, in front
        assert nbytes == clock.traffic[rank].bytes + 16 * mails
        assert messages == clock.traffic[rank].messages + mails
        assert kept == 0


def forget() -> list[int]:
    """How much is kept while nobody receives, and after somebody has."""
    driver = everybody()

    async def give(comm: Comm) -> None:
        for _ in range(4):
            await comm.post(1, torch.ones(10_000))

    async def take(comm: Comm) -> None:
        for _ in range(4):
            await comm.recv()

    kept = []
    if dist.get_rank() == 0:
        driver.run(give(driver.comm))
        kept.append(len(driver._posted))
        dist.barrier()
        end = time.monotonic() + 60
        while len(driver._posted) and time.monotonic() < end:
            time.sleep(0.01)
        kept.append(len(driver._posted))
    else:
        dist.barrier()
        driver.run(take(driver.comm))
    dist.barrier()
    return kept


def test_what_was_posted_is_forgotten_once_it_is_received() -> None:
    assert on_ranks(forget, 2)[0] == [4, 0]


def spend(methods: tuple[str, ...]) -> list[tuple[int, int]]:
    spent = []
    for name in methods:
        driver = everybody()
        driver.run(exchange_twice(driver.comm, name, LAYOUT))
        spent.append((driver.traffic.bytes, driver.traffic.messages))
    return spent


@pytest.mark.parametrize("size", [2, 4])
def test_bytes_are_those_of_real_processes(size: int) -> None:
    real = on_ranks(spend, size, METHODS)
    for at, name in enumerate(METHODS):
        clock = VirtualClock(size)
        for rank in range(size):
            clock.spawn(rank, exchange_twice(clock.comm(rank), name, LAYOUT))
        clock.run()
        assert clock.now > 0
        for rank, traffic in enumerate(clock.traffic):
            assert (traffic.bytes, traffic.messages) == real[rank][at], (name, rank)

"""The virtual clock: what things cost, who meets whom, and that a seed repeats a run exactly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import torch

from thinwire.comm import Comm
from thinwire.comm.clock import VirtualClock
from thinwire.comm.network import Network
from thinwire.comm.stragglers import Constant, Exponential, LogNormal
from thinwire.core.errors import DeadlockError

RATE, LATENCY = 1e9, 1e-3  # bits per second, seconds
Program = Callable[[Comm], Coroutine[Any, Any, Any]]


def on_clock(program: Program, size: int, network: Network | None = None, **settings: Any) -> list[Any]:
    """What `program` returns on each rank."""
    clock = VirtualClock(size, network, **settings)
    tasks = [clock.spawn(rank, program(clock.comm(rank))) for rank in range(size)]
    clock.run()
    return [task.result for task in tasks]


def nbytes(n: int) -> torch.Tensor:
    return torch.zeros(n, dtype=torch.uint8)


def took(m: int) -> float:
    """Seconds that `m` bytes take an interface."""
    return 8 * m / RATE


@pytest.mark.parametrize("size", [2, 3, 8, 64])
def test_a_ring_takes_its_textbook_time(size: int) -> None:
    m = 1_000_003

    async def program(comm: Comm) -> float:
        await comm.compute(0.1 * comm.rank)
        await comm.all_reduce(nbytes(m))
        return await comm.now()

    due = 0.1 * (size - 1) + 2 * (size - 1) * (LATENCY + took(m) / size)
    assert on_clock(program, size) == pytest.approx([due] * size, rel=1e-9)


def test_the_slowest_host_slows_the_ring() -> None:
    async def program(comm: Comm) -> float:
        await comm.all_reduce(nbytes(1000))
        return await comm.now()

    due = 2 * 3 * (LATENCY + 10 * took(1000) / 4)
    assert on_clock(program, 4, Network("1gbit", slow={2: "100mbit"})) == pytest.approx([due] * 4, rel=1e-9)


def test_ranks_of_one_host_talk_for_free() -> None:
    async def program(comm: Comm) -> float:
        await comm.sub([comm.rank // 2 * 2, comm.rank // 2 * 2 + 1]).all_reduce(nbytes(1000))
        await comm.swap(nbytes(1000), [comm.rank ^ 1])
        return await comm.now()

    assert on_clock(program, 4, Network(ranks_per_host=2)) == [0.0] * 4


def test_gathers_are_messages_to_each_peer() -> None:
    async def program(comm: Comm) -> list[float]:
        await comm.all_gather(nbytes(1000))
        first = await comm.now()
        await comm.all_to_all([nbytes(500)] * comm.size)
        return [first, await comm.now()]

    for times in on_clock(program, 5):
        assert times == pytest.approx([LATENCY + 4 * took(1000), 2 * LATENCY + 4 * took(1500)], rel=1e-9)


def test_messages_of_one_sender_leave_one_after_the_other() -> None:
    """Rank 0 swaps with three that take nothing: it is done when all have left, they when theirs has come."""

    async def program(comm: Comm) -> float:
        peers, sources = ([1, 2, 3], []) if comm.rank == 0 else ([], [0])
        await comm.swap(nbytes(1000), peers, sources=sources)
        return await comm.now()

    due = [3 * took(1000), *(LATENCY + k * took(1000) for k in (1, 2, 3))]
    assert on_clock(program, 4) == pytest.approx(due, rel=1e-9)


def test_workers_that_push_saturate_the_interface_of_their_server() -> None:
    m, workers, pushes = 100_000, 16, 5

    async def program(comm: Comm) -> float:
        for _ in range(pushes if comm.rank else pushes * workers):
            await (comm.post(0, nbytes(m)) if comm.rank else comm.recv())
        return await comm.now()

    ended = on_clock(program, workers + 1)
    assert ended[0] == pytest.approx(LATENCY + pushes * workers * took(m), rel=1e-9)
    assert ended[1:] == [0.0] * workers


def test_a_slow_sender_does_not_hold_the_interface_of_the_receiver() -> None:
    async def program(comm: Comm) -> list[tuple[int, float]]:
        if comm.rank:
            await comm.sleep(0.0 if comm.rank == 1 else 0.01)
            await comm.post(0, nbytes(10_000_000))
            return []
        return [((await comm.recv())[0], await comm.now()) for _ in range(2)]

    (first, early), (second, late) = on_clock(program, 3, Network("1gbit", slow={1: "100mbit"}))[0]
    assert (first, second) == (2, 1)
    assert early == pytest.approx(0.01 + LATENCY + 0.08)
    assert late == pytest.approx(LATENCY + 0.8)


def test_a_send_is_done_when_it_is_received_and_a_post_at_once() -> None:
    async def program(comm: Comm) -> list[float]:
        if comm.rank:
            await comm.sleep(2.0)
            await comm.recv(0)
            await comm.recv(0)
            return []
        await comm.post(1, nbytes(1000))
        posted = await comm.now()
        await comm.send(1, nbytes(1000))
        return [posted, await comm.now()]

    assert on_clock(program, 2)[0] == [0.0, 2.0]


def test_messages_are_taken_in_order_of_arrival_and_one_sender_s_in_order() -> None:
    async def program(comm: Comm) -> list[tuple[int, int]]:
        if comm.rank:
            await comm.sleep(0.1 * (3 - comm.rank))
            for turn in range(2):
                x = torch.tensor([turn])
                await comm.post(0, x)
                x.fill_(-1)
            return []
        await comm.sleep(1.0)
        _, first = await comm.recv(1)
        got = [await comm.recv() for _ in range(3)]
        return [(1, int(first)), *((source, int(x)) for source, x in got)]

    assert on_clock(program, 3)[0] == [(1, 0), (2, 0), (2, 1), (1, 1)]


def test_the_last_of_some_exponentials(long: bool) -> None:
    """The N-th of N + b workers is there after the sum of 1/i over b < i <= N + b, on average."""
    workers, backups, rounds = 8, 2, 4000 if long else 2000

    async def work(comm: Comm) -> None:
        for _ in range(rounds):
            await comm.compute(1.0)
            await comm.post(0, nbytes(1))
            await comm.recv(0)

    async def serve(comm: Comm) -> float:
        waited = 0.0
        for _ in range(rounds):
            began = await comm.now()
            for _ in range(workers):
                await comm.recv()
            waited += await comm.now() - began
            for _ in range(backups):
                await comm.recv()
            for rank in range(1, comm.size):
                await comm.post(rank, nbytes(1))
        return waited / rounds

    n = workers + backups
    program: Program = lambda comm: work(comm) if comm.rank else serve(comm)  # noqa: E731
    due = sum(1 / i for i in range(backups + 1, n + 1))
    measured = on_clock(program, n + 1, Network(None), stragglers=Exponential(), seed=3)[0]
    assert measured == pytest.approx(due, rel=0.02)


def test_a_seed_repeats_a_run_exactly() -> None:
    async def program(comm: Comm) -> list[tuple[int, float]]:
        seen = []
        for _ in range(20):
            await comm.compute(0.01)
            await comm.post((comm.rank + 1) % comm.size, nbytes(100 * comm.rank))
            source, _ = await comm.recv()
            seen.append((source, await comm.now()))
            await comm.all_gather(nbytes(10))
        return seen

    runs = [on_clock(program, 5, stragglers=LogNormal(0.5), seed=seed) for seed in (1, 1, 2)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_constant_stragglers() -> None:
    async def program(comm: Comm) -> float:
        await comm.compute(0.25)
        return await comm.now()

    assert on_clock(program, 3, stragglers=Constant({1: 4.0})) == [0.25, 1.0, 0.25]
    with pytest.raises(ValueError, match=r"worker 3 is to be slow, and there are 3: .* write Constant\({2: 4.0}\)"):
        on_clock(program, 3, stragglers=Constant({3: 4.0}))


def test_a_deadlock_names_its_time_and_every_task_that_waits() -> None:
    clock = VirtualClock(3, Network(None))
    never = clock.event()

    async def wait(comm: Comm) -> None:
        await comm.sleep(1.25)
        await comm.recv()

    async def stall() -> None:
        await never

    async def join(task: Any) -> None:
        await task

    async def end() -> None:
        pass

    clock.spawn(2, wait(clock.comm(2)))
    stalled = clock.spawn(0, stall(), name="reader")
    clock.spawn(0, join(stalled))
    clock.spawn(1, end())
    expected = (
        r"deadlock at 1.25 s: rank 0 \(reader\) waits for an event; rank 0 waits for rank 0 \(reader\); "
        "rank 2 waits in recv from any; rank 1 has returned"
    )
    with pytest.raises(DeadlockError, match=expected):
        clock.run()


def test_a_daemon_may_be_left_waiting_and_is_there_for_the_next_run() -> None:
    clock, heard = VirtualClock(2), []

    async def serve(comm: Comm) -> None:
        while True:
            heard.append(int((await comm.recv())[1]))

    async def push(comm: Comm, value: int) -> None:
        await comm.post(0, torch.tensor([value]))

    clock.spawn(0, serve(clock.comm(0)), daemon=True)
    for value in (7, 8):
        clock.spawn(1, push(clock.comm(1), value))
        clock.run()
    assert heard == [7, 8]


def test_channels_do_not_cross() -> None:
    """Each rank gathers in two channels at once, in another order; posts of one are not taken in the other."""

    async def gather(comm: Comm, value: int) -> list[int]:
        await comm.sleep(0.1 * (value + comm.rank) % 0.2)
        await comm.post(1 - comm.rank, torch.tensor([value]))
        got = [int(x) for x in await comm.all_gather(torch.tensor([value]))]
        return [*got, int((await comm.recv())[1])]

    clock = VirtualClock(2)
    by_task = [[clock.spawn(rank, gather(clock.comm(rank), c), channel=c) for rank in range(2)] for c in (3, 4)]
    by_comm = [[clock.spawn(rank, gather(clock.comm(rank, c), c)) for rank in range(2)] for c in (5, 6)]
    clock.run()
    for channel, tasks in zip((3, 4, 5, 6), by_task + by_comm, strict=True):
        assert [task.result for task in tasks] == [[channel] * 3] * 2
    assert [t.messages for t in clock.traffic] == [8, 8]


def test_tasks_and_events_give_results_and_errors_to_those_who_wait() -> None:
    clock = VirtualClock(1)
    event = clock.event()

    async def child(comm: Comm, fail: bool) -> str:
        await comm.sleep(0.5)
        if fail:
            raise KeyError("lost")
        word: str = await event
        return word

    async def parent(comm: Comm) -> list[Any]:
        good = clock.spawn(0, child(comm, False))
        bad = clock.spawn(0, child(comm, True))
        await comm.sleep(1.0)
        assert bad.done
        assert not good.done
        event.set("word")
        with pytest.raises(KeyError, match="lost"):
            await bad
        return [await good, await good, await event, await comm.now()]

    task = clock.spawn(0, parent(clock.comm(0)))
    with pytest.raises(RuntimeError, match="has no result before its end"):
        _ = task.result
    clock.run()
    assert task.result == ["word", "word", "word", 1.0]
    with pytest.raises(ValueError, match="an event is set once"):
        event.set("again")


def test_an_error_that_nobody_awaits_is_raised_by_the_clock() -> None:
    clock = VirtualClock(2)

    async def fail(comm: Comm) -> None:
        await comm.sleep(0.5)
        raise KeyError("lost")

    async def wait(comm: Comm) -> None:
        await comm.recv()

    clock.spawn(1, fail(clock.comm(1)))
    clock.spawn(0, wait(clock.comm(0)))
    with pytest.raises(KeyError, match="lost") as caught:
        clock.run()
    assert caught.value.__notes__ == ["raised on virtual rank 1"]


def test_refusals() -> None:
    clock = VirtualClock(2)

    async def foreign() -> None:
        await asyncio.sleep(0)

    clock.spawn(0, foreign())
    with pytest.raises(TypeError, match="only requests of its Comm can be awaited"):
        clock.run()
    with pytest.raises(ValueError, match="no rank 2 among 2"):
        clock.comm(2)
    with pytest.raises(ValueError, match="at least one worker"):
        VirtualClock(0)
    for call in (clock.comm(0).sleep, clock.comm(0).compute):
        with pytest.raises(ValueError, match="not negative"):
            call(-1.0)

"""Between: measure the link and the sockets between the ranks of a process group, in which all ranks call this.

Sums go through gloo's all-reduce, and messages through the driver that the engine uses. Small ones say what a round
takes, large ones what a byte takes. On a link that is not the bottleneck, that is what hosts pay (`sockets`); with
these known, large ones on the link itself give its rate, and small ones that travel beside large ones the time in its
queue (`link`). The slowest rank counts.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from statistics import median
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from thinwire.comm.processes import Processes
from thinwire.core.comm import Comm
from thinwire.core.rates import HIGHEST
from thinwire.planning.link import HEADERS, Cost, Link, Sockets
from thinwire.planning.script import Ask

SMALL, LARGE = 16, 4 << 20  # elements of a sum
FIRST, MOST = 1 << 18, 64 << 20  # bytes of a message that is made longer until it takes long enough
PINGS, BULKS, LOADED = 20, 4, 3
LEAST = 0.3  # seconds that a large message takes, so that what the network takes in at once does not count
WORST = 0.75  # of a rate that is known: what is below was slowed down by something else than the link
TIGHT = 0.8  # of the hosts' own speed: what is faster than that was not slowed down by the link


class Taken(NamedTuple):
    """Seconds of a request, and processor seconds of it."""

    wall: float
    cpu: float


def sockets(group: dist.ProcessGroup) -> Sockets:
    """What sending costs these hosts; to be called while their link is faster than they are."""
    driver, n = _driver(group), dist.get_world_size(group)
    return Sockets(
        ring=_cost(driver, Ask("ring", 1, 4), n, group),
        ring16=_cost(driver, Ask("ring", 1, 2), n, group),
        trade=_cost(driver, Ask("scatter", 1), n, group),
    )


def link(group: dist.ProcessGroup, other: dist.ProcessGroup, known: Sockets, rate: float | None = None) -> Link:
    """The link as data sees it. With a `rate` that is known, what it lacks in data is headers and losses.

    `other` is a second group of the same ranks, for what travels at the same time.
    """
    driver, beside, n = _driver(group), _driver(other), dist.get_world_size(group)
    ping = _times(driver, Ask("ring", SMALL * 4), n, PINGS, group, best=True)
    latency = max(0.0, ping.wall / (2 * (n - 1)) - known.ring.round)
    trade, bulk = _long(driver, Ask("scatter", FIRST), n, group)
    speed = trade.sent(n) / bulk.wall
    queue = max(0.0, _loaded(driver, beside, trade, n, group) - known.ring.round - latency)
    free = speed * known.trade.byte > TIGHT
    if rate is None:
        return Link(HIGHEST, latency) if free else Link(8 * speed / HEADERS, latency, queue)
    ring, whole = _long(driver, Ask("ring", FIRST), n, group)
    around = ring.sent(n) / max(1e-9, whole.wall - ring.rounds(n) * (known.ring.round + latency))
    return Link(
        rate,
        latency,
        0.0 if free else queue,
        HEADERS if free else _part(speed, rate, bulk.wall),
        HEADERS if around * known.ring.byte > TIGHT else _part(around, rate, whole.wall),
    )


def _part(speed: float, rate: float, taken: float) -> float:
    """Of a rate in bits per second; what the network takes in at once may make it more than there is.

    Where even the largest message takes too short to tell, it is what headers leave.
    """
    if taken < LEAST / 3:
        return HEADERS
    return min(HEADERS, max(WORST, 8 * speed / rate))


def _long(driver: Processes, ask: Ask, n: int, group: dist.ProcessGroup) -> tuple[Ask, Taken]:
    """A request that is large enough to take a while, and how long it takes."""
    while True:
        once = _times(driver, ask, n, 1, group)
        if once.wall >= LEAST or ask.size >= MOST:
            return ask, _times(driver, ask, n, 3, group, best=True)
        ask = ask._replace(size=4 * ask.size)


def _loaded(driver: Processes, beside: Processes, ask: Ask, n: int, group: dist.ProcessGroup) -> float:
    """Seconds of a round of small messages while large ones are under way."""
    went: list[float] = []
    dist.barrier(group)
    thread = threading.Thread(target=_twice, args=(driver, ask, n))
    thread.start()
    for _ in range(LOADED):  # equally many on all ranks, whatever their clocks say
        start = time.perf_counter()
        _run(beside, Ask("ring", SMALL * 4), n)
        went.append((time.perf_counter() - start) / (2 * (n - 1)))
    thread.join()
    return _largest(median(went), group)


def _twice(driver: Processes, ask: Ask, n: int) -> None:
    for _ in range(2):
        _run(driver, ask, n)


def _cost(driver: Processes, kind: Ask, n: int, group: dist.ProcessGroup) -> Cost:
    small, large = kind._replace(size=SMALL * kind.width), kind._replace(size=LARGE * 4)
    _times(driver, small, n, PINGS, group)
    ping = _times(driver, small, n, PINGS, group)
    _times(driver, large, n, 1, group)
    bulk = _times(driver, large, n, BULKS, group)
    sent, per_round = large.sent(n), ping.wall / small.rounds(n)
    byte = max(0.0, bulk.wall - large.rounds(n) * per_round) / sent
    return Cost(per_round, byte, bulk.cpu / sent)


def _times(driver: Processes, ask: Ask, n: int, times: int, group: dist.ProcessGroup, *, best: bool = False) -> Taken:
    """The median of several requests, or the best of them, of the slowest rank."""
    walls = []
    dist.barrier(group)
    cpu = time.process_time()
    for _ in range(times):
        start = time.perf_counter()
        _run(driver, ask, n)
        walls.append(time.perf_counter() - start)
    cpu = (time.process_time() - cpu) / times
    return Taken(_largest(min(walls) if best else median(walls), group), _largest(cpu, group))


def _run(driver: Processes, ask: Ask, n: int) -> None:
    driver.run(_REQUESTS[ask.kind](driver.comm, ask, n))


async def _sum(comm: Comm, ask: Ask, n: int) -> None:
    kind = {1: torch.uint8, 2: torch.bfloat16, 4: torch.float32}[ask.width]
    await comm.all_reduce(torch.zeros(math.ceil(ask.size / ask.width), dtype=kind))


async def _scatter(comm: Comm, ask: Ask, n: int) -> None:
    each = torch.zeros(max(1, int(ask.size) // n), dtype=torch.uint8)
    await comm.all_to_all([each] * n, sizes=(each.numel(),) * n)


_REQUESTS: dict[str, Callable[[Comm, Ask, int], Coroutine[Any, Any, None]]] = {"ring": _sum, "scatter": _scatter}


def _driver(group: dist.ProcessGroup) -> Processes:
    return Processes({tuple(range(dist.get_world_size(group))): group})


def slowest(times: Sequence[float]) -> list[float]:
    """Of every step, the time of the rank that took longest."""
    found = torch.tensor(list(times), dtype=torch.float64)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return [float(one) for one in found]


def _largest(value: float, group: dist.ProcessGroup) -> float:
    found = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(found, dist.ReduceOp.MAX, group=group)
    return float(found)

"""Between: measure the link and the sockets between the ranks of a process group, in which all ranks call this.

Sums go through gloo's all-reduce, and messages through the driver that the engine uses. Small ones say what a round
takes, large ones what a byte takes. On a link that is not the bottleneck, that is what hosts pay (`sockets`). With
these known, messages on the link itself tell about it (`link`):

    rate      of messages that take long
    queue     how long small messages wait that travel beside large ones
    burst     what passes at once after a rest: a message of s bytes takes (s - burst) / rate, and that much less
    single    what part of the rate is left for data where one lane sends to everybody, by size: the queue overflows,
              and a connection that has lost its last packets waits before it sends them again
    crowds    the same where several lanes do so at once

The slowest rank counts.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from statistics import median
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from thinwire.comm.processes import Processes
from thinwire.core.comm import Comm
from thinwire.core.rates import HIGHEST
from thinwire.planning.link import HEADERS, Cost, Link, Sockets
from thinwire.planning.rounds import undisturbed
from thinwire.planning.script import Ask

SMALL, LARGE = 16, 16 << 20  # elements of a small sum, bytes of a large one
ENOUGH, BULKY = 0.05, 4 << 20  # seconds of a large one, and its least bytes: on a busy machine it need not be larger
FIRST, MOST = 1 << 18, 64 << 20  # bytes of a message that is made longer until it takes long enough
PINGS, BULKS, LOADED = 20, 6, 3
RESTED, PAUSE = 5, 0.05  # messages after a pause, and its seconds
NAP = 0.005  # seconds in which a host computes before it sends
SHORT, BRIEF = (
    1 << 16,
    0.008,
)  # bytes of a message, and seconds that it should take: a burst must be a good part of it
TINY, TIMES, STEPS = 1 << 16, 4, 4  # bytes per lane of a crowd's first message, how it grows, and how often
SINGLE, CROWDS, LONG = 5, 3, 1.5  # messages of each size in one lane and in several, and seconds that one may take
LEAST = 0.3  # seconds that a large message takes, so that what the network takes in at once does not count
NOISE = 0.02  # of a message: a burst that is smaller is none
FLOOR = 0.2  # of the rate, at least, is left for data
WORST = 0.75  # of a rate that is known: what is below was slowed down by something else than the link
TIGHT = 0.8  # of what a message takes: where the hosts themselves take more than that, the link is no bottleneck


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
        half=_cost(driver, Ask("ring", 1, 2, half=True), n, group),
        trade=_cost(driver, Ask("scatter", 1), n, group),
    )


def link(lanes: Sequence[dist.ProcessGroup], known: Sockets, rate: float | None = None) -> Link:
    """The link as data sees it. With a `rate` that is known, what it lacks in data is headers and losses.

    `lanes` are `link.LANES` groups of the same ranks, for what travels at the same time.
    """
    group, drivers, n = lanes[0], [_driver(one) for one in lanes], dist.get_world_size(lanes[0])
    driver = drivers[0]
    ping = _times(driver, Ask("ring", SMALL * 4), n, PINGS, group, best=True)
    latency = max(0.0, ping.wall / (2 * (n - 1)) - known.ring.round)
    trade, bulk = _long(driver, Ask("scatter", FIRST), n, group)
    speed = trade.sent(n) / bulk.wall
    if _hosts(trade, known.trade, n) > TIGHT * bulk.wall:  # the link is faster than the hosts
        found = Link(HIGHEST if rate is None else rate, latency)
    else:
        queue = max(0.0, _loaded(driver, drivers[1], trade, n, group) - known.ring.round - latency)
        good = HEADERS if rate is None else _part(speed, rate, bulk.wall)
        found = Link(8 * speed / HEADERS if rate is None else rate, latency, queue, good)
        found = replace(found, burst=_burst(driver, found, known, n, group))
        # Lanes that send alone take turns, as the engine's do: each has rested by then, and starts slowly.
        crowds = _crowds([drivers], found, known, n, group)
        single = _crowds([[one] for one in drivers], found, known, n, group)
        found = replace(found, single=single, crowds=crowds)
    ring, whole = _long(driver, Ask("ring", FIRST), n, group)
    around = ring.sent(n) / max(1e-9, whole.wall - ring.rounds(n) * latency)
    free = _hosts(ring, known.ring, n) > TIGHT * whole.wall or found.rate == HIGHEST
    return replace(found, summed=HEADERS if free else _part(around, found.rate, whole.wall))


def _hosts(ask: Ask, cost: Cost, n: int) -> float:
    """Seconds that a request takes the hosts themselves."""
    return cost.seconds(ask.rounds(n), ask.sent(n))


def _burst(driver: Processes, link: Link, known: Sockets, n: int, group: dist.ProcessGroup) -> float:
    """Bytes, headers included, that pass at once after a rest; 0 where what was saved is too little to tell."""
    size = SHORT
    while _rested(driver, Ask("scatter", size), n, group, 1) < BRIEF and size < MOST:
        size *= 2
    ask = Ask("scatter", size)
    taken = _rested(driver, ask, n, group, RESTED)
    carried = max(0.0, taken - known.trade.first - link.latency) * link.rate / 8  # a short message loses nothing
    saved = ask.sent(n) / HEADERS - carried
    return saved if saved > NOISE * ask.sent(n) else 0.0


def _rested(
    driver: Processes, ask: Ask, n: int, group: dist.ProcessGroup, times: int, pause: float | None = None
) -> float:
    """Seconds of a request after a rest, or after a pause alone: the median, of the slowest rank."""
    walls, request = [], _ready(driver, ask, n)
    for _ in range(times):
        if pause is None:
            _rest(group)
        else:
            dist.barrier(group)
            time.sleep(pause)
        start = time.perf_counter()
        request()
        walls.append(time.perf_counter() - start)
    return _largest(median(walls), group)


def _crowds(
    teams: Sequence[Sequence[Processes]], link: Link, known: Sockets, n: int, group: dist.ProcessGroup
) -> tuple[tuple[float, float], ...]:
    """By the bytes that a rank sends in one lane: the part of the rate that carries data while a team's lanes send.

    Teams of equal size take turns.
    """
    lanes = len(teams[0])
    times = CROWDS if lanes > 1 else SINGLE

    def sent(ask: Ask) -> float:
        return median(_crowd(teams[turn % len(teams)], ask, n, group) for turn in range(times))

    first = sent(Ask("scatter", SMALL * n))
    found: list[tuple[float, float]] = []
    for step in range(STEPS):
        ask = Ask("scatter", TINY * TIMES**step)
        every = lanes * ask.sent(n)
        if every / (link.rate / 8 * HEADERS) > LONG:
            break
        expected = _expected(every, link, known.trade.byte)
        if expected > first:  # what is shorter says nothing about the link
            taken = sent(ask) - known.trade.first - link.latency
            found.append((ask.sent(n), HEADERS * min(1.0, max(FLOOR, expected / max(taken, 1e-9)))))
    return tuple(found)


def _expected(every: float, link: Link, byte: float) -> float:
    """Seconds of so many bytes after a rest if headers alone take a part of the rate: first what passes as a burst.

    >>> round(_expected(3e6, Link(8e9, goodput=1.0), 0.2e-9), 6)
    0.003137
    >>> round(_expected(3e6, Link(8e9, goodput=1.0, burst=1e6), 0.2e-9), 6)  # as fast as the host sends it
    0.002337
    """
    early = min(link.burst, every)
    return every / (link.rate / 8 * HEADERS) - early / (link.rate / 8) + early * byte


def _crowd(drivers: Sequence[Processes], ask: Ask, n: int, group: dist.ProcessGroup) -> float:
    """Seconds until the last of all lanes has ended, on the slowest rank."""
    requests = [_ready(driver, ask, n) for driver in drivers]
    there = threading.Barrier(1 + len(requests))
    with ThreadPoolExecutor(len(requests)) as pool:
        for _ in requests:
            pool.submit(there.wait)
        there.wait()  # the engine's lanes have their threads, too
        _rest(group)
        start = time.perf_counter()
        for ended in [pool.submit(request) for request in requests]:
            ended.result()
        taken = time.perf_counter() - start
    return _largest(taken, group)


def _rest(group: dist.ProcessGroup) -> None:
    """Leave the link alone for a while, and start together."""
    dist.barrier(group)
    time.sleep(PAUSE)
    dist.barrier(group)


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
    large, small = _ready(driver, ask, n), _ready(beside, Ask("ring", SMALL * 4), n)
    dist.barrier(group)
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(_twice, large)
        for _ in range(LOADED):  # equally many on all ranks, whatever their clocks say
            start = time.perf_counter()
            small()
            went.append((time.perf_counter() - start) / (2 * (n - 1)))
        ended.result()
    return _largest(median(went), group)


def _twice(request: Callable[[], None]) -> None:
    request()
    request()


def _cost(driver: Processes, kind: Ask, n: int, group: dist.ProcessGroup) -> Cost:
    small, large = kind._replace(size=SMALL * kind.width), kind._replace(size=FIRST)
    _times(driver, small, n, PINGS, group)
    ping = _times(driver, small, n, PINGS, group)
    while large.size < BULKY or (_times(driver, large, n, 1, group).wall < ENOUGH and large.size < LARGE):
        large = large._replace(size=4 * large.size)
    bulk = _times(driver, large, n, BULKS, group)
    sent, per_round = large.sent(n), ping.wall / small.rounds(n)
    byte = max(0.0, bulk.wall - large.rounds(n) * per_round) / sent
    first = max(0.0, _rested(driver, small, n, group, PINGS, NAP) - ping.wall)
    return Cost(per_round, byte, bulk.cpu / sent, first)


def _times(driver: Processes, ask: Ask, n: int, times: int, group: dist.ProcessGroup, *, best: bool = False) -> Taken:
    """What several requests take, or the best of them, on the slowest rank."""
    walls, request = [], _ready(driver, ask, n)
    dist.barrier(group)
    cpu = time.process_time()
    for _ in range(times):
        start = time.perf_counter()
        request()
        walls.append(time.perf_counter() - start)
    cpu = (time.process_time() - cpu) / times
    return Taken(_largest(min(walls) if best else undisturbed(walls), group), _largest(cpu, group))


def _ready(driver: Processes, ask: Ask, n: int) -> Callable[[], None]:
    """What makes a request, over and over, of memory that is there already, as gradients are."""
    make = _REQUESTS[ask.kind](ask, n)
    return lambda: driver.run(make(driver.comm))


def _sum(ask: Ask, n: int) -> Request:
    kind = torch.float16 if ask.half else KINDS[ask.width]
    x = torch.zeros(math.ceil(ask.size / ask.width), dtype=kind)

    async def request(comm: Comm) -> None:
        await comm.all_reduce(x)

    return request


def _scatter(ask: Ask, n: int) -> Request:
    each = torch.zeros(max(1, int(ask.size) // n), dtype=torch.uint8)

    async def request(comm: Comm) -> None:
        await comm.all_to_all([each] * n, sizes=(each.numel(),) * n)

    return request


Request = Callable[[Comm], Coroutine[Any, Any, None]]
KINDS = {1: torch.uint8, 2: torch.bfloat16, 4: torch.float32}
_REQUESTS: dict[str, Callable[[Ask, int], Request]] = {"ring": _sum, "scatter": _scatter}


def _driver(group: dist.ProcessGroup) -> Processes:
    return Processes({tuple(range(dist.get_world_size(group))): group})


def _largest(value: float, group: dist.ProcessGroup) -> float:
    found = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(found, dist.ReduceOp.MAX, group=group)
    return float(found)

"""Link: what lies between the hosts, and Sockets: what it costs a host to use it.

A link has a rate, a latency one way, and a queue in which messages wait while it is full. Headers take a part of the
rate, and where many connections begin at once, so do packets that are dropped and sent again. Some links let a burst
through faster than their rate, and save up for the next one while they are idle. What a host pays besides is a time
per round of messages, and processor time per byte: it copies, and where numbers are summed it adds. Both bound what
even an infinitely fast link would give.
"""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import final

import torch

from thinwire.core.rates import bits_per_second, seconds

HEADERS = 1448 / 1514  # of a TCP packet of 1500 bytes on Ethernet: what is left for data
LANES = 4  # that send at the same time where crowds are measured
SMALL, LARGE = 64, 8 << 20  # bytes
PINGS, BULKS = 200, 6


@final
@dataclass(frozen=True)
class Link:
    """Between any two hosts; every host sends at `rate` bits per second at most.

    >>> Link.of("1gbit", "1ms").bytes_per_second > 1e8
    True
    """

    rate: float
    latency: float = 0.0
    queue: float = 0.0  # seconds that a message waits behind others when the link is full
    goodput: float = HEADERS  # share of the rate that carries data
    summed: float | None = (
        None  # the same for sums, in which every message waits for another; as `goodput` unless given
    )
    burst: float = 0.0  # bytes that pass at once after a time of rest
    single: tuple[tuple[float, float], ...] = ()  # (bytes that a rank sends to everybody, goodput) in one lane
    crowds: tuple[tuple[float, float], ...] = ()  # the same by the bytes of each lane, where several send at once

    def __post_init__(self) -> None:
        if not 0 <= self.burst < math.inf or any(not 0 < part <= 1 for _, part in (*self.single, *self.crowds)):
            raise ValueError(f"{self}: a burst is not negative, and crowds get a part of the rate")
        if not 0 < self.rate < math.inf or not 0 <= self.latency < math.inf or not 0 < self.goodput <= 1:
            raise ValueError(f'{self}: write Link.of("1gbit", "1ms")')

    @classmethod
    def of(cls, rate: str | float, latency: str | float = 0.0) -> Link:
        """In the words of tc, or in bits per second and seconds."""
        return cls(
            bits_per_second(rate) if isinstance(rate, str) else float(rate),
            seconds(latency) if isinstance(latency, str) else float(latency),
        )

    @property
    def bytes_per_second(self) -> float:
        """Of data."""
        return self.rate / 8 * self.goodput

    def share(self, summed: bool, sent: float = math.inf, lanes: int = 1) -> float:
        """The part of the rate that carries data: of sums, or of messages to everybody while so many lanes send some.

        `sent` are the bytes that a rank sends in this lane.
        """
        if summed:
            return self.summed if self.summed is not None else self.goodput
        if sent <= 0:
            return self.goodput
        one = _between(self.single, sent) if self.single else self.goodput
        all_ = _between(self.crowds, sent) if self.crowds else one
        return one + (all_ - one) * min(1.0, (lanes - 1) / (LANES - 1))

    def __str__(self) -> str:
        return f"{self.rate / 1e6:,.6g} Mbit/s, {1e3 * self.latency:.3g} ms"


@final
@dataclass(frozen=True)
class Cost:
    """Of one way to send: seconds per round and per byte that is sent, and processor seconds per byte.

    The first round of a request takes longer by `first`: threads that wait for messages have gone to sleep.
    """

    round: float = 0.0
    byte: float = 0.0
    cpu: float = 0.0
    first: float = 0.0

    def __post_init__(self) -> None:
        if min(self.round, self.byte, self.cpu, self.first) < 0:
            raise ValueError(f"{self}: costs are not negative; write Cost(round=1e-4, byte=1e-9, cpu=1e-9)")

    def at_most(self, cores: float) -> Cost:
        """Keeping no more cores busy; where a byte takes no time, what it costs is not known."""
        return replace(self, cpu=min(self.cpu, cores * self.byte)) if self.byte else self

    def seconds(self, rounds: int, sent: float) -> float:
        """Of so many rounds and bytes, on a link that is infinitely fast."""
        return rounds * self.round + sent * self.byte


@final
@dataclass(frozen=True)
class Sockets:
    """What each way to send costs a host on a link that is infinitely fast."""

    ring: Cost = field(default_factory=Cost)  # sums of float32
    ring16: Cost = field(default_factory=Cost)  # sums of bfloat16
    trade: Cost = field(default_factory=Cost)  # messages to peers
    half: Cost = field(default_factory=Cost)  # sums of float16, which is added in another way

    def at_most(self, cores: float) -> Sockets:
        """Keeping no more cores busy than a rank has: those on one machine sent at once, and times hold for that."""
        return Sockets(*(cost.at_most(cores) for cost in (self.ring, self.ring16, self.trade, self.half)))


FREE = Sockets()
"""A host whose network costs it nothing."""


def _between(points: Sequence[tuple[float, float]], x: float) -> float:
    """On the line between two points, in the logarithm of x; the value at an end beyond it."""
    if x <= points[0][0]:
        return points[0][1]
    for (x0, y0), (x1, y1) in pairwise(points):
        if x <= x1:
            return y0 + (y1 - y0) * math.log(x / x0) / math.log(x1 / x0)
    return points[-1][1]


def loopback() -> Sockets:
    """Measured between two threads of this process, through the machine's own network, and an addition of tensors."""
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        door.listen(1)
        with socket.create_connection(door.getsockname()) as near:
            far, _ = door.accept()
            with far:
                near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                hop, _ = _timed(near, far, SMALL, PINGS)
                bulk, cpu = _timed(near, far, LARGE, BULKS)
    byte, cpu = bulk / LARGE, cpu / LARGE  # both ends are here, as every host sends and receives
    adds = {kind: _addition(kind) for kind in (torch.float32, torch.bfloat16, torch.float16)}
    return Sockets(
        ring=Cost(hop, byte + adds[torch.float32] / 2, cpu + adds[torch.float32] / 2),
        ring16=Cost(hop, byte + adds[torch.bfloat16] / 2, cpu + adds[torch.bfloat16] / 2),
        half=Cost(hop, byte + adds[torch.float16] / 2, cpu + adds[torch.float16] / 2),
        trade=Cost(hop, byte, cpu),
    )


def _timed(near: socket.socket, far: socket.socket, size: int, times: int) -> tuple[float, float]:
    """Seconds and processor seconds of one way, for messages that are sent back."""

    def back() -> None:
        room = bytearray(size)
        for _ in range(times):
            _fill(far, room)
            far.sendall(room)

    other = threading.Thread(target=back)
    room = bytearray(size)
    other.start()
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(times):
        near.sendall(room)
        _fill(near, room)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    other.join()
    return wall / times / 2, cpu / times / 2


def _fill(end: socket.socket, room: bytearray) -> None:
    view = memoryview(room)
    while view:
        got = end.recv_into(view)
        if not got:
            raise ConnectionError("the other end of the loopback connection closed")
        view = view[got:]


def _addition(kind: torch.dtype) -> float:
    """Seconds per byte of adding one vector to another."""
    a, b = torch.ones(LARGE // 4, dtype=kind), torch.ones(LARGE // 4, dtype=kind)
    a.add_(b)
    start = time.perf_counter()
    for _ in range(BULKS):
        a.add_(b)
    return (time.perf_counter() - start) / BULKS / a.nbytes

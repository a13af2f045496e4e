"""Room: where requests of one group of ranks meet in one channel. Who meets whom is decided here, and no time."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, final

from torch import Tensor

from thinwire.comm.tasks import Task
from thinwire.core.comm import RecvRequest, Request, SwapRequest


@final
class Meeting:
    """One collective under way: who has asked, and with what."""

    def __init__(self, size: int) -> None:
        self.missing = size
        self.tasks: list[Any] = [None] * size
        self.requests: list[Any] = [None] * size
        self.bursts: list[Any] = [None] * size  # when each began to send and had sent, where that takes time


class Message(NamedTuple):
    """A tensor that has arrived; `sender` waits until it is taken, unless it was posted."""

    source: int  # place in the group
    x: Tensor
    sender: Task[Any] | None


@final
@dataclass(eq=False)
class Trade:
    """A swap under way: what has come, by source, and how much has not."""

    task: Task[Any]
    request: SwapRequest
    arrived: dict[int, Tensor]
    missing: int
    left: float  # when what it sends has left


@final
@dataclass(eq=False)
class Mailbox:
    """What has arrived at one rank and nobody has taken, or who waits for it."""

    messages: deque[Message] = field(default_factory=deque)
    waiting: deque[tuple[Task[Any], int | None]] = field(default_factory=deque)

    def take(self, request: RecvRequest) -> Message | None:
        """The next message that `request` asks for."""
        source, messages = request.source, self.messages
        if source is None:
            return messages.popleft() if messages else None
        for at, message in enumerate(messages):
            if message.source == source:
                del messages[at]
                return message
        return None

    def receiver(self, source: int) -> Task[Any] | None:
        """The first of those that wait for a message from `source`."""
        for at, (task, wanted) in enumerate(self.waiting):
            if wanted is None or wanted == source:
                del self.waiting[at]
                return task
        return None


@final
class Room:
    """`ranks` in one channel; `hosts` says where each rank of the world is."""

    def __init__(self, ranks: tuple[int, ...], hosts: Sequence[int]) -> None:
        self.ranks = ranks
        self.place = {rank: place for place, rank in enumerate(ranks)}
        self._all_hosts = hosts
        self.mail: dict[int, Mailbox] = {}  # by place
        self._meetings: dict[type, deque[Meeting]] = {}
        self._on_the_way: dict[tuple[int, int], deque[Tensor]] = {}  # swapped, and not asked for, by (from, to)
        self._awaited: dict[tuple[int, int], deque[Trade]] = {}  # asked for, and not swapped

    @cached_property
    def hosts(self) -> list[int]:
        """Where each rank is."""
        return [self._all_hosts[rank] for rank in self.ranks]

    def meet(self, task: Task[Any], request: Request[Any]) -> Meeting:
        """Join the first collective of this kind that the rank has not joined; it is closed when none is missing."""
        kind, place = type(request), self.place[task.rank]
        open_ones = self._meetings.get(kind)
        if open_ones is None:
            open_ones = self._meetings[kind] = deque()
        for meeting in open_ones:
            if meeting.tasks[place] is None:
                break
        else:
            meeting = Meeting(len(self.ranks))
            open_ones.append(meeting)
        meeting.tasks[place], meeting.requests[place] = task, request
        meeting.missing -= 1
        if not meeting.missing:
            open_ones.popleft()  # whoever joined a later one joined this one before
        return meeting

    def mailbox(self, place: int) -> Mailbox:
        """What has arrived at a rank."""
        box = self.mail.get(place)
        if box is None:
            box = self.mail[place] = Mailbox()
        return box

    def deposit(self, source: int, to: int, x: Tensor) -> Trade | None:
        """A swapped tensor has arrived; returns the swap that now has all it asked for, if there is one."""
        awaited = self._awaited.get((source, to))
        if not awaited:
            self._on_the_way.setdefault((source, to), deque()).append(x)
            return None
        trade = awaited.popleft()
        if not awaited:
            del self._awaited[source, to]  # pairs that never meet again are forgotten
        trade.arrived[source] = x
        trade.missing -= 1
        return None if trade.missing else trade

    def trade(self, task: Task[Any], request: SwapRequest, left: float) -> Trade:
        """Ask for a tensor from each source; those that are here are taken."""
        to = self.place[task.rank]
        arrived: dict[int, Any] = dict.fromkeys(request.sources)  # in this order, whatever comes first
        trade = Trade(task, request, arrived, 0, left)
        for source in arrived:
            here = self._on_the_way.get((source, to))
            if here:
                arrived[source] = here.popleft()
                if not here:
                    del self._on_the_way[source, to]
            else:
                self._awaited.setdefault((source, to), deque()).append(trade)
                trade.missing += 1
        return trade

    def forget(self, source: int) -> list[Trade]:
        """Nothing comes from `source` any more; returns the swaps that now have all that they can have."""
        done = []
        for one, to in [pair for pair in self._awaited if pair[0] == source]:
            for trade in self._awaited.pop((one, to)):
                del trade.arrived[source]
                trade.missing -= 1
                if not trade.missing:
                    done.append(trade)
        return done

"""Switch: answers the requests of the ranks of a virtual clock to each other, with real tensors and in virtual time.

A handler returns the answer, or WAITS, and then the task is woken with it later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, final

from torch import Tensor

from thinwire.comm import answers
from thinwire.comm.agenda import Agenda
from thinwire.comm.network import Interfaces
from thinwire.comm.rooms import Meeting, Message, Room, Trade
from thinwire.comm.tasks import Task
from thinwire.core.comm import (
    AllGatherRequest,
    AllReduceRequest,
    AllToAllRequest,
    PostRequest,
    RecvRequest,
    Request,
    SendRequest,
    SwapRequest,
    Traffic,
    count,
)

WAITS: Final = object()
ANSWERS: dict[type, Callable[[Any], Sequence[Any]]] = {
    AllReduceRequest: answers.all_reduce,
    AllGatherRequest: answers.all_gather,
    AllToAllRequest: answers.all_to_all,
}


@final
class Switch:
    """Brings requests together; `interfaces` say what that costs, and `agenda` wakes the tasks.

    Without `numbers` messages are blanks (thinwire.comm.blank): sizes alone.
    """

    def __init__(
        self, agenda: Agenda, interfaces: Interfaces, traffic: list[Traffic], *, numbers: bool = True
    ) -> None:
        self.everybody = tuple(range(len(traffic)))
        self._agenda, self._interfaces, self._traffic = agenda, interfaces, traffic
        self._instant, self._numbers = interfaces.instant, numbers
        self._common: dict[int, Room] = {}  # of everybody, by channel
        self._rooms: dict[tuple[int, tuple[int, ...]], Room] = {}
        self.handlers: dict[type, Callable[[Task[Any], Any], Any]] = {
            AllReduceRequest: self._collective,
            AllGatherRequest: self._collective,
            AllToAllRequest: self._collective,
            SwapRequest: self._swap,
            SendRequest: self._send,
            PostRequest: self._post,
            RecvRequest: self._recv,
        }

    def _room(self, task: Task[Any], request: Request[Any]) -> Room:
        """Where a request is met: by its ranks, and by the channel of its Comm or else of its task."""
        channel, ranks = request.channel or task.channel, request.ranks
        if ranks is self.everybody:  # the usual case; long tuples are slow keys
            room = self._common.get(channel)
            if room is not None:
                return room
        room = self._rooms.get((channel, ranks))
        if room is None:
            room = self._rooms[channel, ranks] = Room(ranks, self._interfaces.host)
        if ranks is self.everybody:
            self._common[channel] = room
        return room

    def _collective(self, task: Task[Any], request: Request[Any]) -> Any:
        room = self._room(task, request)
        place = room.place[task.rank]
        meeting = room.meet(task, request)
        if not self._instant and not isinstance(request, AllReduceRequest):
            away = _bytes_away(room.hosts, place, request)
            across = _bytes_away(self._racks(room), place, request) if self._interfaces.racks > 1 else 0
            meeting.bursts[place] = self._interfaces.burst(task.rank, away, self._agenda.now, across)
        if not meeting.missing:
            self._close(room, meeting)
        return WAITS

    def _close(self, room: Room, meeting: Meeting) -> None:
        """Everybody has asked: answer, in order of rank."""
        results: Sequence[Any] = [None] * len(meeting.tasks)  # messages without numbers are answered with nothing
        if self._numbers:
            results = ANSWERS[type(meeting.requests[0])](meeting.requests)
        for place, (task, request) in enumerate(zip(meeting.tasks, meeting.requests, strict=True)):
            count(self._traffic[task.rank], place, request)
        if self._instant:
            self._agenda.ready.extend(zip(meeting.tasks, results, strict=True))
        elif isinstance(meeting.requests[0], AllReduceRequest):
            x = meeting.requests[0].x
            done = self._interfaces.ring(room.ranks, x.numel() * x.element_size(), self._agenda.now)
            self._agenda.at(done, self._wake_all, meeting.tasks, results)
        else:
            across: list[int] = []
            if self._interfaces.racks > 1:
                across = [0] * self._interfaces.racks
                racks = self._racks(room)
                for rack, size in zip(racks, _bytes_in(racks, meeting.requests), strict=True):
                    across[rack] += size
            comes = _bytes_in(room.hosts, meeting.requests)
            times = self._interfaces.settle(room.ranks, meeting.bursts, comes, across)
            for task, result, time in zip(meeting.tasks, results, times, strict=True):
                self._agenda.at(time, self._agenda.wake, task, result)

    def forget(self, rank: int) -> None:
        """A rank is gone: swaps that wait for it go on without it."""
        for room in [*self._rooms.values()]:
            if rank in room.place:
                for trade in room.forget(room.place[rank]):
                    self._complete(trade)

    def _racks(self, room: Room) -> list[int]:
        """Where each rank of a room stands."""
        return [self._interfaces.rack[host] for host in room.hosts]

    def _wake_all(self, tasks: Sequence[Task[Any]], results: Sequence[Any]) -> None:
        self._agenda.ready.extend(zip(tasks, results, strict=True))

    def _swap(self, task: Task[Any], request: SwapRequest) -> Any:
        room = self._room(task, request)
        place, left, peers = room.place[task.rank], self._agenda.now, request.peers
        count(self._traffic[task.rank], place, request)
        if not self._instant:  # from the next neighbour on, as in real processes, lest all begin with the same one
            peers = tuple(sorted(peers, key=lambda peer: (peer - place) % len(room.ranks)))
        for peer in peers:
            sent = self._carry(task.rank, room.ranks[peer], request.x.clone(), self._swapped, room, place, peer)
            left = max(left, sent)
        trade = room.trade(task, request, left)
        if not trade.missing and left <= self._agenda.now:
            return answers.swap(request, trade.arrived)
        if not trade.missing:
            self._complete(trade)
        return WAITS

    def _swapped(self, x: Tensor, room: Room, source: int, to: int) -> None:
        trade = room.deposit(source, to, x)
        if trade is not None:
            self._complete(trade)

    def _complete(self, trade: Trade) -> None:
        """A swap has received all; it is done when it has also sent all."""
        arrived = answers.swap(trade.request, trade.arrived)
        self._agenda.at(trade.left, self._agenda.wake, trade.task, arrived)

    def _send(self, task: Task[Any], request: SendRequest) -> Any:
        self._mail(task, request, task)
        return WAITS

    def _post(self, task: Task[Any], request: PostRequest) -> None:
        self._mail(task, request, None)

    def _mail(self, task: Task[Any], request: SendRequest | PostRequest, sender: Task[Any] | None) -> None:
        room = self._room(task, request)
        place, to = room.place[task.rank], request.to
        count(self._traffic[task.rank], place, request)
        self._carry(task.rank, room.ranks[to], request.x.clone(), self._arrive, room, place, to, sender)

    def _arrive(self, x: Tensor, room: Room, source: int, to: int, sender: Task[Any] | None) -> None:
        box = room.mailbox(to)
        receiver = box.receiver(source)
        if receiver is None:
            box.messages.append(Message(source, x, sender))
            return
        self._agenda.wake(receiver, (source, x))
        if sender is not None:
            self._agenda.wake(sender)

    def _recv(self, task: Task[Any], request: RecvRequest) -> Any:
        room = self._room(task, request)
        box = room.mailbox(room.place[task.rank])
        message = box.take(request)
        if message is None:
            box.waiting.append((task, request.source))
            return WAITS
        if message.sender is not None:
            self._agenda.wake(message.sender)
        return message.source, message.x

    def _carry(self, source: int, to: int, x: Tensor, arrive: Callable[..., None], *args: Any) -> float:
        """Bring `x` from rank to rank, then call `arrive(x, *args)`; returns when it has left its sender."""
        interfaces, agenda = self._interfaces, self._agenda
        if self._instant or interfaces.host[source] == interfaces.host[to]:
            arrive(x, *args)
            return agenda.now
        nbytes = x.numel() * x.element_size()
        reaches, left = interfaces.depart(source, to, nbytes, agenda.now)
        agenda.at(reaches, self._reach, source, to, nbytes, arrive, x, *args)
        return left

    def _reach(self, source: int, to: int, nbytes: int, arrive: Callable[..., None], *args: Any) -> None:
        self._agenda.at(self._interfaces.land(to, nbytes, self._agenda.now, source), arrive, *args)


def _bytes_away(places: Sequence[int], place: int, request: Request[Any]) -> int:
    """What a rank sends to other places; `places` are the hosts or the racks of the ranks."""
    here = places[place]
    if isinstance(request, AllToAllRequest):
        return sum(x.nbytes for x, other in zip(request.xs, places, strict=True) if other != here)
    assert isinstance(request, AllGatherRequest)
    return request.x.nbytes * (len(places) - places.count(here))


def _bytes_in(places: Sequence[int], requests: Sequence[Request[Any]]) -> list[int]:
    """What each rank receives from other places."""
    if isinstance(requests[0], AllToAllRequest):
        sizes = [[x.nbytes for x in r.xs] for r in requests if isinstance(r, AllToAllRequest)]
        return [
            sum(row[at] for row, other in zip(sizes, places, strict=True) if other != here)
            for at, here in enumerate(places)
        ]
    own = dict.fromkeys(places, 0)
    for here, r in zip(places, requests, strict=True):
        assert isinstance(r, AllGatherRequest)
        own[here] += r.x.nbytes
    total = sum(own.values())
    return [total - own[here] for here in places]

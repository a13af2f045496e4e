"""Liveness: which ranks can be reached, and what they are doing, asked of them directly.

A connection breaks when the process at its other end dies, but says nothing when a machine loses its network, and
nothing about a rank that is alive and late. So every rank listens on a port of its own, and answers whoever knows its
token. Ranks ask each other while they are kept waiting, and not otherwise. The store that they met at is not needed,
so that both halves of a network that falls apart know whom they have lost.

The kernel of a machine accepts connections for a process that is stopped, too. A rank whose port accepts a connection
and that does not answer is stopped or hangs; it may go on, and is waited for until the time-out. A rank whose port
cannot be reached for `LOST` seconds, and could be before, is lost.
"""

from __future__ import annotations

import errno
import hmac
import json
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

from thinwire.comm.address import own_address
from thinwire.engine.ending import start_thread

LOST = 20.0  # seconds without a connection, after which a rank is lost
ALSO = 0.5 * LOST  # after which others are, if one is: a network falls apart in one moment
AGAIN = 1.0  # seconds between questions to a rank
CONNECT = 4.0  # seconds that a connection may take
SILENT = 3.0  # seconds without an answer over a connection, after which a process is taken to be stopped
TOKEN = 16  # bytes
LONGEST = 4096  # bytes of an answer
BUSY = 128  # connections of others at a time
RESOLVE = 3.0  # seconds that ranks wait for the name server when they attach


class Place(NamedTuple):
    """Where a rank listens, and what it wants to be told."""

    family: int
    host: str
    port: int
    token: str


@final
@dataclass(eq=False)
class Peer:
    """What is known of another rank. The times are those of `time.monotonic`, or None if it is not so."""

    place: Place
    met: bool = False  # whether it has ever answered: a firewall may let nothing pass
    status: Mapping[str, Any] = field(default_factory=dict)  # its last answer
    answered: float = 0.0  # when that was asked for
    silent: float | None = None  # since when its machine has accepted a connection, and it has not answered
    refused: float | None = None  # since when its machine has answered that nobody listens
    unreachable: float | None = None  # since when its machine has not been reached

    def hears(self, status: Mapping[str, Any], asked: float) -> None:
        """Note an answer."""
        self.met, self.status, self.answered = True, status, asked
        self.silent = self.refused = self.unreachable = None


@final
class Liveness:
    """The port of a rank, and its questions to the others; all of it runs in one thread.

    `status` and `lose` are called in that thread. The first returns what the others are to know, which JSON can hold;
    the second is told which ranks are lost, and for how many seconds they have not been reached.
    """

    def __init__(self, status: Callable[[], Mapping[str, Any]], lose: Callable[[dict[int, float]], None]) -> None:
        self.peers: dict[int, Peer] = {}  # by rank
        self._status, self._lose = status, lose
        self._told: set[int] = set()  # ranks that were lost when that was last said
        self._place: Future[Place | None] = Future()
        self._token = secrets.token_hex(TOKEN)
        self._selector = selectors.DefaultSelector()
        self._alarm, self._woken = socket.socketpair()
        self._asking, self._counting = 0, threading.Lock()  # how many want to know
        self._once: set[int] = set()  # ranks that are asked once, whether somebody wants to know or not
        self._next: dict[int, float] = {}  # when a rank is asked again
        self._calls: dict[int, _Call] = {}  # questions under way, by rank
        self._visits: dict[socket.socket, float] = {}  # questions of others, and until when they may take
        self._closed = False
        self._thread = start_thread(self._serve, "thinwire-liveness")

    def place(self, seconds: float = RESOLVE) -> str:
        """Where the others can ask this rank, for `introduce`, as JSON; null if it is not known in time."""
        try:
            return json.dumps(self._place.result(seconds))
        except NotYet:
            return json.dumps(None)

    def introduce(self, places: Mapping[int, str]) -> None:
        """Say where the others are. Each is asked once, so that one that cannot be asked is known."""
        known = {rank: json.loads(place) for rank, place in places.items()}
        self.peers = {rank: Peer(Place(*place)) for rank, place in known.items() if place}
        self._once |= set(self.peers)
        self._wake()

    def ask(self, *, on: bool) -> None:
        """Ask all others again and again, until this has been called with `on=False` as often."""
        with self._counting:
            self._asking += 1 if on else -1
        self._wake()

    def away(self) -> dict[int, float]:
        """The ranks that cannot be reached, and for how many seconds."""
        now, peers = time.monotonic(), self.peers
        return {r: now - peer.unreachable for r, peer in peers.items() if peer.met and peer.unreachable is not None}

    def close(self) -> None:
        """End the thread, which closes the port."""
        self._closed = True
        self._wake()

    def join(self, seconds: float) -> None:
        """Wait for the thread to end."""
        self._thread.join(seconds)

    def _wake(self) -> None:
        with suppress(OSError):
            self._alarm.send(b"!")

    def _serve(self) -> None:
        """The life of the thread."""
        listener = self._listen()
        self._selector.register(self._woken, selectors.EVENT_READ, self._rise)
        try:
            while not self._closed:
                for key, _ in self._selector.select(self._pause()):
                    key.data(key.fileobj)
                self._expire()
                self._begin_calls()
                self._look_for_lost()
        finally:
            for key in list(self._selector.get_map().values()):
                assert isinstance(key.fileobj, socket.socket)
                key.fileobj.close()
            if listener is not None:
                listener.close()
            self._selector.close()
            self._alarm.close()

    def _listen(self) -> socket.socket | None:
        """Open the port. A rank that has no address can still ask others."""
        listener = None
        try:
            family, host = own_address()
            listener = socket.socket(family, socket.SOCK_STREAM)
            listener.bind((host, 0))
            listener.listen(socket.SOMAXCONN)
        except OSError:
            if listener is not None:
                listener.close()
            self._place.set_result(None)
            return None
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._place.set_result(Place(int(family), host, listener.getsockname()[1], self._token))
        return listener

    def _rise(self, woken: socket.socket) -> None:
        woken.recv(4096)

    def _pause(self) -> float | None:
        """How long nothing is to be done unless something arrives."""
        ends = [call.until for call in self._calls.values()] + list(self._visits.values())
        if self._asking > 0 or self._once:
            ends += [self._next.get(rank, 0.0) for rank in self.peers if rank not in self._calls]
        return max(0.0, min(ends) - time.monotonic()) if ends else None

    # Questions of others.

    def _accept(self, listener: socket.socket) -> None:
        try:
            visit, _ = listener.accept()
        except OSError:
            return  # it has gone again, or this process has no descriptor left for it
        visit.setblocking(False)
        if len(self._visits) >= BUSY:
            visit.close()
            return
        self._visits[visit] = time.monotonic() + CONNECT
        self._selector.register(visit, selectors.EVENT_READ, self._answer)

    def _answer(self, visit: socket.socket) -> None:
        """Answer a question: the token, which comes in one packet. A stranger is not answered."""
        with suppress(OSError):
            if hmac.compare_digest(visit.recv(2 * TOKEN), self._token.encode()):
                visit.send(json.dumps(self._status()).encode()[:LONGEST])
        self._leave(visit)

    def _leave(self, visit: socket.socket) -> None:
        del self._visits[visit]
        self._selector.unregister(visit)
        visit.close()

    # Questions to others.

    def _begin_calls(self) -> None:
        """Ask the ranks whose turn it is."""
        now = time.monotonic()
        ranks = self.peers if self._asking > 0 else self._once
        for rank in [rank for rank in ranks if rank not in self._calls and self._next.get(rank, 0.0) <= now]:
            self._once.discard(rank)
            self._next[rank] = now + AGAIN
            call = _Call(rank, self.peers[rank].place, now)
            problem = call.dial()
            if problem:
                call.line.close()
                self._failed(call, problem)
                continue
            self._calls[rank] = call
            self._selector.register(call.line, selectors.EVENT_WRITE, call.connected)
            call.ready = self._connected

    def _connected(self, call: _Call) -> None:
        """A connection has been made, or has failed."""
        problem = call.line.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if not problem:
            try:
                call.line.send(call.place.token.encode())
            except OSError as error:
                problem = error.errno or errno.EPIPE
        if problem:
            self._end(call)
            self._failed(call, problem)
            return
        peer = self.peers[call.rank]
        peer.refused = peer.unreachable = None  # its machine is there, whether the process answers or not
        call.answers, call.until = True, call.begun + SILENT
        self._selector.modify(call.line, selectors.EVENT_READ, call.connected)
        call.ready = self._heard

    def _heard(self, call: _Call) -> None:
        """An answer has arrived, or the connection has ended."""
        try:
            data = call.line.recv(LONGEST)
        except OSError as error:
            self._end(call)
            self._failed(call, error.errno or errno.EPIPE)
            return
        call.data += data
        if data and len(call.data) <= LONGEST:
            return
        self._end(call)
        with suppress(ValueError):
            status = json.loads(call.data)
            if isinstance(status, dict):
                self.peers[call.rank].hears(status, call.begun)

    def _expire(self) -> None:
        """End what has taken too long, or is no longer wanted."""
        now = time.monotonic()
        for visit in [visit for visit, until in self._visits.items() if until <= now]:
            self._leave(visit)
        for call in list(self._calls.values()):
            peer = self.peers[call.rank]
            if call.answers and call.until <= now:
                # Its machine is there, and breaks the connection if it is not: that is what `dial` asks for.
                peer.silent = call.begun if peer.silent is None else peer.silent
                call.until = now + AGAIN
                if self._asking <= 0:
                    self._end(call)
            elif call.until <= now:
                self._end(call)
                self._failed(call, errno.ETIMEDOUT)

    def _look_for_lost(self) -> None:
        away = self.away()
        if not away or max(away.values()) < LOST or self._told.issuperset(away):
            return
        lost = {rank: seconds for rank, seconds in away.items() if seconds >= ALSO}
        self._told |= set(lost)
        self._lose(lost)

    def _end(self, call: _Call) -> None:
        del self._calls[call.rank]
        self._selector.unregister(call.line)
        call.line.close()

    def _failed(self, call: _Call, problem: int) -> None:
        """Note that a rank has not been reached."""
        peer = self.peers[call.rank]
        if problem in (errno.ECONNREFUSED, errno.ECONNRESET, errno.EPIPE):
            peer.refused, peer.silent, peer.unreachable = peer.refused or call.begun, None, None
            return
        since = time.monotonic() - CONNECT if call.answers else call.begun  # the kernel has tried for as long
        peer.refused, peer.silent, peer.unreachable = None, None, peer.unreachable or since


@final
class _Call:
    """A question to one rank."""

    def __init__(self, rank: int, place: Place, now: float) -> None:
        self.rank, self.place, self.begun, self.until = rank, place, now, now + CONNECT
        self.line = socket.socket(place.family, socket.SOCK_STREAM)
        self.data = b""
        self.answers = False  # whether it is connected, and an answer is waited for
        self.ready: Callable[[_Call], None] = lambda call: None

    def connected(self, line: socket.socket) -> None:
        """Something has happened on the line."""
        self.ready(self)

    def dial(self) -> int:
        """Begin to connect; returns the number of an error, or 0."""
        self.line.setblocking(False)
        tcp = socket.IPPROTO_TCP
        for level, option, value in (
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
            (tcp, socket.TCP_KEEPIDLE, 1),
            (tcp, socket.TCP_KEEPINTVL, 1),
            (tcp, socket.TCP_KEEPCNT, int(CONNECT)),
            (tcp, socket.TCP_USER_TIMEOUT, int(1e3 * CONNECT)),
        ):
            self.line.setsockopt(level, option, value)
        problem = self.line.connect_ex((self.place.host, self.place.port))
        return 0 if problem == errno.EINPROGRESS else problem

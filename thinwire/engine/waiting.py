"""Waiting: whom this rank waits for, and what they are doing, as the log and errors say it.

Ranks launch the same pieces of work in the same order. So of those whom a rank asks while it waits for a piece, the
ones that have launched fewer, and do not wait themselves, keep all others waiting. Each says where its program is:
the line of the user's own code that it is in, and the function that this line has called.
"""

from __future__ import annotations

import logging
import os
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from types import FrameType

    from thinwire.engine.liveness import Liveness, Peer

log = logging.getLogger("thinwire")
ASK = 2.0  # seconds of waiting, after which the others are asked
FIRST = 5.0  # after which the log says for whom, and again after twice as long,
OFTEN = 60.0  # but at least so often
FRESH = 2.5  # seconds for which an answer counts
AT_ONCE = 2.0  # seconds in which the others must have answered when an exchange has timed out
SHOWN = 4  # ranks of which it is said what they do
LIBRARIES = (os.path.dirname(os.path.dirname(__file__)) + os.sep, sysconfig.get_path("stdlib") + os.sep, "<frozen")
PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


@final
class Whereabouts:
    """What this rank tells others that wait for it: how much it has launched, and where its program is.

    The program is that of the thread which makes this object. `rounds` counts those that are complete.
    """

    def __init__(self, launched: Callable[[], int]) -> None:
        self._thread = threading.get_ident()
        self._launched = launched
        self.rounds: Callable[[], int] = int
        self.waits = 0  # in how many places it waits for a piece of work

    def status(self) -> dict[str, Any]:
        """As JSON holds it."""
        frame = sys._current_frames().get(self._thread)
        place = "" if frame is None else place_of(frame)
        return {"work": self._launched(), "waits": self.waits > 0, "rounds": self.rounds(), "at": place}


def place_of(frame: FrameType) -> str:
    """The line of the user's own code, and the function of a library that it has called, if it has."""
    inner = frame.f_code
    outer: FrameType | None = frame
    while outer is not None and _in_library(outer.f_code.co_filename):
        outer = outer.f_back
    if outer is None:
        return f"in {inner.co_name}"
    own = f"{os.path.basename(outer.f_code.co_filename)}:{outer.f_lineno}, in {outer.f_code.co_name}"
    return f"at {own}" if outer is frame else f"in {inner.co_name}, called at {own}"


def _in_library(file: str) -> bool:
    return file.startswith(LIBRARIES) or any(package in file for package in PACKAGES)


@final
class Waiting:
    """What a rank finds out about the others while it waits. `name` is the number by which users know a rank."""

    def __init__(
        self,
        rank: int,
        where: Whereabouts,
        liveness: Liveness,
        name: Callable[[int], int],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rank, self._where, self._liveness, self._name, self._now = rank, where, liveness, name, now

    @contextmanager
    def piece(self, work: int) -> Iterator[Callable[[], None]]:
        """Within the block this rank waits for a piece of work; what it yields is called now and then."""
        begun, due, asks = self._now(), FIRST, False

        def look() -> None:
            nonlocal due, asks
            waited = self._now() - begun
            if not asks and waited >= ASK:
                asks = True
                self._liveness.ask(on=True)
            if waited >= due:
                due = waited + min(waited, OFTEN)
                self._log(work, waited)

        self._where.waits += 1
        try:
            yield look
        finally:
            self._where.waits -= 1
            if asks:
                self._liveness.ask(on=False)

    def find_late(self, work: int) -> list[int]:
        """Those whom `late` names, once all have been asked."""
        until = self._now() + AT_ONCE
        self._liveness.ask(on=True)
        while self._now() < until and not all(map(self._known, self._liveness.peers.values())):
            time.sleep(0.05)
        self._liveness.ask(on=False)
        return self.late(work)

    def late(self, work: int) -> list[int]:
        """The ranks that are alive, have not launched this piece of work, and do not themselves wait for another."""
        behind = self._behind(work)
        first = min(map(_launched, behind.values()), default=0)
        return _busy(behind) or [rank for rank, status in behind.items() if _launched(status) == first]

    def stopped(self) -> list[int]:
        """The ranks that have answered and do so no more, though their process is there."""
        return [rank for rank, peer in self._liveness.peers.items() if peer.met and peer.silent is not None]

    def describe(self, ranks: Sequence[int]) -> str:
        """What each of these ranks is doing, as far as is known."""
        peers = self._liveness.peers
        parts = [(rank, _doing(peers[rank])) for rank in ranks[:SHOWN] if rank in peers]
        if len(ranks) == 1 and parts:
            return f"it {parts[0][1]}"
        return "; ".join(f"rank {self._name(rank)} {doing}" for rank, doing in parts)

    def _log(self, work: int, waited: float) -> None:
        """Say for whom the ranks wait; the first of them does."""
        peers = self._liveness.peers
        absent = [rank for rank, peer in peers.items() if _absent(peer)]
        ranks = sorted({*absent, *_busy(self._behind(work))})
        if not ranks and all(map(self._known, peers.values())):
            ranks = self.late(work)
        others = [rank for rank, peer in peers.items() if self._fresh(peer) and rank not in ranks]
        if ranks and self._rank < min(others, default=self._rank + 1):
            text = "still waiting for %s, %.0f s: %s"
            log.warning(text, named([self._name(rank) for rank in ranks]), waited, self.describe(ranks))

    def _behind(self, work: int) -> dict[int, Mapping[str, Any]]:
        """The answers of those that are alive and have not launched this piece of work."""
        peers = {rank: peer.status for rank, peer in self._liveness.peers.items() if self._fresh(peer)}
        return {rank: status for rank, status in peers.items() if _launched(status) <= work}

    def _known(self, peer: Peer) -> bool:
        return not peer.met or self._fresh(peer) or _absent(peer)

    def _fresh(self, peer: Peer) -> bool:
        return peer.met and self._now() - peer.answered < FRESH


def named(ranks: Sequence[int]) -> str:
    """Several ranks in a sentence.

    >>> named([2]), named([0, 3])
    ('rank 2', 'ranks 0, 3')
    """
    return f"rank {ranks[0]}" if len(ranks) == 1 else "ranks " + ", ".join(map(str, ranks))


def _busy(behind: Mapping[int, Mapping[str, Any]]) -> list[int]:
    return [rank for rank, status in behind.items() if not status.get("waits")]


def _launched(status: Mapping[str, Any]) -> int:
    launched = status.get("work")
    return launched if isinstance(launched, int) else sys.maxsize


def _absent(peer: Peer) -> bool:
    """Whether it has answered, and does so no more."""
    return peer.met and (peer.silent, peer.refused, peer.unreachable) != (None, None, None)


def _doing(peer: Peer) -> str:
    if peer.unreachable is not None:
        return "cannot be reached: its machine does not answer"
    if peer.refused is not None:
        return "has ended: its machine answers, and nothing listens there"
    if peer.silent is not None:
        return "does not answer, though its machine does: it is stopped, swapped out or in a debugger"
    status: Mapping[str, Any] = peer.status
    where = str(status.get("at") or "in no Python code")
    what = "itself waits for others" if status.get("waits") else "was last seen"
    return f"{what} {where}, after {status.get('rounds')} rounds"

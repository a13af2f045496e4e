"""Meetings: what ranks agree on through the store, before they have connections of their own.

While ranks meet, each writes a beat twice a second. A rank that has come and whose beat stops for `DEAD` seconds has
died or hangs, and every rank that waits for it says so. The others wait until the time-out for a rank that has not
come yet. If that rank dies before it comes, its connections break, and a barrier on the user's own group (with gloo)
notices it.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar, final

import torch
import torch.distributed as dist

from thinwire.core.errors import PeerError
from thinwire.engine.watch import StoreError, Watch

T = TypeVar("T")
DEAD = 20.0  # seconds without a beat
SOON = 0.01  # seconds between looks in the first second
LATER = 0.25  # and after it


@final
class Meeting:
    """Ranks that have come together to attach."""

    def __init__(self, watch: Watch, timeout: float, parent: dist.ProcessGroup) -> None:
        self._watch = watch
        self._timeout = timeout
        self._said = 0
        gloo = dist.get_backend(parent) == "gloo"
        self._barrier = _start(lambda: dist.barrier(parent)) if gloo else None
        self._beats: dict[int, tuple[str, float]] = {}  # by rank: the last beat, and when it was first seen

    def gather(self, mine: Any) -> list[Any]:
        """Say `mine`; returns what every rank says, by rank."""
        watch = self._watch
        keys = {rank: f"say/{self._said}/{rank}" for rank in range(watch.size)}
        self._said += 1
        watch.write(keys[watch.rank], json.dumps(mine))
        begun = time.monotonic()
        while missing := watch.missing(keys):
            waited = time.monotonic() - begun
            if waited > self._timeout:
                who = ", ".join(map(str, missing))
                raise PeerError(
                    f"of {watch.size} ranks, these did not come within {waited:.0f} s: {who}", tuple(missing)
                )
            self._check_alive()
            time.sleep(SOON if waited < 1 else LATER)
        if self._barrier is not None:
            self._until(self._barrier)
            self._barrier = None
        return [json.loads(watch.read(key)) for key in keys.values()]

    def together(self, work: Callable[[], T]) -> T:
        """Do work that waits for the other ranks; PeerError if one of them dies in the meantime."""
        return self._until(_start(work))

    def _until(self, future: Future[T]) -> T:
        while not wait([future], LATER).done:
            self._check_alive()
        try:
            return future.result()
        except Exception as error:
            raise self._watch.explain(error) from error

    def _check_alive(self) -> None:
        """Raise PeerError for a rank that failed, or that came and then fell silent."""
        watch, now = self._watch, time.monotonic()
        if watch.alarmed.is_set():
            raise watch.verdict()
        broken = self._barrier.exception() if self._barrier is not None and self._barrier.done() else None
        if isinstance(broken, Exception):
            raise watch.explain(broken) from broken
        watch.look_out(watch.launched())
        try:
            beats = {rank: watch.read(f"beat/{rank}") for rank in range(watch.size)}
        except StoreError as silent:
            raise PeerError(f"{silent}; the process that hosts it has ended or hangs") from silent
        for rank, beat in beats.items():
            if not beat or rank not in self._beats or self._beats[rank][0] != beat:
                self._beats[rank] = beat, now
            elif now - self._beats[rank][1] > DEAD:
                raise PeerError(f"rank {rank} of {watch.size} has stopped answering while ranks meet", (rank,))


def _start(work: Callable[[], T]) -> Future[T]:
    """Do something in a thread."""
    future: Future[T] = Future()
    device = torch.cuda.current_device() if torch.cuda.is_available() and torch.cuda.is_initialized() else None

    def run() -> None:
        try:
            if device is not None:
                torch.cuda.set_device(device)  # each thread has its own
            future.set_result(work())
        except BaseException as error:  # the caller raises it
            future.set_exception(error)

    threading.Thread(target=run, name="thinwire-meeting", daemon=True).start()
    return future

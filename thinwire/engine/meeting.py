"""Meetings: what ranks agree on through the store, before they have connections of their own.

While ranks meet, each writes a beat twice a second. A rank that has come and whose beat stops for `DEAD` seconds has
died or hangs, and every rank that waits for it says so. The others wait until the time-out for a rank that has not
come yet. If that rank dies before it comes, its connections break, and a barrier on the user's own group (with gloo)
notices it.

The store may be slow: its host may be busy, or wait for a name server. Its answers are waited for until the time-out,
too, and no rank's beat is missed meanwhile. If its host dies, every connection to it breaks at once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar, final

import torch.distributed as dist

from thinwire.core.errors import PeerError
from thinwire.engine.ending import start_thread
from thinwire.engine.store import FRESH, StoreError
from thinwire.engine.watch import PATIENCE, STORE, Watch, answer

T = TypeVar("T")
DEAD = 20.0  # seconds without a beat
SOON = 0.01  # seconds between looks in the first second
LATER = 0.25  # and after it
AWAKE = 1.0  # seconds between looks, of which no more count: this rank or the store has slept


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
        self._awake, self._looked = 0.0, time.monotonic()  # seconds in which beats could be seen, and until when

    def gather(self, mine: Any) -> list[Any]:
        """Say `mine`; returns what every rank says, by rank."""
        watch = self._watch
        keys = {rank: f"say/{self._said}/{rank}" for rank in range(watch.size)}
        own, word = keys[watch.rank], json.dumps(mine)
        self._said += 1
        if self._ask(lambda store: bool(store.check([own]))):
            raise PeerError(
                f"{STORE} has kept keys of an earlier attempt of this job, which tell of ranks that are gone; "
                f"write {FRESH}"
            )
        self._ask(lambda store: store.set(own, word))
        begun = time.monotonic()
        while missing := self._ask(lambda store: [rank for rank, key in keys.items() if not store.check([key])]):
            waited = time.monotonic() - begun
            if waited > self._timeout:
                absent = tuple(watch.names(rank) for rank in missing)
                who = ", ".join(map(str, absent))
                error = PeerError(f"of {watch.size} ranks, these did not come within {waited:.0f} s: {who}", absent)
                raise watch.explain(error)  # or the others would only see that this rank leaves
            self._check_alive()
            time.sleep(SOON if waited < 1 else LATER)
        if self._barrier is not None:
            self._until(self._barrier)
            self._barrier = None
        said = self._ask(lambda store: [bytes(store.get(key)) for key in keys.values()])
        return [json.loads(one) for one in said]

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

    def _ask(self, call: Callable[[dist.Store], T]) -> T:
        """The answer of the store, for which this rank waits as long as for other ranks."""
        future, limit = self._watch.submit(call), max(self._timeout, PATIENCE)
        until = time.monotonic() + limit
        while not wait([future], LATER).done:
            self._check_connections()
            if time.monotonic() > until:
                raise self._watch.without_store(StoreError(f"{STORE} has not answered for {limit:g} s"))
        try:
            return answer(future)
        except StoreError as gone:
            raise self._watch.without_store(gone) from gone

    def _check_connections(self) -> None:
        """Raise PeerError if a rank has failed, or if the connection to one broke."""
        if self._watch.alarmed.is_set():
            raise self._watch.verdict()
        broken = self._barrier.exception() if self._barrier is not None and self._barrier.done() else None
        if isinstance(broken, Exception):
            raise self._watch.explain(broken) from broken

    def _check_alive(self) -> None:
        """Raise PeerError for a rank that failed, or that came and then fell silent."""
        watch = self._watch
        self._check_connections()
        watch.look_out(watch.launched())
        keys = [f"beat/{rank}" for rank in range(watch.size)]
        beats = self._ask(
            lambda store: [bytes(store.get(key)).decode() if store.check([key]) else "" for key in keys]
        )
        now = time.monotonic()
        self._awake += min(now - self._looked, AWAKE)
        self._looked = now
        for rank, beat in enumerate(beats):
            if not beat or rank not in self._beats or self._beats[rank][0] != beat:
                self._beats[rank] = beat, self._awake
            elif self._awake - self._beats[rank][1] > DEAD:
                raise watch.explain(watch.names.error([rank], "has stopped answering while ranks meet"))


def _start(work: Callable[[], T]) -> Future[T]:
    """Do something in a thread."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # the caller raises it
            future.set_exception(error)

    start_thread(run, "thinwire-meeting")
    return future

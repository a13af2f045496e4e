"""Watch: who is still there when something has failed, or when somebody keeps the others waiting.

A rank that fails raises an alarm in the store that the ranks met at. Every living rank has a thread that sees the
alarm within half a second and signs the roll. The error names the ranks that have not signed when the roll is read.
A rank that is killed raises no alarm, but its connections break, and the ranks that it talked to raise one. Others
lose their connections because these ranks end. So every rank that raises the alarm reports what it has seen, and all
choose the report of the one that was not broken off by another that reported, too.

A rank that is lost with its machine, or that is alive and late, is found by `engine/liveness.py`.

A rank that leaves while it stays alive (it detached early, or raised in a notebook) writes down how many pieces of
work it had launched. Ranks launch the same work in the same order, so whoever waits for a later piece waits in vain.

All calls to the store are made by the watch's own thread, so that a store whose host hangs does not hang the others.
Once ranks have met, nobody waits for an answer longer than `PATIENCE`; while they meet, `engine/meeting.py` decides.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar, final

import torch.distributed as dist

from thinwire.comm.address import break_off
from thinwire.comm.processes import EdgeError, timed_out
from thinwire.core.errors import PeerError
from thinwire.engine.ending import start_thread
from thinwire.engine.liveness import Liveness
from thinwire.engine.reports import Names, Report, error_of, first_cause, unreachable
from thinwire.engine.store import Ended, StoreError
from thinwire.engine.waiting import Waiting, Whereabouts

T = TypeVar("T")
Call = tuple["Future[Any]", Callable[[dist.Store], Any]]
Enter = Callable[[Ended], dist.Store]  # opens the place where ranks meet
LOOK = 0.5  # seconds between looks at the store
ROLL = 3.0  # seconds that living ranks have to sign
PATIENCE = 3.0  # seconds that a call to the store may take
AT_ONCE = 1.0  # seconds in which a store answers that can be reached
STORE = "the store that the ranks met at"
FOR_EVER = 1 << 62  # more work than anybody launches
MOST = 16  # reports that are read


class _Leaver(NamedTuple):
    """A rank that does not go on after so many pieces of work."""

    work: int
    rank: int
    why: str

    def error(self, names: Names) -> PeerError:
        """What those who wait for it raise."""
        return names.error([self.rank], f"does not go on: {self.why}")


@final
class Watch:
    """The alarm, the roll and the list of leavers of one attach."""

    def __init__(
        self, enter: Enter, rank: int, size: int, names: Names | None = None, *, goes_on: bool = False
    ) -> None:
        """With `goes_on`, a rank that is lost is no reason to stop."""
        self.rank = rank
        self.size = size
        self.names = names or Names(range(size), size)
        self._goes_on = goes_on
        self.cut_off = False  # from the store
        self.where = Whereabouts(lambda: self.launched())
        self.liveness: Liveness | None = None
        self.waiting: Waiting | None = None
        self._timeout = 0.0
        self._silent = False  # whether the store did not answer the last time
        self.alarmed = threading.Event()
        self.beating = True  # while ranks meet, each shows that it is alive
        self.launched: Callable[[], int] = int  # pieces of work so far
        self._error: PeerError | None = None
        self._ended = threading.Event()
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._thread = start_thread(partial(_serve, self, enter, self._ended, self._calls), "thinwire-watch")

    @property
    def over(self) -> bool:
        """Whether this rank or another has failed, so that nobody goes on."""
        return self.alarmed.is_set() or self._error is not None

    def listen(self, timeout: float) -> Liveness:
        """Let the others ask this rank what it does, and find out who is lost. `timeout` is that of exchanges."""
        self._timeout = timeout
        self.liveness = Liveness(self.where.status, self._lose)
        self.waiting = Waiting(self.rank, self.where, self.liveness, self.names)
        return self.liveness

    def waits_for(self, work: int) -> AbstractContextManager[Callable[[], None]]:
        """A block in which this rank waits for a piece of work; what it yields is called now and then."""
        return nullcontext(_nothing) if self.waiting is None else self.waiting.piece(work)

    def stop(self) -> None:
        """End the threads after the calls that are queued."""
        self._ended.set()
        self._calls.put(None)
        if self.liveness is not None:
            self.liveness.close()

    def join(self, seconds: float) -> None:
        """Wait for the threads to end."""
        self._thread.join(seconds)
        if self.liveness is not None:
            self.liveness.join(seconds)

    def ask(self, call: Callable[[dist.Store], T]) -> T:
        """The answer of the store; StoreError if none comes in time."""
        future = self.submit(call)
        if not wait([future], AT_ONCE if self._silent else PATIENCE).done:
            self._silent = True  # once is enough to wait for
            raise StoreError(f"{STORE} has not answered for {PATIENCE:g} s")
        self._silent = False
        return answer(future)

    def submit(self, call: Callable[[dist.Store], T]) -> Future[T]:
        """Ask the store, and do not wait."""
        future: Future[T] = Future()
        self._calls.put((future, call))
        return future

    def explain(self, error: Exception, work: int | None = None) -> PeerError:
        """Raise the alarm because of `error`, call the roll, and say who is missing or who failed and why.

        `work` is the number of the piece of work that failed, where it was one.
        """
        if self._error is None:
            report = self._report(error, work)
            try:
                number = self.ask(lambda store: int(store.add("alarm", 1)))
                self.write(f"cause/{number}", json.dumps(report))
                self.write(f"here/{self.rank}", "1")  # the script may end before the next look at the store
            except StoreError:
                pass  # the verdict says so
        found = self.verdict(error)
        if found is not error and found.__cause__ is None:
            found.__cause__ = error
        return found

    def verdict(self, cause: Exception | None = None) -> PeerError:
        """The error that says who did not sign, or what the others reported; it is determined once."""
        if self._error is None:
            found = cause if isinstance(cause, PeerError) else self._find(cause)
            self._error = self._error or found  # a lane's thread may have been faster
        return self._error

    def leave(self, why: str, *, failed: bool = False) -> None:
        """Tell the ranks that this one does not go on after the work that it has launched."""
        try:
            note = {"work": self.launched(), "why": why, "failed": failed}
            self.write(f"left/{self.rank}", json.dumps(note))
            self.write("leavers", "1")
        except StoreError:
            return  # nobody can be told, and nobody listens

    def look_out(self, work: int) -> None:
        """Raise PeerError if the piece of work number `work` cannot end because a rank left before it."""
        try:
            left_any, alarm = self.ask(lambda store: (store.check(["leavers"]), store.check(["alarm"])))
            if alarm or not left_any:
                return  # who leaves after an alarm leaves because of it, and `verdict` says who is missing
            left = self._left(rank for rank in range(self.size) if rank != self.rank)
        except StoreError:
            return  # whether that matters is found when an edge breaks or times out
        if left and left[0].work <= work:
            raise left[0].error(self.names)

    def ended_well(self) -> set[int]:
        """The ranks that have left, and not because something failed; none where the store does not answer."""
        try:
            notes = {rank: json.loads(self.read(f"left/{rank}") or "{}") for rank in range(self.size)}
        except StoreError:
            return set()
        return {rank for rank, note in notes.items() if note and not note.get("failed", True)}

    def write(self, key: str, value: str) -> None:
        """Set a key of the store."""
        self.ask(lambda store: store.set(key, value))

    def read(self, key: str) -> str:
        """The value of a key, empty if it is not there: a plain `get` would wait for it."""
        return self.ask(lambda store: bytes(store.get(key)).decode() if store.check([key]) else "")

    def missing(self, keys: dict[int, str]) -> list[int]:
        """The ranks whose key is not there."""
        return self.ask(lambda store: [rank for rank, key in keys.items() if not store.check([key])])

    def _find(self, cause: Exception | None) -> PeerError:
        missing, reports, left = list(range(self.size)), list[Report](), list[_Leaver]()
        try:
            self.write(f"here/{self.rank}", "1")
            until = time.monotonic() + ROLL
            while (missing or not first_cause(reports)) and time.monotonic() < until:
                missing = self.missing({rank: f"here/{rank}" for rank in missing})
                reports += self._reports(len(reports))
                time.sleep(0.05)
            left = self._left(missing)
        except StoreError as silent:
            return self.without_store(silent, cause)
        if left and len(left) == len(missing):
            return left[0].error(self.names)
        missing = [rank for rank in missing if rank not in {one.rank for one in left}]  # who left did so for a reason
        if missing:
            verb = "has" if len(missing) == 1 else "have"
            text = f"{verb} stopped answering; this exchange cannot be finished"
            return self.names.error(missing, text + ("" if cause is None else f" ({cause})"))
        return error_of(first_cause(reports) or next(iter(reports), None), self.rank, self.names)

    def _reports(self, known: int) -> list[Report]:
        """What ranks have reported, after the first ones: whoever raises the alarm writes it right after."""
        count = self.ask(lambda store: int(store.add("alarm", 0)))
        texts = [self.read(f"cause/{number}") for number in range(known + 1, min(count, MOST) + 1)]
        return [Report(*json.loads(text)) for text in itertools.takewhile(bool, texts)]

    def _report(self, error: Exception, work: int | None) -> Report:
        """What this rank has seen."""
        text = f"{type(error).__name__}: {error}"
        if not timed_out(error):
            return Report(self.rank, text, isinstance(error, EdgeError) or "gloo/" in text)
        late, doing = [], ""
        if work is not None and self.waiting is not None:
            late = self.waiting.find_late(work)
            doing = self.waiting.describe(late)
        return Report(self.rank, text, False, True, tuple(late), doing, self._timeout)

    def _lose(self, lost: dict[int, float]) -> None:
        """Ranks cannot be reached any more. Called in the thread of `liveness`, where nobody waits for the store."""
        assert self.liveness is not None
        alarm: Future[Any] = Future()
        if not self._goes_on and self._error is None:
            self._error = unreachable(self.names, lost)
            self.alarmed.set()
            self._calls.put((alarm, lambda store: store.add("alarm", 1)))  # for those who ask nobody at the moment
        else:
            self._calls.put((alarm, lambda store: store.check(["alarm"])))
        self.cut_off = not wait([alarm], AT_ONCE).done
        break_off({self.liveness.peers[rank].place.host for rank in lost})

    def _left(self, ranks: Iterable[int]) -> list[_Leaver]:
        """Which of these ranks have left, the first to do so first: others may have left because of it."""
        notes = {rank: json.loads(self.read(f"left/{rank}") or "{}") for rank in ranks}
        left = [_Leaver(note["work"], rank, note["why"]) for rank, note in notes.items() if note]
        return sorted(one for one in left if one.work < FOR_EVER)

    def without_store(self, silent: StoreError, cause: Exception | None = None) -> PeerError:
        """The verdict when nobody can sign: this rank knows only the other end of the edge that broke."""
        away = {} if self.liveness is None else self.liveness.away()
        if away:
            return unreachable(self.names, away)
        stopped = [] if self.waiting is None else self.waiting.stopped()
        if stopped and self.waiting is not None:
            verb = "has" if len(stopped) == 1 else "have"
            return self.names.error(stopped, f"{verb} stopped answering: {self.waiting.describe(stopped)}; {silent}")
        peers = cause.peers if isinstance(cause, EdgeError) else ()
        if peers:
            text = f"rank {peers[0]} of {self.names.world} has stopped answering"
            return PeerError(f"{text} ({cause}); {silent}", peers)
        return PeerError(f"{silent}; the process that hosts it (rank 0, unless a launcher does) has ended or hangs")


def answer(future: Future[T]) -> T:
    """What the store has answered; StoreError where it cannot any more."""
    try:
        return future.result()
    except RuntimeError as error:
        raise StoreError(f"{STORE} is gone ({error})") from error


def _nothing() -> None:
    """Nobody is asked."""


def _serve(watch: Watch, enter: Enter, ended: threading.Event, calls: SimpleQueue[Call | None]) -> None:
    """The life of the thread: make the calls, and look around twice a second."""
    try:
        store = enter(ended.is_set)
    except Exception as error:  # whoever asks raises it
        while (call := calls.get()) is not None:
            call[0].set_exception(error)
        return
    looked, beats, notes = 0.0, itertools.count(), _Notebook(watch)
    while True:
        try:
            call = calls.get(timeout=LOOK)
            if call is None:
                return
            if watch.cut_off:
                call[0].set_exception(RuntimeError("this rank is cut off from it"))
            else:
                _make(call, store)
            del call
        except Empty:
            pass
        if time.monotonic() - looked < LOOK or watch.cut_off:
            continue
        looked = time.monotonic()
        try:
            if watch.beating:
                store.set(f"beat/{watch.rank}", str(next(beats)))
            notes.look(store)
            if not watch.alarmed.is_set() and store.check(["alarm"]):
                store.set(f"here/{watch.rank}", "1")
                watch.alarmed.set()
        except RuntimeError:
            continue  # the store's host is gone: an edge to it breaks, or nobody needs it any more


def _make(call: Call, store: dist.Store) -> None:
    future, work = call
    try:
        future.set_result(work(store))
    except Exception as error:  # whoever asked raises it
        future.set_exception(error)


@final
class _Notebook:
    """Notices an exception at the prompt of a notebook or an interpreter: the process lives on but launches nothing.

    Python keeps the last exception that nobody caught in `sys.last_value`.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._seen = getattr(sys, "last_value", None)
        self._left: int | None = None  # the work launched when this rank was said to have left

    def look(self, store: dist.Store) -> None:
        """Say that this rank has left when it raises, and that it is back when it launches work again."""
        raised, launched = getattr(sys, "last_value", None), self._watch.launched()
        if raised is not self._seen:
            self._seen, self._left = raised, launched
            why = f"it raised {type(raised).__name__}: {raised}"
            store.set(f"left/{self._watch.rank}", json.dumps({"work": launched, "why": why}))
            store.set("leavers", "1")
        elif self._left is not None and launched > self._left:
            self._left = None
            store.set(f"left/{self._watch.rank}", json.dumps({"work": FOR_EVER, "why": ""}))

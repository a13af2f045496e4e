"""Watch: who is still there when something has failed.

A rank that fails raises an alarm in the store that the ranks met at. Every living rank has a thread that sees the
alarm within half a second and signs the roll. Whoever has not signed when the roll is read is named in the error.
A rank that is killed raises no alarm: its connections break, and the ranks it talked to do.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, final

from thinwire.core.errors import PeerError

if TYPE_CHECKING:
    from torch.distributed import Store

LOOK = 0.5  # seconds between looks at the store
ROLL = 3.0  # seconds in which the living sign


@final
class Watch:
    """The alarm and the roll of one attach."""

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._lock = threading.Lock()  # one client, several threads
        self._stop = threading.Event()
        self._error: PeerError | None = None
        self.alarmed = threading.Event()
        threading.Thread(target=self._look, name="thinwire-watch", daemon=True).start()

    def stop(self) -> None:
        """No more looks."""
        self._stop.set()

    def explain(self, error: Exception) -> PeerError:
        """Raise the alarm because of `error`, call the roll, and say who is missing or who failed and why."""
        if self._first():
            self._write("cause", f"rank {self._rank}: {type(error).__name__}: {error}")
        found = self.verdict(error)
        found.__cause__ = error
        return found

    def verdict(self, cause: Exception | None = None) -> PeerError:
        """Who did not sign, or what the others reported; read once."""
        with self._lock:
            if self._error is not None:
                return self._error
        self._write(f"here/{self._rank}", "1")
        until = time.monotonic() + ROLL
        missing = list(range(self._size))
        while missing and time.monotonic() < until:
            missing = [rank for rank in missing if not self._there(f"here/{rank}")]
            time.sleep(0.05)
        text = self._text(missing, cause)
        with self._lock:
            self._error = self._error or PeerError(text, tuple(missing))
            return self._error

    def _text(self, missing: list[int], cause: Exception | None) -> str:
        if len(missing) == self._size:
            return f"the store that the ranks met at is gone, and with it the process that held it ({cause})"
        if missing:
            who = "rank " + str(missing[0]) if len(missing) == 1 else "ranks " + ", ".join(map(str, missing))
            verb = "has" if len(missing) == 1 else "have"
            return f"{who} of {self._size} {verb} stopped answering; this exchange cannot be finished ({cause})"
        return f"the exchange failed on {self._read('cause')}"

    def _look(self) -> None:
        while not self._stop.wait(LOOK):
            if self._there("alarm"):
                self._write(f"here/{self._rank}", "1")
                self.alarmed.set()
                return

    def _first(self) -> bool:
        """Raise the alarm; whether nobody else had."""
        with self._lock:
            try:
                return int(self._store.add("alarm", 1)) == 1
            except RuntimeError:
                return False

    def _write(self, key: str, value: str) -> None:
        with self._lock:
            try:
                self._store.set(key, value)
            except RuntimeError:
                return  # the store's host is gone; the roll stays empty, and that is what is told

    def _there(self, key: str) -> bool:
        with self._lock:
            try:
                return bool(self._store.check([key]))
            except RuntimeError:
                return False

    def _read(self, key: str) -> str:
        with self._lock:
            return bytes(self._store.get(key)).decode()

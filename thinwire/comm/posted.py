"""Posted: messages under way in real processes, kept until they have been received.

gloo says that a send is done only to whoever waits for it, so a thread waits while there are such messages, and no
longer. It touches nothing else.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import final

import torch.distributed as dist
from torch import Tensor


@final
class Posted:
    """What one rank has posted and nobody has taken."""

    def __init__(self) -> None:
        self._kept: deque[tuple[Sequence[dist.Work], Sequence[Tensor]]] = deque()
        self._changed = threading.Condition()
        self._waits = False  # whether the thread runs
        self._error: RuntimeError | None = None

    def keep(self, works: Sequence[dist.Work], tensors: Sequence[Tensor]) -> None:
        """Hold on to a message until its sends are done."""
        self._refuse()
        with self._changed:
            self._kept.append((works, tensors))
            if not self._waits:
                self._waits = True
                threading.Thread(target=self._wait, name="thinwire-posted", daemon=True).start()

    def finish(self) -> None:
        """Wait until everything has been received; raises what went wrong since the last time."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waits)
        self._refuse()

    def __len__(self) -> int:
        return len(self._kept)

    def _wait(self) -> None:
        while True:
            works, _ = self._kept[0]
            try:
                for work in works:
                    work.wait()
            except RuntimeError as error:
                self._error = error
            del works, _
            with self._changed:
                self._kept.popleft()
                if not self._kept:
                    self._waits = False
                    self._changed.notify_all()
                    return

    def _refuse(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise RuntimeError(f"a posted message was not received: {error}") from error

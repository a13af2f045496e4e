"""Verdicts: checks whose outcome is still being computed on a GPU, read once, when somebody has to wait anyway.

A GPU works off a queue. To look at the outcome of a check is to wait until the queue is empty, so a check made there
leaves a flag behind instead, and says what it means if it is set. The flags cross to the host without a wait; whoever
is about to use what was checked, an optimizer above all, calls `raise_if_any` first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import torch

from thinwire import kernels
from thinwire.core.desk import away
from thinwire.core.errors import PayloadError

if TYPE_CHECKING:
    from torch import Tensor


@final
class Verdicts:
    """The checks of one piece of work, which runs on one stream. On the CPU the same, without a stream.

    >>> verdicts = Verdicts()
    >>> verdicts.add(torch.tensor(False), "the first is damaged")
    >>> verdicts.add(torch.tensor(True), "the second is damaged")
    >>> verdicts.raise_if_any()
    Traceback (most recent call last):
    thinwire.core.errors.PayloadError: the second is damaged
    """

    def __init__(self) -> None:
        self._due: list[tuple[Tensor, str]] = []  # payloads that nobody has checked, and what to say of damage
        self._made: list[tuple[Tensor, str]] = []  # flags of one element, not 0 if a check has failed; their meaning
        self._sent: list[tuple[Tensor, list[str], torch.cuda.Event | None]] = []  # the same on their way to the host

    def __len__(self) -> int:
        return len(self._due) + len(self._made) + sum(len(meanings) for _, meanings, _ in self._sent)

    def add(self, wrong: Tensor, meaning: str) -> None:
        """`wrong` has one element, which is not 0 if the check has failed; `meaning` is what to say then."""
        self._made.append((wrong.detach().reshape(1), meaning))

    def check(self, payload: Tensor, meaning: str) -> None:
        """Let a payload's checksum be checked with others before the flags are sent."""
        self._due.append((payload, meaning))

    def send(self) -> None:
        """Make the checks, and let the flags cross to the host, after what is queued on the stream; nobody waits."""
        if self._due:
            payloads = [payload for payload, _ in self._due]
            found = kernels.select(payloads[0]).damaged(payloads)
            self._made += zip(found.split(1), (meaning for _, meaning in self._due), strict=True)
            self._due = []
        if not self._made:
            return
        flags = torch.cat([wrong for wrong, _ in self._made])
        seen = flags.to("cpu", non_blocking=True)  # torch takes pinned memory for it
        done = None
        if flags.is_cuda:
            done = torch.cuda.Event(blocking=True)
            done.record(torch.cuda.current_stream(flags.device))
        self._sent.append((seen, [meaning for _, meaning in self._made], done))
        self._made = []

    def raise_if_sent(self) -> None:
        """Wait for the flags that have been sent; PayloadError with the meaning of the first that is set."""
        sent, self._sent = self._sent, []
        for seen, meanings, done in sent:
            if done is not None:
                with away():
                    done.synchronize()
            for wrong, meaning in zip(seen.tolist(), meanings, strict=True):
                if wrong:
                    raise PayloadError(meaning)

    def raise_if_any(self) -> None:
        """The same for all flags."""
        self.send()
        self.raise_if_sent()

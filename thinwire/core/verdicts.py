"""Verdicts: checks whose outcome is still being computed on a GPU, read once, when somebody has to wait anyway.

A GPU works off a queue. To look at the outcome of a check is to wait until the queue is empty, so a check made there
leaves a flag behind instead, and says what it means if it is set. The flags cross to the host without a wait; whoever
is about to use what was checked, an optimizer above all, calls `raise_if_any` first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import torch

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
        self._wrong: list[Tensor] = []  # one element each, not 0 if a check has failed
        self._means: list[str] = []
        self._seen: Tensor | None = None  # the flags in host memory, once they have been sent there
        self._done: torch.cuda.Event | None = None

    def __len__(self) -> int:
        return len(self._means)

    def add(self, wrong: Tensor, meaning: str) -> None:
        """`wrong` has one element, which is not 0 if the check has failed; `meaning` is what to say then."""
        self._wrong.append(wrong.detach().reshape(1))
        self._means.append(meaning)

    def send(self) -> None:
        """Let the flags cross to the host, after what is queued on the stream; nobody waits here."""
        if not self._wrong:
            return
        flags = torch.cat(self._wrong)
        self._wrong = []
        self._seen = flags.to("cpu", non_blocking=True)  # torch takes pinned memory for it
        if flags.is_cuda:
            self._done = torch.cuda.Event(blocking=True)
            self._done.record(torch.cuda.current_stream(flags.device))

    def raise_if_any(self) -> None:
        """Wait for the flags, and raise PayloadError with the meaning of the first that is set."""
        self.send()
        if self._done is not None:
            self._done.synchronize()
        if self._seen is not None:
            for wrong, meaning in zip(self._seen.tolist(), self._means, strict=True):
                if wrong:
                    raise PayloadError(meaning)
        self._seen, self._done, self._means = None, None, []

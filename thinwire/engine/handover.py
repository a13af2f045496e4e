"""Handover: a vector goes from the stream that filled it to the thread that exchanges it, and back.

On the CPU there is nothing to do. On a GPU work is queued: the slot's stream waits for what filled the vector, and
the stream that reads the result waits for the slot's. The host may drop a tensor while a stream that did not allocate
it has work on it queued, so the allocator is told about every tensor that is used on another stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from threading import get_ident
from typing import final

import torch

from thinwire.core.desk import NOTHING, at_desk


@final
class Handover:
    """Made by the thread that filled the vector; `work` runs in a slot; `take` runs where the result is read."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._filled = _now(device) if device.type == "cuda" else None
        self._done: list[torch.cuda.Event] = []

    def work(self, *used: torch.Tensor | None, earlier: Handover | None = None) -> AbstractContextManager[None]:
        """Run the block on the slot's own stream, after the vector has been filled.

        `used` are the tensors from elsewhere that it reads or writes. The block also follows the work of an `earlier`
        handover that has come to its end in its own slot, but perhaps not on its stream.
        """
        return NOTHING if self._filled is None else self._queue(self._filled, used, earlier)

    @contextmanager
    def _queue(
        self, filled: torch.cuda.Event, used: Sequence[torch.Tensor | None], earlier: Handover | None
    ) -> Iterator[None]:
        stream = _stream(self._device, get_ident())
        with at_desk(), torch.cuda.stream(stream):
            stream.wait_event(filled)
            for event in () if earlier is None else earlier._done:
                stream.wait_event(event)
            for tensor in used:
                if tensor is not None and tensor.is_cuda:
                    tensor.record_stream(stream)
            yield
            done = torch.cuda.Event()
            done.record(stream)
        self._done.append(done)

    def begin(self, *used: torch.Tensor) -> None:
        """Let what comes next on the current stream follow what filled the vector."""
        if self._filled is not None:
            stream = torch.cuda.current_stream(self._device)
            stream.wait_event(self._filled)
            for tensor in used:
                tensor.record_stream(stream)

    def take(self, *made: torch.Tensor) -> None:
        """Let what comes next on the current stream see the result, and the tensors that the work `made`."""
        if self._filled is None:
            return
        stream = torch.cuda.current_stream(self._device)
        for done in self._done:
            stream.wait_event(done)
        for tensor in made:
            if tensor.is_cuda:
                tensor.record_stream(stream)


def follow(streams: Iterable[torch.cuda.Stream]) -> None:
    """Let what comes next on the current stream come after what is queued on these, all of one device."""
    for stream in streams:
        current = torch.cuda.current_stream(stream.device)
        if stream != current:
            current.wait_stream(stream)


def _now(device: torch.device) -> torch.cuda.Event:
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return event


@lru_cache(maxsize=256)
def _stream(device: torch.device, thread: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device, priority=-1)  # what is sent goes before what is still to be computed

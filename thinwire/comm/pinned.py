"""Pinned: host memory that a GPU copies to and from while the host goes on; blocks are kept and used again.

To pin memory is slow, and to free it makes the GPU wait. A driver takes blocks while it answers a request. When the
answer is there, it gives all of them back, while the GPU may still copy from them. They rest during the next request,
which waits for the same queue before it sends, and are lent again for the one after it. Which block is lent never
depends on how fast the GPU is, so that a driver that is asked for the same things again and again soon pins nothing
more. If a request takes at most m blocks, at most 2m of each size are ever made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, final

import torch
from torch import Tensor

from thinwire.core.desk import away

SMALLEST = 4096  # bytes


class Event(Protocol):
    """What is known about a GPU's queue: torch.cuda.Event."""

    def record(self, stream: torch.cuda.Stream | None = None) -> None:
        """Stand at the end of the queue."""

    def query(self) -> bool:
        """Whether the queue has come this far."""

    def synchronize(self) -> None:
        """Wait until it has."""


@dataclass(eq=False)
class _Block:
    memory: Tensor  # bytes
    free: Event  # after the last copy to or from it


def _pin(nbytes: int) -> Tensor:
    return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)


def _event() -> Event:
    event: Event = torch.cuda.Event(blocking=True)  # the thread sleeps: many wait at once, and would fill the cores
    return event


@final
class Pinned:
    """The blocks of one driver, which is used by one thread."""

    def __init__(self, pin: Callable[[int], Tensor] = _pin, event: Callable[[], Event] = _event) -> None:
        self._pin, self._event = pin, event
        self._free: list[_Block] = []
        self._resting: list[_Block] = []  # what the last request gave back
        self._lent: list[_Block] = []
        self._arrived: Event | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that are pinned."""
        return sum(block.memory.numel() for block in (*self._free, *self._resting, *self._lent))

    def take(self, n: int, dtype: torch.dtype) -> Tensor:
        """Room for `n` elements, of the smallest block that is free and large enough, or of a new one."""
        need = n * dtype.itemsize
        fits = [block for block in self._free if block.memory.numel() >= need]
        if fits:
            block = min(fits, key=lambda one: one.memory.numel())
            self._free.remove(block)
            if not block.free.query():  # no request since has waited for the GPU
                with away():
                    block.free.synchronize()
        else:
            block = _Block(self._pin(max(SMALLEST, 1 << (need - 1).bit_length())), self._event())
        self._lent.append(block)
        return block.memory[:need].view(dtype)

    def fetch(self, *tensors: Tensor) -> list[Tensor]:
        """Copies of tensors on a GPU, in host memory, which can be read: the one place where a thread waits for it.

        The copies are queued behind what made the tensors, so the wait ends when they have been made and copied.
        """
        copies = []
        for x in tensors:
            copies.append(self.take(x.numel(), x.dtype).view(x.shape))
            copies[-1].copy_(x, non_blocking=True)
        if tensors:
            self._arrived = self._arrived or self._event()
            self._arrived.record(_stream(tensors[0]))
            with away():
                self._arrived.synchronize()
        return copies

    def give_back(self, like: Tensor) -> None:
        """The answer is there; copies of what was taken may still be queued on the stream of `like`'s device."""
        if self._lent:
            done = self._event()  # one for all: to record another takes the host as long as a small copy
            done.record(_stream(like))
            for block in self._lent:
                block.free = done
        self._free += self._resting
        self._resting, self._lent = self._lent, []

    def abandon(self) -> None:
        """Something failed, and may still write to what was taken: it is not used again."""
        self._lent = []


def _stream(like: Tensor) -> torch.cuda.Stream | None:
    return torch.cuda.current_stream(like.device) if like.is_cuda else None

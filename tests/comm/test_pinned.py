"""Blocks of pinned memory: lent again only when what was queued is done. Pinning itself needs a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

from thinwire.comm.pinned import SMALLEST, Pinned


class Queue:
    """A GPU that has done nothing until it is told to."""

    def __init__(self) -> None:
        self.queued = self.done = self.waits = 0

    def event(self) -> Event:
        return Event(self)


class Event:
    def __init__(self, queue: Queue) -> None:
        self.queue, self.place = queue, 0

    def record(self, stream: object = None) -> None:
        self.queue.queued += 1
        self.place = self.queue.queued

    def query(self) -> bool:
        return self.place <= self.queue.done

    def synchronize(self) -> None:
        self.queue.waits += 1
        self.queue.done = max(self.queue.done, self.place)


def pool(queue: Queue) -> tuple[Pinned, list[int]]:
    made: list[int] = []

    def pin(nbytes: int) -> Tensor:
        made.append(nbytes)
        return torch.empty(nbytes, dtype=torch.uint8)

    return Pinned(pin, queue.event), made


def test_a_block_is_lent_again_once_the_queue_has_come_so_far() -> None:
    queue = Queue()
    pinned, made = pool(queue)
    first = pinned.take(100, torch.float32)
    assert first.shape == (100,)
    assert first.dtype == torch.float32
    pinned.give_back(first)
    second = pinned.take(100, torch.float32)
    assert second.data_ptr() != first.data_ptr()
    pinned.give_back(second)
    queue.done = queue.queued
    assert pinned.take(900, torch.uint8).data_ptr() in (first.data_ptr(), second.data_ptr())
    assert made == [SMALLEST, SMALLEST]


def test_the_smallest_block_that_fits_is_taken() -> None:
    queue = Queue()
    pinned, made = pool(queue)
    for n in (50_000, 10_000):
        pinned.take(n, torch.uint8)
    pinned.give_back(torch.empty(0))
    queue.done = queue.queued
    assert pinned.take(9_000, torch.uint8).untyped_storage().nbytes() == 1 << 14
    assert pinned.take(9_000, torch.uint8).untyped_storage().nbytes() == 1 << 16
    assert made == [1 << 16, 1 << 14]
    assert pinned.nbytes == sum(made)


def test_one_wait_for_all_that_is_fetched() -> None:
    queue = Queue()
    pinned, _ = pool(queue)
    xs = [torch.randn(3, 4), torch.arange(7), torch.empty(0)]
    copies = pinned.fetch(*xs)
    assert queue.waits == 1
    assert all(torch.equal(a, b) for a, b in zip(copies, xs, strict=True))
    assert pinned.fetch() == []
    assert queue.waits == 1


def test_what_was_taken_before_a_failure_is_not_lent_again() -> None:
    queue = Queue()
    pinned, made = pool(queue)
    pinned.take(10, torch.uint8)
    pinned.abandon()
    queue.done = queue.queued
    pinned.take(10, torch.uint8)
    assert len(made) == 2
    assert pinned.nbytes == SMALLEST

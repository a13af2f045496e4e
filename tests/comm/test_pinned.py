"""Blocks of pinned memory: lent again only when what was queued is done. Pinning itself needs a GPU."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
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


def request(pinned: Pinned, sizes: Sequence[int]) -> list[int]:
    """Take blocks of these sizes, and give them back; returns where they lie."""
    places = [pinned.take(size, torch.uint8).data_ptr() for size in sizes]
    pinned.give_back(torch.empty(0))
    return places


def test_a_block_rests_for_one_request() -> None:
    queue = Queue()
    pinned, made = pool(queue)
    first = pinned.take(100, torch.float32)
    assert first.shape == (100,)
    assert first.dtype == torch.float32
    pinned.give_back(first)
    (second,) = request(pinned, [900])
    assert second != first.data_ptr()
    assert queue.waits == 0
    assert request(pinned, [900]) == [first.data_ptr()]
    assert request(pinned, [900]) == [second]
    assert made == [SMALLEST, SMALLEST]


def test_a_block_is_not_lent_while_a_copy_of_it_is_queued() -> None:
    queue = Queue()
    pinned, _ = pool(queue)
    request(pinned, [10])
    request(pinned, [10])
    assert queue.done == 0
    pinned.take(10, torch.uint8)
    assert (queue.waits, queue.done) == (1, 1)  # for the first request, and not for the second


def test_what_is_fetched_in_between_spares_the_wait() -> None:
    queue = Queue()
    pinned, _ = pool(queue)
    for number in range(5):
        pinned.take(10, torch.uint8)
        pinned.fetch(torch.arange(7))
        pinned.give_back(torch.empty(0))
        assert queue.waits == number + 1


def test_the_smallest_block_that_fits_is_taken() -> None:
    queue = Queue()
    pinned, made = pool(queue)
    request(pinned, [50_000, 10_000])
    request(pinned, [])
    assert pinned.take(9_000, torch.uint8).untyped_storage().nbytes() == 1 << 14
    assert pinned.take(9_000, torch.uint8).untyped_storage().nbytes() == 1 << 16
    assert made == [1 << 16, 1 << 14]
    assert pinned.nbytes == sum(made)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_pinned_has_a_bound_and_does_not_depend_on_the_gpu(seed: int) -> None:
    chance = random.Random(seed)
    most = chance.randint(1, 4)  # blocks per request
    cycle = [
        [1 << chance.randint(10, 16) for _ in range(chance.randint(0, most))] for _ in range(chance.randint(1, 9))
    ]
    histories = []
    for speed in ("at once", "only when waited for", "any"):
        queue, history = Queue(), []
        pinned, made = pool(queue)
        for number in range(40 * len(cycle)):
            request(pinned, cycle[number % len(cycle)])
            if speed == "at once" or (speed == "any" and chance.random() < 0.5):
                queue.done = queue.queued
            history.append(len(made))
        assert all(made.count(size) <= 2 * most for size in made)
        histories.append(history)
    assert histories[0] == histories[1] == histories[2]
    assert len(set(histories[0][len(histories[0]) // 2 :])) == 1  # nothing is pinned in the second half


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

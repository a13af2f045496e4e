"""Independent runs on several cores: one process each, with one thread, so that numbers do not depend on how many."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

from thinwire.lab.launch import inheriting

A = TypeVar("A")
B = TypeVar("B")


def each(work: Callable[[A], B], items: Sequence[A], jobs: int) -> Iterator[B]:
    """`work` of every item, in order, in `jobs` processes; in this one for jobs=1."""
    if jobs == 1 or len(items) < 2:
        for item in items:
            with _one_thread():
                done = work(item)
            yield done
        return
    with ProcessPoolExecutor(min(jobs, len(items)), inheriting(), torch.set_num_threads, (1,)) as pool:
        try:
            yield from pool.map(work, items)
        finally:
            pool.shutdown(cancel_futures=True)


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)

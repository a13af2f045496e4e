"""Abreast: work on a GPU that is queued one after another and runs side by side.

A codec keeps few of a GPU's processors busy, and long: its chunks are few, and each is coded step by step. So the
payloads of a chunk are coded on streams of their own, which begin when the current stream has come here and which it
then waits for. On a CPU the same calls run in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import torch

T = TypeVar("T")
SIDES = 4  # streams beside each other one

_sides: dict[tuple[int, int], list[torch.cuda.Stream]] = {}


def abreast(works: Iterable[Callable[[], T]], device: torch.device) -> list[T]:
    """What each of `works` returns; what they make may be used on the current stream.

    >>> abreast([lambda: 1, lambda: 2], torch.device("cpu"))
    [1, 2]
    """
    works = list(works)
    if device.type != "cuda" or len(works) == 1:
        return [work() for work in works]
    main = torch.cuda.current_stream(device)
    # Every stream has sides of its own: memory freed on a side is used again only after its main stream came by.
    where = (main.device_index, main.cuda_stream)
    sides = _sides.get(where)
    if sides is None:
        sides = _sides.setdefault(where, [torch.cuda.Stream(device) for _ in range(SIDES)])
    begun = main.record_event()
    made = []
    for place, work in enumerate(works):
        side = sides[place % SIDES]
        if place < SIDES:
            side.wait_event(begun)
        with torch.cuda.stream(side):
            made.append(work())
    for side in sides[: len(works)]:
        main.wait_stream(side)
    return made

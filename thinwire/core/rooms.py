"""Rooms: memory that an exchange fills again and again, kept from one piece of work to the next.

Memory of some megabytes comes from the operating system, which clears it page by page when it is first touched, and
often goes back there when it is dropped. Work that is under way at the same time has rooms of its own: there are at
most as many as there was work under way at once, each as large as the largest piece that it was needed for.

On a GPU a room is used on the stream that it was made on: rooms belong to one `Comm`, and so to one slot.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

import torch
from torch import Tensor


@final
class Rooms:
    """Lends vectors.

    >>> rooms = Rooms()
    >>> with rooms.lend(8, torch.float16, torch.device("cpu")) as one:
    ...     place = one.data_ptr()
    >>> with rooms.lend(5, torch.float16, torch.device("cpu")) as other:
    ...     other.numel(), other.data_ptr() == place
    (5, True)
    """

    def __init__(self) -> None:
        self._free: list[Tensor] = []

    @contextmanager
    def lend(self, n: int, dtype: torch.dtype, device: torch.device) -> Iterator[Tensor]:
        """Room for `n` elements during the block. After an error it is dropped: something may still write to it."""
        room = self._take(n, dtype, device)
        yield room if room.numel() == n else room[:n]
        self._free.append(room)

    def _take(self, n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """The smallest that is free and large enough; a new one takes the place of one that is too small."""
        alike = [room for room in self._free if room.dtype == dtype and room.device == device]
        fits = [room for room in alike if room.numel() >= n]
        if alike:
            chosen = min(fits or alike, key=Tensor.numel)
            self._free = [room for room in self._free if room is not chosen]
            if fits:
                return chosen
        return torch.empty(n, dtype=dtype, device=device)

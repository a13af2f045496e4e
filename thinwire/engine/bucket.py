"""Bucket: tensors that are exchanged together, their flat buffer, and the state of the method, chunk by chunk."""

from __future__ import annotations

import math
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch

from thinwire import kernels
from thinwire.core.types import Layout, State
from thinwire.engine.agreement import GRADIENT
from thinwire.engine.local import same_place
from thinwire.engine.plan import Parcel, chunks

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.comm import Comm
    from thinwire.core.exchange import Exchange
    from thinwire.engine.handover import Handover
    from thinwire.engine.round import Round


@final
@dataclass(eq=False)
class Chunk:
    """Elements `start` to `stop` of a bucket: what one call of the exchange carries."""

    start: int
    stop: int
    layout: Layout
    state: State
    lr: float | None = None  # that of the last exchange; what the memory holds is rescaled when it changes
    last: Awaitable[object] | None = None  # the exchange that was launched last: the next one waits for it
    handover: Handover | None = None  # that of the same exchange
    heavy: bool = False  # whether its memory holds something so large that a result may not be finite


@final
class Bucket:
    """`views[i]` is tensor i inside the flat buffer. A round sends this buffer, or a vector that it borrows."""

    def __init__(
        self, index: int, parcel: Parcel, exchange: Exchange, comm: Comm, chunk_mb: float, sum_mb: float = math.inf
    ) -> None:
        device = parcel.items[0].device
        self.index = index
        self.items = parcel.items
        self.compressed = parcel.compressed
        self.fragment = parcel.fragment
        self.exchange = exchange
        self.layout = parcel.layout
        self.flat = torch.zeros(self.layout.numel, dtype=torch.float32, device=device)
        self.views = self.cut(self.flat)
        self.used = bytearray((GRADIENT,)) * len(self.views)  # what each tensor holds; 0 until it is filled
        self.lacks = len(self.views)  # tensors that have not been filled
        self.tame = True  # whether what was filled in this round is known to be small enough (`kernels.base.TAME`)
        self.streams: set[torch.cuda.Stream] = set()  # those that filled it in this round, where it is on a GPU
        self.open: list[Round] = []  # rounds under way, the oldest first
        self.extra: State = {}  # tensors like the buffer that belong in a checkpoint
        numel = self.layout.numel
        cuts = [(0, numel)] if exchange.whole_tensors else chunks(numel, chunk_mb)
        self.chunks = []
        for start, stop in cuts:
            layout = self.layout.cut(start, stop)
            self.chunks.append(Chunk(start, stop, layout, exchange.init(layout, comm, device)))
        # For plain sums, which keep nothing.
        self.sums = [Chunk(at, to, self.layout.cut(at, to), {}) for at, to in chunks(numel, sum_mb)]

    def cut(self, x: Tensor) -> list[Tensor]:
        """The tensors inside a vector that lies like the buffer."""
        edges = zip(self.layout.offsets, self.layout.sizes, self.layout.shapes, strict=False)
        return [x[at : at + size].view(shape) for at, size, shape in edges]

    def names(self, chunk: Chunk) -> str:
        """The tensors that a chunk holds a part of."""
        return ", ".join(dict.fromkeys(chunk.layout.names))

    def fill(self, tensor: int, value: Tensor) -> Tensor:
        """Take the gradient of one tensor, which may lie in the buffer already; returns its place there."""
        self.lacks -= not self.used[tensor]
        self.used[tensor] = GRADIENT
        view = self.views[tensor]
        if view.is_cpu and value.dtype == view.dtype and value.is_contiguous():
            if not kernels.select(view).copy(value, view):
                self.tame = False
            return view
        self.tame = False  # asking here would make the GPU wait
        if view.is_cuda:
            self.streams.add(torch.cuda.current_stream(view.device))
        return view if same_place(value, view) else view.copy_(value)

    def changed(self) -> None:
        """Note that the buffer no longer holds what was filled in."""
        self.tame = False

    def emptied(self) -> None:
        """Make ready for the next round."""
        self.lacks = len(self.views)
        self.used = bytearray(self.lacks)
        self.tame = True
        self.streams = set()

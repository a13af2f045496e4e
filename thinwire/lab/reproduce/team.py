"""Team: n ranks in one process that share a model and average gradients through one channel, as all-gather does.

Each rank has its own memory and noise and sends a real payload. All ranks would decode the same payloads in the
same order, so they are decoded once: the mean is that of `AllGather` to the bit, in a fraction of the time.
"""

from __future__ import annotations

from typing import final

from torch import Tensor

from thinwire.core.channel import Channel, empty
from thinwire.core.comm import Comm
from thinwire.core.exchange import part
from thinwire.core.payload import HEADER
from thinwire.core.types import Context, Key, Layout
from thinwire.exchange.all_gather import AllGather


@final
class Team:
    """`n` ranks around `channel`; `layout` is that of one gradient."""

    def __init__(self, channel: Channel, n: int, layout: Layout, seed: int = 0) -> None:
        self.channel, self.n, self.layout, self.seed = channel, n, layout, seed
        self.states = [AllGather(channel).init(layout, Comm(rank, n)) for rank in range(n)]
        self.steps = 0
        self.bytes = 0  # of the messages of all ranks, each counted once

    def step(self, gradients: Tensor) -> Tensor:
        """The mean (d,) of what is decoded from the gradients (n, d)."""
        arrived = []
        for rank, gradient in enumerate(gradients):
            payload = self.channel.send(gradient.contiguous(), part(self.states[rank], "send."), self._context(rank))
            arrived.append(empty(gradient) if payload is None else payload.data)
        mean = self.channel.receive(arrived, part(self.states[0], "recv."), self._context(0))
        self.steps += 1
        self.bytes += sum(data.numel() for data in arrived)
        return mean

    def rescale(self, factor: float) -> None:
        """The learning rate has become 1/`factor` of what it was."""
        for state in self.states:
            self.channel.memory.rescale(part(state, "send."), factor)

    def _context(self, rank: int) -> Context:
        return Context(Comm(rank, self.n), self.layout, Key(self.seed, self.steps, rank))

    @property
    def bits(self) -> float:
        """Bits per element of the messages so far, with their headers."""
        return 8 * self.bytes / max(1, self.steps * self.n) / self.layout.numel

    @property
    def body_bits(self) -> float:
        """The same without the headers: scales and symbols, as papers count them."""
        return self.bits - 8 * HEADER.size / self.layout.numel

"""Serving: the server's half of training without rounds. Steps are added to its model as they arrive."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import torch

from thinwire.core.payload import Payload
from thinwire.core.types import Key
from thinwire.engine.shared import Shared

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.channel import Channel
    from thinwire.core.comm import Comm
    from thinwire.core.types import Layout


@final
class Serving:
    """A model, and which version of it each worker has seen. An empty message is a worker's last."""

    def __init__(self, channel: Channel, model: Tensor, layout: Layout, seed: int, workers: int) -> None:
        self.shared = Shared(model)
        self._channel, self._layout, self._seed = channel, layout, seed
        self._seen, self._steps = [0] * workers, [0] * workers
        self._stale = self._most = 0

    async def serve(self, comm: Comm) -> None:
        """Answer each step of another rank with the model, until all have ended."""
        working = comm.size - 1
        while working:
            rank, data = await comm.recv(None)
            if data.numel():
                step = Payload(data.to(self.shared.device))
                await comm.post(rank, self.add(rank, step).view(torch.uint8))
            else:
                working -= 1

    def add(self, rank: int, step: Payload) -> Tensor:
        """Add a worker's step; returns the model."""
        stale = self.shared.version - self._seen[rank]
        self._stale, self._most = self._stale + stale, max(self._most, stale)
        with self.shared.held() as x:
            key = Key(self._seed, self._steps[rank], rank)
            self._channel.encoder.decode_add(step, self._layout, x, key=key)
        self._steps[rank] += 1
        model, self._seen[rank] = self.shared.look()
        return model

    def report(self) -> dict[str, float]:
        """How many steps of others a step did not know of."""
        return {"staleness_mean": self._stale / max(1, self.shared.version), "staleness_max": self._most}

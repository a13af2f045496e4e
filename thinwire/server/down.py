"""Down: how a model reaches a worker, at either end.

Without a channel the model itself is sent in float32, or what has changed of it (`changes.py`). With one, the server
sends how far the model has moved since it last sent one to this worker, and the worker adds that to what it has:

    server    d = x - y_w,  y_w = x,  sends C(d + e_w),  e_w = d + e_w - C(d + e_w)      with error feedback
    worker    x_w = x_w + C(d + e_w)

What is lost on the way stays in e_w, and is made up for by later answers: x_w + e_w = x whenever the worker has just
been answered. So d + e_w = x - x_w, and that is what the server computes: for each worker it keeps x_w, to the bit,
and what x_w loses by rounding is made up for, too. With a residual that decays the server keeps y_w and e_w; without
a memory it keeps y_w, and the losses add up.

Reference: Tang, Yu, Lian, Zhang, Liu, "DoubleSqueeze: parallel stochastic gradient descent with double-pass
error-compensated compression", ICML 2019, arXiv 1905.05957, whose server sends the same to all workers in step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import torch

from thinwire.core.payload import Payload
from thinwire.core.types import Context, Key, Layout, State

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from thinwire.core.channel import Channel
    from thinwire.core.comm import Comm
    from thinwire.server.changes import Changes

HOP = 1  # the way up is hop 0


@final
class Sender:
    """The server's end: for each worker the model that it was last aimed at, and the memory."""

    def __init__(
        self,
        channel: Channel | None,
        layout: Layout,
        x: Tensor,
        workers: int,
        *,
        comm: Comm,
        seed: int,
        shard: int,
        changes: Sequence[Changes] = (),
    ) -> None:
        self._channel, self._layout, self._comm, self._seed, self._shard = channel, layout, comm, seed, shard
        self._changes = changes  # by worker, where only what has changed is sent
        lossy = range(workers) if channel is not None else range(0)
        memory = None if channel is None else channel.memory
        self._follows = memory is not None and memory.feedback is not None and memory.whole
        self._base = {rank: x.clone() for rank in lossy}  # x_w where it follows, y_w elsewhere
        self._memory: dict[int, State] = {}
        if channel is not None:
            self._memory = {rank: channel.memory.init(x) for rank in lossy}
        self._sent = [0] * workers

    def send(self, rank: int, x: Tensor, has: Tensor | None = None) -> Tensor:
        """The bytes that bring a worker to `x`; `has`, if given, becomes what the worker then has."""
        if self._channel is None:
            if has is not None:
                has.copy_(x)
            return self._changes[rank].pack(x) if self._changes else x.detach().clone().view(torch.uint8)
        key = Key(self._seed, self._sent[rank], rank, self._shard, HOP)
        self._sent[rank] += 1
        base, owed = self._base[rank], self._memory[rank]
        if self._follows:
            owed["residual"].zero_()  # all that the worker lacks is in x - x_w
        payload = self._channel.send(x - base, owed, Context(self._comm, self._layout, key))
        assert payload is not None  # a memory that skips is refused
        if self._follows or has is not None:
            decoded = self._channel.encoder.decode(payload, self._layout, key=key)
            if has is not None:
                has.add_(decoded)
        if self._follows:
            base.add_(decoded)
        else:
            base.copy_(x)
        return payload.data

    def save(self) -> dict[str, Any]:
        """Plain values and tensors."""
        memory = [[rank, dict(state)] for rank, state in self._memory.items()]
        aimed = [[rank, self._aimed(rank)] for rank in self._base]
        has = [[rank, x] for rank, x in self._base.items()] if self._follows else []
        return {"aimed": aimed, "memory": memory, "sent": list(self._sent), "has": has}

    def _aimed(self, rank: int) -> Tensor:
        """y_w."""
        return self._base[rank] + self._memory[rank]["residual"] if self._follows else self._base[rank]

    def load(self, saved: Mapping[str, Any]) -> None:
        """Go on where `save` was called."""
        for rank, state in saved["memory"]:
            for name, t in state.items():
                self._memory[rank][name].copy_(t)
        for rank, x in saved["aimed"]:
            self._base[rank].copy_(x - self._memory[rank]["residual"] if self._follows else x)
        for rank, x in saved.get("has", []):  # what x_w is to the bit, which states of thinwire 0.1 do not say
            self._base[rank].copy_(x)
        self._sent = list(saved["sent"])
        self.forget()

    def forget(self) -> None:
        """The next answers are whole."""
        for one in self._changes:
            one.forget()

    def restart(self, x: Tensor) -> None:
        """All workers have `x`, and nothing is owed to them."""
        for base in self._base.values():
            base.copy_(x)
        if self._channel is not None:
            self._memory = {rank: self._channel.memory.init(x) for rank in self._memory}
        self.forget()


@final
class Receiver:
    """A worker's end of one shard: what it was last brought to."""

    def __init__(
        self,
        channel: Channel | None,
        layout: Layout,
        x: Tensor,
        *,
        seed: int,
        rank: int,
        shard: int,
        changes: Changes | None = None,
    ) -> None:
        self._changes = changes
        self._channel, self._layout, self._seed, self._rank, self._shard = channel, layout, seed, rank, shard
        self.has = x if channel is not None else None
        self.heard = 0

    def take(self, data: Tensor, device: torch.device) -> Tensor:
        """The model that these bytes bring it to."""
        if self._channel is None:
            model = data.view(torch.float32) if self._changes is None else self._changes.unpack(data)
            return model.to(device)
        assert self.has is not None
        key = Key(self._seed, self.heard, self._rank, self._shard, HOP)
        self.heard += 1
        self.has.add_(self._channel.encoder.decode(Payload(data.to(device)), self._layout, key=key))
        return self.has.clone()

    def forget(self) -> None:
        """The next answer is whole."""
        if self._changes is not None:
            self._changes.forget()

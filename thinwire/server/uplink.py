"""Uplink: one worker's way to a server, at either end. The whole of a vector, or the elements that a rule picks.

A vector goes through the channel. Of a `Keyed` push the keys come first, then the values of all rows through the
channel as one vector. A `precise` vector goes up in float32; its header says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, final

import torch

from thinwire.compressors.identity import Identity
from thinwire.core.channel import Channel
from thinwire.core.compressor import scheme
from thinwire.core.payload import Payload
from thinwire.core.types import Context, Layout
from thinwire.server.keys import Keyed, KeyLists

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Key
    from thinwire.server.rule import Rule

PRECISE = Channel(Identity())


class Sent(NamedTuple):
    """A message, and what it is made of."""

    data: Tensor
    payload: Payload | None  # of the values, where there are some
    keys: Tensor | None
    rows: int


@final
class Uplink:
    """Each end has its own: `encode` and `decoded` are the worker's, `decode` the server's."""

    def __init__(self, rule: Rule, channel: Channel, layout: Layout, like: Tensor) -> None:
        self._rule, self._channel, self._layout = rule, channel, layout
        self.memory = channel.memory.init(like)
        self.forget()

    def forget(self) -> None:
        """Lists of keys are sent anew; both ends must do so."""
        self._lists = KeyLists(cached=self._rule.caches_keys)

    def encode(self, v: Tensor | Keyed, ctx: Context, *, finite: bool = True, precise: bool = False) -> Sent:
        """The message for `v`; one that is not `finite` leaves the memory alone."""
        if isinstance(v, Keyed):
            head = self._lists.write(v.keys, len(v.values), self._rule.places(ctx.key, self._layout.numel))
            if not v.values.numel():
                return Sent(head, None, v.keys, len(v.values))
            flat = v.values.flatten().contiguous()
            payload = self._channel.send(flat, {}, Context(ctx.comm, Layout.flat(flat.numel()), ctx.key))
            assert payload is not None
            return Sent(torch.cat((head, payload.data.cpu())), payload, v.keys, len(v.values))
        if precise:
            payload = PRECISE.send(v, {}, ctx)
            assert payload is not None
            return Sent(payload.data, payload, None, 1)
        payload = self._channel.send(v, self.memory if finite else self._channel.memory.init(v), ctx)
        assert payload is not None
        return Sent(payload.data, payload, None, 1)

    def decoded(self, sent: Sent, key: Key) -> Tensor:
        """What the server makes of a message, as one vector or several."""
        if sent.keys is None:
            assert sent.payload is not None
            return self._whole(sent.payload, key)
        return self._values(sent.payload, sent.keys, sent.rows, key).dense(self._layout.numel)

    def decode(self, data: Tensor, key: Key) -> tuple[Tensor, Tensor | None]:
        """The vector or vectors, and which elements were sent where those are not all."""
        if not self._rule.sparse:
            return self._whole(Payload(data), key), None
        keys, rows, rest = self._lists.read(data, self._rule.places(key, self._layout.numel))
        values = self._values(Payload(rest.clone()) if rest.numel() else None, keys, rows, key)
        return values.dense(self._layout.numel), keys

    def _whole(self, payload: Payload, key: Key) -> Tensor:
        precise = payload.scheme == scheme(PRECISE.encoder, self._layout)
        return (PRECISE if precise else self._channel).encoder.decode(payload, self._layout, key=key)

    def _values(self, payload: Payload | None, keys: Tensor, rows: int, key: Key) -> Keyed:
        if payload is None:
            return Keyed(keys, torch.zeros(rows, len(keys), device=keys.device))
        flat = self._channel.encoder.decode(payload, Layout.flat(rows * len(keys)), key=key)
        return Keyed(keys.to(flat.device), flat.view(rows, len(keys)))

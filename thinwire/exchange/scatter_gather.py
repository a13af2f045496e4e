"""Scatter-gather: each rank owns a shard, decodes and averages it, and sends the average back, compressed again.

Sends 2 (n-1)/n of a payload per rank and step, whatever n is. There are two lossy hops, each with a memory:

    up     x_i -> Q(x_i + ...) cut into n shards, shard j to rank j            residual of x_i on every rank
    owner  m_j = (1/n) sum_i decoded, in rank order
    down   m_j -> Q(m_j + ...) to everybody                                    residual of m_j on its owner

The owner, too, decodes its own second payload, so that all ranks end with the same bits.

Reference: the double-sided scheme of Seide et al., Interspeech 2014, section 3; also the compressed all-reduce of
1-bit Adam and of CGX.

Departs from the paper: shards are cut at multiples of 512 elements, not at tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire.compressors.identity import Identity
from thinwire.core.channel import Channel, check_channel, empty
from thinwire.core.exchange import Exchange, part
from thinwire.core.memory import NoMemory
from thinwire.core.outline import Code, Gather, Phase, Scatter, Size
from thinwire.core.relay import relay
from thinwire.core.slots import cut
from thinwire.exchange.all_reduce import AllReduce
from thinwire.exchange.reduce import REDUCE, Reduce, check_reduce
from thinwire.exchange.shards import shards

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.comm import Comm
    from thinwire.core.types import Context, Layout, State


@final
@dataclass(frozen=True)
class ScatterGather(Exchange):
    """The mean (or the majority) over all ranks through `up` to a shard's owner and `down` from it.

    Without `down` both hops use `up`.
    """

    name: ClassVar[str] = "scatter-gather"
    up: Channel
    down: Channel | None = None
    reduce: Reduce = "mean"

    def __post_init__(self) -> None:
        check_channel("ScatterGather", self.up)
        if self.down is not None:
            check_channel("ScatterGather", self.down)
        check_reduce("ScatterGather", self.reduce)
        for channel in self.channels:
            slots = {**channel.memory.slots(), **channel.memory.receiver_slots()}
            if any(slot.per != "element" for slot in slots.values()):
                raise ValueError(
                    f"ScatterGather cuts vectors into shards, and {channel.memory!r} keeps numbers of whole vectors; "
                    f"write AllGather({channel!r})"
                )

    @property
    def hops(self) -> dict[str, Channel]:
        """Two hops."""
        return {"up.": self.up, "down.": self.down or self.up}

    @property
    def keeps_scale(self) -> bool:
        """Not where it is a vote."""
        return self.reduce == "mean" and super().keeps_scale

    @property
    def plain(self) -> Exchange:
        """A sum of float32; where a memory keeps something of vectors that are sent whole, the two hops with it."""
        up, down = (Channel(Identity(), c.memory.plain, checksum=c.checksum) for c in self.channels)
        return AllReduce() if up.memory == down.memory == NoMemory() else ScatterGather(up, down)

    def span(self, name: str, layout: Layout, comm: Comm) -> tuple[int, int]:
        """The owner's halves cover its shard."""
        start, stop, _ = shards(layout, comm.size)[comm.rank]
        return (start, stop) if name.startswith(("up.recv.", "down.send.")) else (0, layout.numel)

    async def __call__(self, x: Tensor, state: State, ctx: Context) -> Tensor:
        """The mean over ranks."""
        up, down = self.hops.values()
        cuts = shards(ctx.layout, ctx.comm.size)
        parts = [one.context(ctx) for one in cuts]
        mine = cuts[ctx.comm.rank].layout
        senders, receivers = part(state, "up.send."), part(state, "down.recv.")
        slots = up.memory.slots()
        made = up.send_all(
            [
                (x[low:high], cut(senders, slots, low, high), to)
                for (low, high, _), to in zip(cuts, parts, strict=True)
            ]
        )
        sent = [empty(x) if payload is None else payload.data for payload in made]
        sizes = (up.nbytes(mine),) * len(cuts) if up.sends_always else None
        arrived = await ctx.comm.all_to_all(sent, sizes=sizes, exact=up.predictable)

        owned = parts[ctx.comm.rank]
        back = [one.context(ctx, hop=1) for one in cuts]
        heard, sends, there = part(state, "up.recv."), part(state, "down.send."), back[ctx.comm.rank]
        if self.reduce == "mean":
            payload = relay(up, arrived, heard, owned, down, sends, there)
        else:
            payload = down.send(REDUCE[self.reduce](up.receive(arrived, heard, owned)), sends, there)
        known = [down.nbytes(layout) for _, _, layout in cuts] if down.sends_always else None
        everybody = await ctx.comm.all_gather(
            empty(x) if payload is None else payload.data, sizes=known, exact=down.predictable
        )

        out = x if x.dtype == torch.float32 else torch.empty_like(x, dtype=torch.float32)
        halves = down.memory.receiver_slots()
        shares = [
            (data, cut(receivers, halves, low, high), to, out[low:high])
            for data, (low, high, _), to in zip(everybody, cuts, back, strict=True)
        ]
        for got, (_, _, _, share) in zip(down.receive_each(shares), shares, strict=True):
            if got.data_ptr() != share.data_ptr():
                share.copy_(got)
        return out

    def outline(self, layout: Layout, n: int, size: Size) -> list[Phase]:
        """Shards to their owners, and their means to everybody."""
        up, down = self.hops.values()
        cuts = shards(layout, n)
        sizes = [one.layout.numel for one in cuts]
        return [
            Code("encode", up.encoder.id, layout.numel),
            Scatter(tuple(size(up, one.layout) for one in cuts)),
            Code("decode", up.encoder.id, tuple(n * d for d in sizes)),
            Code("encode", down.encoder.id, tuple(sizes)),
            Gather(tuple(size(down, one.layout) for one in cuts)),
            Code("decode", down.encoder.id, layout.numel),
        ]

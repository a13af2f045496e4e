"""Hierarchical: plain sums inside groups with fast links, and any exchange between the groups.

Groups are `local` consecutive ranks, as `torchrun` numbers the processes of one machine. Rank i of its group owns
shard i of the vector:

    in      x_k cut into `local` shards, shard i to rank i       float32, inside the group
    owner   m_i = (1/local) sum_k x_k, in rank order
    outer   m_i among the ranks i of all groups                  through `outer`, compressed
    back    the result to everybody in the group                 float32

Between machines a rank sends what `outer` sends for 1/local of the vector. Groups are of one size, so that the mean
of their means is the mean. The inner steps are plain float32 and, like an all-reduce, without header or checksum.
Where `outer` describes a tensor as a whole (a scale, a matrix of low rank), it describes the part in a rank's shard.
An `outer` that gossips is refused.

>>> from thinwire.exchange.all_reduce import AllReduce
>>> Hierarchical(AllReduce(), local=2).groups(4)
[(0, 1), (2, 3), (0, 2), (1, 3)]

Reference: the intra-node, then inter-node scheme of Horovod's hierarchical all-reduce and of ZeRO++'s qgZ.

Departs from them: the inner step is float32, where ZeRO++ quantises it, too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire.core.exchange import Exchange
from thinwire.exchange.all_reduce import AllReduce
from thinwire.exchange.shards import shards
from thinwire.exchange.wrapper import Wrapper

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.comm import Comm
    from thinwire.core.slots import Slot
    from thinwire.core.types import Context, Layout, State


@final
@dataclass(frozen=True)
class Hierarchical(Wrapper):
    """`outer` between groups of `local` consecutive ranks; the state is `outer`'s, of one shard."""

    name: ClassVar[str] = "hierarchical"
    outer: Exchange
    local: int

    def __post_init__(self) -> None:
        if not isinstance(self.outer, Exchange):
            raise TypeError(
                f"Hierarchical takes an Exchange; write Hierarchical(AllGather({self.outer!r}), local=...)"
            )
        if self.outer.served:
            raise ValueError(f"Hierarchical makes means in rounds, and a server has none; write {self.outer!r} alone")
        if self.outer.scope == "neighbours":
            raise ValueError(
                f"Hierarchical makes one mean of all ranks, and {self.outer.name} leaves each a model of its own, "
                f"on a graph that the engine must see; write {self.outer!r} alone, or "
                f"Hierarchical(AllGather(Channel(Qsgd(bits=4))), local={self.local})"
            )
        if not isinstance(self.local, int) or self.local < 1:
            raise ValueError(f"Hierarchical(local={self.local}): write the number of ranks on one machine, 1 or more")

    @property
    def inner(self) -> Exchange:
        """`outer`, whose facts these are. Where tensors should stay whole, the shards of a group cut them still."""
        return self.outer

    @property
    def plain(self) -> Exchange:
        """A sum of float32, or, where the outer one keeps a state, the same groups around it."""
        plain = self.outer.plain
        return plain if plain == AllReduce() else Hierarchical(plain, self.local)

    def check(self, n: int) -> None:
        """Refuse groups of different sizes, and what the outer exchange refuses for the number of groups."""
        if n % self.local:
            fits = [k for k in range(1, n + 1) if n % k == 0]
            raise ValueError(
                f"Hierarchical(local={self.local}) cannot cut {n} ranks into equal groups; "
                f"write local={' or '.join(map(str, fits))}"
            )
        self.outer.check(n // self.local)

    def groups(self, size: int) -> list[tuple[int, ...]]:
        """Inner groups, outer groups, and those that `outer` needs inside them."""
        self.check(size)
        inner = [tuple(range(first, first + self.local)) for first in range(0, size, self.local)]
        outer = [tuple(range(index, size, self.local)) for index in range(self.local)]
        deeper = [tuple(group[i] for i in part) for group in outer for part in self.outer.groups(len(group))]
        return [group for group in dict.fromkeys([*inner, *outer, *deeper]) if 1 < len(group) < size]

    def slots(self, layout: Layout, comm: Comm) -> dict[str, Slot]:
        """The outer exchange's, of this rank's shard."""
        self.check(comm.size)
        inner, outer = self._views(comm)
        return self.outer.slots(shards(layout, self.local)[inner.rank].layout, outer)

    def span(self, name: str, layout: Layout, comm: Comm) -> tuple[int, int]:
        """Inside this rank's shard, as the outer exchange says."""
        inner, outer = self._views(comm)
        mine = shards(layout, self.local)[inner.rank]
        start, stop = self.outer.span(name, mine.layout, outer)
        return mine.start + start, mine.start + stop

    async def __call__(self, x: Tensor, state: State, ctx: Context) -> Tensor:
        """The mean over ranks."""
        inner, outer = self._views(ctx.comm)
        cuts = shards(ctx.layout, self.local)
        mine = cuts[inner.rank]
        wide = x.float()
        sizes = (mine.layout.numel,) * self.local
        arrived = await inner.all_to_all([wide[cut.start : cut.stop] for cut in cuts], sizes=sizes)
        mean = torch.zeros(mine.layout.numel, device=x.device)
        for shard in arrived:
            mean.add_(shard, alpha=1.0 / self.local)
        result = await self.outer(mean, state, replace(mine.context(ctx), comm=outer))
        return torch.cat(await inner.all_gather(result, sizes=[cut.layout.numel for cut in cuts]))

    def _views(self, comm: Comm) -> tuple[Comm, Comm]:
        """The group of the rank, and the ranks that have the same place in their groups."""
        first, index = comm.rank - comm.rank % self.local, comm.rank % self.local
        return comm.sub(range(first, first + self.local)), comm.sub(range(index, comm.size, self.local))

"""Reduce-scatter: each rank sends every owner its row, compressed, and the owner adds what arrives, in float32.

The first half of `scatter_gather`, for vectors whose sum nobody needs whole: the gradients of sharded models. Rank i
holds one row for each owner j:

    up      p = x_ij + e_ij -> Q(p) to rank j         e_ij = p - decoded, if residuals are kept
    owner   weight * (x_jj + sum of decoded, i != j)  its own row never leaves it, and is added as it is

Sends (n-1)/n of a payload per rank and step. Residuals cover all rows but the rank's own: the gradient before it is
sharded, which is why they may be stored in 8 bits (`thinwire.memory.kept`), or not kept at all.

Reference: the all-to-all of ZeRO++, Wang et al., arXiv 2306.10209, section 3.3; LoCo, arXiv 2407.04480, for
residuals.

Departs from them: one hop, over all ranks of the group; the rank's own row is not compressed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, final

import torch

from thinwire.core.channel import BUCKET, empty
from thinwire.core.compressor import Compressor, begin_with_feedback
from thinwire.core.config import Config, check_choice
from thinwire.core.gaussian import lost
from thinwire.core.payload import HEADER
from thinwire.core.started import finish
from thinwire.core.types import Context, Key
from thinwire.exchange.inside_plan import InsidePlan, UnitPlan
from thinwire.kernels.spec import TILE
from thinwire.memory.kept import KINDS, Kept

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.payload import Payload
    from thinwire.core.types import Layout

STORE = 1  # the hop of the noise with which residuals are rounded; payloads have hop 0


@final
@dataclass(frozen=True)
class ReduceScatter(Config):
    """Rows go through `compressor`; `residual` says how what it loses is kept.

    "none" keeps nothing, "int8" one byte per element of the gradient before it is sharded, and "float32" four.
    `checksum=False` leaves the body out of the checksum, which then covers the header only.

    >>> from thinwire.compressors import IntBlock
    >>> ReduceScatter(IntBlock(bits=4), residual="int8").id
    'reduce-scatter:compressor=(int:bits=4),residual=int8'
    """

    name: ClassVar[str] = "reduce-scatter"
    compressor: Compressor
    residual: Literal["none", "int8", "float32"] = "none"
    checksum: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.compressor, Compressor):
            raise TypeError(
                f"ReduceScatter takes a compressor; got {self.compressor!r}: "
                "write ReduceScatter(thinwire.compressors.IntBlock(bits=4))"
            )
        check_choice("ReduceScatter", "residual", self.residual, ("none", *KINDS))
        _check(self.compressor, feedback=self.residual != "none")

    def kept(self, layout: Layout, ranks: int, device: torch.device) -> Kept | None:
        """Room for the residuals of all rows but one, which are zero at the start."""
        kind = KINDS.get(self.residual)
        return None if kind is None else kind(layout, ranks - 1, device)

    def nbytes(self, layout: Layout) -> int:
        """Bytes of the message with one row."""
        return HEADER.size + self.compressor.nbytes(layout)

    def plan(self, units: Mapping[str, Sequence[int]], ranks: int) -> InsidePlan:
        """What it costs where FSDP shards units with parameters of so many elements over `ranks`; prints as a table.

        `wire.plan()` says the same of a model at hand.
        """
        rows = {name: tuple(-(-size // ranks) for size in sizes) for name, sizes in units.items()}
        return InsidePlan(self, tuple(UnitPlan(name, sizes, ranks) for name, sizes in rows.items()))

    async def __call__(
        self, rows: Sequence[Tensor], kept: Kept | None, names: Sequence[str], ctx: Context, weight: float
    ) -> Tensor:
        """The sum over ranks of the row that this rank owns, times `weight`, in float32.

        `ctx.layout` is the layout of a row, and `names` its tensors as `kept` knows them.
        """
        comm = ctx.comm
        with ctx.clock.span("encode"):
            sent = self._encoded(rows, kept, names, ctx)
        room = self.nbytes(ctx.layout)
        sizes = [0 if owner == comm.rank else room for owner in range(comm.size)]
        arrived = await comm.all_to_all(sent, sizes=sizes)
        with ctx.clock.span("decode"):
            mine = rows[comm.rank]
            payloads = [ctx.payload(data) for rank, data in enumerate(arrived) if rank != comm.rank]
            out = torch.empty(ctx.layout.numel, device=mine.device)
            self.compressor.mean(payloads, ctx.layout, out, weight, _of(ctx.key, comm.rank, ctx.layout))
            return out.add_(mine, alpha=weight)

    def _encoded(self, rows: Sequence[Tensor], kept: Kept | None, names: Sequence[str], ctx: Context) -> list[Tensor]:
        """The message to each owner; an empty one to itself. Residuals are changed."""
        me, layout = ctx.comm.rank, ctx.layout
        sent: list[Tensor] = []
        for owner, x in enumerate(rows):
            if owner == me:
                sent.append(empty(x))
                continue
            key = _of(ctx.key, owner, layout)
            if kept is None:
                started = self.compressor.begin(x, layout, key, checksum=self.checksum)
            else:
                place = owner - (owner > me)
                e = kept.read(place, names)
                started = begin_with_feedback(self.compressor, x, e, layout, key, 1.0, 1.0, checksum=self.checksum)
                kept.write(place, names, e, key.fold(hop=STORE))
            payload: Payload = ctx.sent(finish([started])[0])
            sent.append(payload.data)
        return sent


def check_reduce_scatter(how: object) -> None:
    """Refuse what is not a ReduceScatter, with the line to write."""
    if not isinstance(how, ReduceScatter):
        raise TypeError(
            f"inside={how!r} is not a ReduceScatter; "
            "write inside=thinwire.exchange.ReduceScatter(thinwire.compressors.IntBlock(bits=4), residual='int8')"
        )


def _of(key: Key, owner: int, layout: Layout) -> Key:
    """The key for the row of one owner, with noise that no other row draws."""
    return key.fold(offset=owner * -(-layout.numel // TILE) * TILE)


def _check(compressor: Compressor, *, feedback: bool) -> None:
    """Refuse what cannot be added up row by row without a wait for sizes."""
    instead = "write ReduceScatter(thinwire.compressors.IntBlock(bits=4))"
    if not compressor.keeps_scale:
        raise ValueError(f"{compressor.id} sends votes, which do not add up to a gradient; {instead}")
    if compressor.whole_tensors:
        raise ValueError(f"{compressor.id} works on whole tensors, and a row holds a part of each; {instead}")
    if not compressor.fixed_size:
        raise ValueError(
            f"{compressor.id} has payloads whose size is known only when they are made, for which FSDP would wait; "
            f"{instead}"
        )
    if not feedback:
        return
    if compressor.delta(BUCKET) == 1.0:
        raise ValueError(f"{compressor.id} loses nothing, so there is no residual to keep; write residual='none'")
    bound = compressor.omega(BUCKET) or 0.0
    if bound >= 1 and (omega := lost(compressor)) >= 1:
        raise ValueError(
            f"a residual around {compressor.id} grows from step to step (omega = {omega:.2f} on Gaussian data); "
            "write residual='none', or a compressor with more levels"
        )

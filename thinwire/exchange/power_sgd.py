"""PowerSGD: every matrix of the gradient as a product of two thin ones, which are summed on the wire.

For a tensor as a matrix (m x k: first dimension x the rest), with residual e_i on rank i and the last Q on all:

    M_i = g_i + e_i
    P = (1/n) sum_i M_i Q        all-reduce of m r floats
    P^ = P with orthonormal columns
    Q = (1/n) sum_i M_i' P^      all-reduce of k r floats
    M^ = P^ Q'                   on every rank: the same bits
    e_i = M_i - M^

Everything before M^ is linear, so sums travel and what a rank sends does not grow with n: 2 (n-1)/n of 32 r (m + k)
bits. Because it starts from the last Q, each training step is one step of power iteration. Vectors, and matrices that
would shrink by less than `least`, are averaged in float32 inside the first all-reduce. `iterations` > 1 repeats both
sums.

State: "send.residual" is e_i; "recv.warm" holds Q of each matrix in the first k r of its elements and 0 in the
others, so that states are cut and restored by parameter. Tensors stay whole (`whole_tensors`): a bucket is one chunk.
Inside `Hierarchical`, a matrix that the edge of a shard cuts becomes two. A column of Q that is 0 is drawn anew from
the key.

P^ and M^ are computed in a fixed order of float64 and float32 operations (thinwire.compressors.low_rank), not by
LAPACK: ranks with different CPUs hold the same bits. M Q and M' P^ are matrix products of the machine at hand; they
only enter sums. Where a matrix is not finite, M^ is NaN, and e and Q stay as they were.

Reference: Vogels, Karimireddy, Jaggi, "PowerSGD: practical low-rank gradient compression for distributed
optimization", NeurIPS 2019, arXiv 1905.13727, algorithms 1 and 2.

Departs from the paper: momentum is the optimizer's, after M^; Q starts uniform, not normal; `least` is from its
authors' later code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire.compressors.low_rank import LowRank, check_rank, draw, multiply, orthonormal
from thinwire.core.channel import Channel
from thinwire.core.exchange import Exchange
from thinwire.core.outline import Code, Phase, Reduce, Size
from thinwire.core.slots import Slot
from thinwire.exchange.all_reduce import AllReduce
from thinwire.memory.error_feedback import ErrorFeedback

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.compressors.low_rank import Piece
    from thinwire.core.comm import Comm
    from thinwire.core.types import Context, Layout, State


@final
@dataclass(frozen=True)
class PowerSgd(Exchange):
    """The mean over all ranks, of matrix rank `rank`; what is lost is kept for the next step."""

    name: ClassVar[str] = "power-sgd"
    rank: int = 2
    iterations: int = 1
    least: float = 2.0

    def __post_init__(self) -> None:
        check_rank("PowerSgd", self.rank, self.least)
        if not isinstance(self.iterations, int) or self.iterations < 1:
            raise ValueError(f"PowerSgd(iterations={self.iterations}): write 1 or more")

    @property
    def whole_tensors(self) -> bool:
        """Always."""
        return True

    @property
    def hops(self) -> dict[str, Channel]:
        """What one rank alone would send, with the same residual, for the facts and for rescaling the residual."""
        return {"": Channel(LowRank(self.rank, self.least), ErrorFeedback())}

    @property
    def plain(self) -> Exchange:
        """A sum of float32."""
        return AllReduce()

    def slots(self, layout: Layout, comm: Comm) -> dict[str, Slot]:
        """A residual, and room for Q, which is the same on all ranks."""
        return {**super().slots(layout, comm), "recv.warm": Slot(replicated=True)}

    async def __call__(self, x: Tensor, state: State, ctx: Context) -> Tensor:
        """The mean over ranks."""
        e, warm = state["send.residual"], state["recv.warm"]
        with ctx.clock.span("encode"):
            wide = x.float() + e
            pieces = LowRank(self.rank, self.least).pieces(ctx.layout)
            matrices = [piece for piece in pieces if piece.rank]
            plain = [piece for piece in pieces if not piece.rank]
            ms = [wide[piece.start : piece.stop].view(piece.m, piece.k) for piece in matrices]
            qs = _start(warm, matrices, ctx)
            ps = [m @ q for m, q in zip(ms, qs, strict=True)]
        got = await _mean(ctx, ps + [wide[piece.start : piece.stop] for piece in plain])
        ps, rest = got[: len(matrices)], got[len(matrices) :]
        if matrices:
            ps, qs = await self._factors(ms, ps, ctx)
        with ctx.clock.span("decode"):
            out = torch.empty_like(wide)
            for piece, p, q in zip(matrices, ps, qs, strict=True):
                product = multiply(p, q).view(-1)
                finite = product.isfinite().all()
                out[piece.start : piece.stop] = torch.where(finite, product, torch.nan)
                kept, lost = warm[piece.start : piece.stop][: q.numel()], e[piece.start : piece.stop]
                kept.copy_(torch.where(finite, q.reshape(-1), kept))
                lost.copy_(torch.where(finite, wide[piece.start : piece.stop] - product, lost))
            for piece, mean in zip(plain, rest, strict=True):
                out[piece.start : piece.stop] = mean
        return out

    def outline(self, layout: Layout, n: int, size: Size) -> list[Phase]:
        """Sums of P, with what travels as it is, and of Q; again where there are more iterations."""
        pieces = LowRank(self.rank, self.least).pieces(layout)
        matrices = [piece for piece in pieces if piece.rank]
        ps, qs = sum(one.m * one.rank for one in matrices), sum(one.k * one.rank for one in matrices)
        rest = sum(one.stop - one.start for one in pieces if not one.rank)
        coder, d = self.channels[0].encoder.id, layout.numel
        phases: list[Phase] = [Code("encode", coder, d), Reduce(4 * (ps + rest))]
        for left in range(self.iterations - 1, -1, -1) if matrices else ():
            phases += [Code("encode", coder, d), Reduce(4 * qs)]
            phases += [Reduce(4 * ps)] if left else []
        return [*phases, Code("decode", coder, d)]

    async def _factors(self, ms: list[Tensor], ps: list[Tensor], ctx: Context) -> tuple[list[Tensor], list[Tensor]]:
        """P^ and Q from the mean of the ranks' M Q; again from M Q where there are more iterations."""
        left = self.iterations
        while True:
            with ctx.clock.span("encode"):
                ps = [orthonormal(p).float() for p in ps]
                qs = [m.T @ p for m, p in zip(ms, ps, strict=True)]
            qs = await _mean(ctx, qs)
            left -= 1
            if not left:
                return ps, qs
            ps = await _mean(ctx, [m @ q for m, q in zip(ms, _unit_columns(qs), strict=True)])


async def _mean(ctx: Context, parts: list[Tensor]) -> list[Tensor]:
    """The mean over ranks of several tensors, in one all-reduce."""
    flat = torch.cat([part.reshape(-1) for part in parts]) if parts else torch.empty(0)
    total = await ctx.comm.all_reduce(flat.div_(ctx.comm.size))
    pieces = total.split([part.numel() for part in parts]) if parts else []
    return [piece.view(part.shape) for piece, part in zip(pieces, parts, strict=True)]


def _start(warm: Tensor, matrices: list[Piece], ctx: Context) -> list[Tensor]:
    """The last Q of every matrix, with columns of largest magnitude about 1; columns that are 0 are drawn.

    On a GPU they are always drawn, and chosen there: to know whether they are needed is to wait.
    """
    last = [warm[piece.start : piece.start + piece.k * piece.rank].view(piece.k, piece.rank) for piece in matrices]
    qs = _unit_columns(last)
    lost = [(q == 0).all(0) for q in qs]
    if not warm.is_cpu or any(bool(columns.any()) for columns in lost):
        fresh = [draw(ctx.key, piece, ctx.layout.numel, warm) for piece in matrices]
        qs = [torch.where(columns, new, q) for columns, new, q in zip(lost, fresh, qs, strict=True)]
    return qs


def _unit_columns(qs: list[Tensor]) -> list[Tensor]:
    """The same columns multiplied by powers of two, so that products neither overflow nor vanish."""
    return [q * _inverse_power(q.abs().amax(0)) for q in qs]


def _inverse_power(x: Tensor) -> Tensor:
    """2^-e for x in [2^(e-1), 2^e)."""
    exponent = torch.frexp(x).exponent.clamp(-120, 120)
    return ((127 - exponent).to(torch.int32) << 23).view(torch.float32)

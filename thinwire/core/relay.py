"""relay: the mean of what arrived on one channel, sent through another, in one pass where the kernels have one."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from thinwire.core.compressor import Compressor, FusedCompressor, scheme
from thinwire.core.memory import NoMemory
from thinwire.core.payload import Payload, Tail
from thinwire.core.started import Started, finish

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from thinwire.core.channel import Channel
    from thinwire.core.types import Context, Key, Layout, State


class Relaying(FusedCompressor):
    """A compressor whose kernels may encode the mean of payloads without writing it to memory."""

    @abstractmethod
    def joins(self, count: int, down: Compressor, layout: Layout, like: Tensor) -> bool:
        """Whether `write_mean` of so many bodies saves a pass where `like` is, and time."""

    @abstractmethod
    def write_mean(
        self,
        bodies: Sequence[Tensor],
        weight: float,
        down: Compressor,
        layout: Layout,
        key: Key,
        body: Tensor,
        *,
        residual: Tensor | None = None,
        alpha: float = 1.0,
        beta: float = 1.0,
        checksum: bool = False,
    ) -> Tail | None:
        """`down.write_fused` of the sum that `put_all` makes of `bodies`, with the same bits, where it `joins` it."""


def relay(
    up: Channel, arrived: Sequence[Tensor], got: State, ctx: Context, down: Channel, sends: State, back: Context
) -> Payload | None:
    """`up.receive` with `got` and `ctx`, then `down.send` of the mean with `sends` and `back`.

    The mean is written only where a memory wants to see it, or a scale belongs to more than a pass holds.
    """
    first, second, layout = up.encoder, down.encoder, ctx.layout
    feedback = down.memory.feedback
    plain = up.predictable and not up.memory.predicts and (feedback is not None or down.memory == NoMemory())
    if not (plain and isinstance(first, Relaying) and first.joins(len(arrived), second, layout, arrived[0])):
        return down.send(up.receive(arrived, got, ctx), sends, back)
    with back.clock.span("encode"):
        payloads = [ctx.payload(data) for data in arrived]
        for payload in payloads:
            first.check(payload, layout, None, ctx.key)
        made = Payload.new(second.nbytes(layout), arrived[0].device)
        alpha, beta = feedback or (1.0, 1.0)
        tail = first.write_mean(
            [payload.aligned().body for payload in payloads],
            1.0 / len(arrived),
            second,
            layout,
            back.key,
            made.body,
            residual=None if feedback is None else sends["residual"],
            alpha=alpha,
            beta=beta,
            checksum=down.checksum,
        )
        (sealed,) = finish([Started(made, None, scheme(second, layout), back.key, down.checksum, tail)])
        return back.sent(sealed)

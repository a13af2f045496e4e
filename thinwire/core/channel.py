"""Channel: a compressor, the memory around it and the codec after it, for one direction of one exchange."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, cast, final

import torch

from thinwire.core.bitpack import BitPack
from thinwire.core.codec import Codec
from thinwire.core.coded import Coded, SymbolCompressor
from thinwire.core.compressor import Compressor, begin_with_feedback
from thinwire.core.config import Config
from thinwire.core.gaussian import lost
from thinwire.core.memory import Feedback, Memory, NoMemory
from thinwire.core.payload import HEADER, Payload
from thinwire.core.started import Started, finish

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from thinwire.core.types import Context, Layout, State

BUCKET = 1 << 20  # elements for which facts that depend on d are judged


@final
@dataclass(frozen=True)
class Channel(Config):
    """`compressor` says what is lost, `memory` what is kept of it, `codec` how the symbols become bytes.

    `checksum=False` leaves the body out of the checksum, which then covers the header only.
    """

    name: ClassVar[str] = "channel"
    renamed: ClassVar[Mapping[str, str]] = {"crc": "checksum"}
    compressor: Compressor
    memory: Memory = field(default_factory=NoMemory)
    codec: Codec = field(default_factory=BitPack)
    checksum: bool = True

    def __post_init__(self) -> None:
        for part, kind in (("compressor", Compressor), ("memory", Memory), ("codec", Codec)):
            value = getattr(self, part)
            if not isinstance(value, kind):
                raise TypeError(f"Channel({part}=...) takes a {kind.__name__}; got {value!r}")
        if self.memory.needs_scale and not self.compressor.keeps_scale:
            memory = type(self.memory).__name__
            raise ValueError(
                f"{self.compressor.id} decodes to numbers that do not grow with its input: {memory} cannot settle; "
                f"write Channel(ScaledSign(), {self.memory!r})"
            )
        _warn_if_unstable(self.compressor, self.memory)
        _ = self.encoder  # refuses a codec that the compressor cannot feed

    @cached_property
    def encoder(self) -> Compressor:
        """The compressor as it goes on the wire: itself with packed fields, or coded."""
        if self.codec == BitPack():
            return self.compressor  # its kernels pack in the pass that rounds
        return Coded(cast(SymbolCompressor, self.compressor), self.codec)

    @cached_property
    def predictable(self) -> bool:
        """Whether a receiver knows the size of every payload before it arrives."""
        return self.encoder.fixed_size and not self.memory.skips

    @property
    def sends_always(self) -> bool:
        """Whether every rank sends a payload of at most `nbytes` in every step."""
        return not self.memory.skips

    @cached_property
    def feedback(self) -> Feedback | None:
        """The memory's, where the encoder makes it in its own pass."""
        return self.memory.feedback

    @cached_property
    def _one_pass(self) -> bool:
        """Whether the sender's memory wants to see nothing of what is decoded."""
        return self.feedback is not None or not (self.memory.remembers or self.memory.skips)

    def nbytes(self, layout: Layout) -> int:
        """Bytes of a whole payload: exact where `predictable`, otherwise an upper bound."""
        return HEADER.size + self.encoder.nbytes(layout)

    def send(self, x: Tensor, state: State, ctx: Context) -> Payload | None:
        """The payload for `x`, with the sender's memory updated in place; None when nothing is worth sending."""
        return self.send_all([(x, state, ctx)])[0]

    def send_all(self, vectors: Sequence[tuple[Tensor, State, Context]]) -> list[Payload | None]:
        """`send` for several vectors: sizes that a GPU must find out first are waited for once."""
        clock = vectors[0][2].clock
        with clock.span("encode"):
            if self._one_pass:
                sealed = finish([self._begin(*vector) for vector in vectors])
                return [ctx.sent(payload) for payload, (_, _, ctx) in zip(sealed, vectors, strict=True)]
            payloads = [self._send(*vector) for vector in vectors]
        if self.memory.skips:
            for payload in payloads:
                clock.mark("skip" if payload is None else "upload")
        return payloads

    def _begin(self, x: Tensor, state: State, ctx: Context) -> Started:
        if self.feedback is None:
            p = self.memory.before(x, state, ctx)
            assert p is not None  # it does not skip
            return self.encoder.begin(p, ctx.layout, ctx.key, checksum=self.checksum)
        (a, b), e = self.feedback, state["residual"]
        return begin_with_feedback(self.encoder, x, e, ctx.layout, ctx.key, a, b, checksum=self.checksum)

    def _send(self, x: Tensor, state: State, ctx: Context) -> Payload | None:
        p = self.memory.before(x, state, ctx)
        if p is None:
            return None
        payload = ctx.sent(self.encoder.encode(p, ctx.layout, ctx.key, checksum=self.checksum))
        sent = self.encoder.decode(payload, ctx.layout, key=ctx.key)
        if self.memory.skips and not self.memory.worth(x, sent, state, ctx):
            return None
        self.memory.after(x, sent, state)
        return payload

    def receive(self, arrived: Sequence[Tensor], state: State, ctx: Context, out: Tensor | None = None) -> Tensor:
        """The mean of what arrived, decoded in order and through the receiver's memory; empty messages count as 0.

        `out` is overwritten; without it a new tensor is made.
        """
        with ctx.clock.span("decode"):
            out = torch.empty(ctx.layout.numel, device=arrived[0].device) if out is None else out
            payloads = [ctx.payload(data, exact=self.predictable) for data in arrived if data.numel()]
            self.encoder.mean(payloads, ctx.layout, out, 1.0 / len(arrived), ctx.key)
            return self.memory.receive(out, state)

    def receive_each(self, arrived: Sequence[tuple[Tensor, State, Context, Tensor]]) -> list[Tensor]:
        """`receive` of messages that come alone, each with its state and context, into the last of the four."""
        with arrived[0][2].clock.span("decode"):
            wanted = []
            for data, _, ctx, out in arrived:
                if data.numel():
                    wanted.append((ctx.payload(data, exact=self.predictable), ctx.layout, out, ctx.key))
                else:
                    out.zero_()
            self.encoder.put_each(wanted)
            return [self.memory.receive(out, state) for _, state, _, out in arrived]


def empty(like: Tensor) -> Tensor:
    """The empty message of a rank with nothing worth sending."""
    return torch.empty(0, dtype=torch.uint8, device=like.device)


def check_channel(exchange: str, channel: object) -> None:
    """Refuse what is not a channel, with the line to write instead."""
    if not isinstance(channel, Channel):
        raise TypeError(f"{exchange} takes a Channel; write {exchange}(Channel({channel!r}))")


def _warn_if_unstable(compressor: Compressor, memory: Memory) -> None:
    """Warn when what the memory keeps grows by the worst-case bound and on a Gaussian alike."""
    bound = compressor.omega(BUCKET)
    if not compressor.unbiased or bound is None or memory.growth(bound) < 1:
        return
    omega = lost(compressor)
    if memory.growth(omega) >= 1:
        warnings.warn(
            f"{memory!r} around {compressor.id} lets errors grow: their square becomes {memory.growth(omega):.2f} "
            f"times as large per step on Gaussian data (omega = {omega:.2f}); write {memory.steadied(omega)!r}, "
            f"Shrunk({compressor!r}), or use more levels",
            stacklevel=4,
        )

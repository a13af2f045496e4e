"""Costs: how long the processor takes for a pass over elements, and how large payloads of open size are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, final

import torch

from thinwire.core.given import is_number, is_whole
from thinwire.core.outline import Code, of_rank
from thinwire.core.payload import HEADER
from thinwire.core.types import Key, Layout

if TYPE_CHECKING:
    from thinwire.core.channel import Channel
    from thinwire.core.compressor import Compressor

SAMPLE = (256, 1024)  # the shape of the Gaussian tensor on which payloads are measured


class Pass(NamedTuple):
    """Seconds per element of encoding and of decoding one payload, and seconds that every pass takes besides."""

    encode: float = 0.0
    decode: float = 0.0
    fixed: float = 0.0


FREE = Pass()


@final
@dataclass(frozen=True)
class Costs:
    """What passes take: `usual`, except for the coders that `coders` names by their ids.

    A worker makes `at_once` passes at a time; others wait. `bits` gives the bits per element of payloads whose size
    depends on the numbers, by the id of the encoder; what is not given is measured on a Gaussian tensor.

    >>> Costs(Pass(encode=1e-9)).seconds(Code("encode", "qsgd", 1_000_000), rank=0)
    0.001
    """

    usual: Pass = FREE
    coders: Mapping[str, Pass] = field(default_factory=dict)
    at_once: int = 1
    bits: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value, write in (("coders", self.coders, "Pass(encode=2e-9)"), ("bits", self.bits, "2.5")):
            if not isinstance(value, Mapping):
                raise TypeError(f'Costs({name}={value!r}): write {name}={{"qsgd": {write}}}')
        for one in (self.usual, *self.coders.values()):
            if not isinstance(one, Pass) or not all(map(is_number, one)):
                raise ValueError(
                    f"Costs({one!r}): passes take seconds, and not less than 0; write Pass(encode=1e-9, decode=1e-9)"
                )
        if not is_whole(self.at_once, 1):
            raise ValueError(f"Costs(at_once={self.at_once!r}): write 1 or more, a whole number")
        for coder, bits in self.bits.items():
            if not is_number(bits) or bits == 0:
                raise ValueError(f"Costs(bits={{{coder!r}: {bits!r}}}): write bits per element, such as 2.5")

    def seconds(self, code: Code, rank: int) -> float:
        """How long a pass takes a rank."""
        elements = of_rank(code.elements, rank)
        if not elements:
            return 0.0
        cost = self.coders.get(code.coder, self.usual)
        return cost.fixed + elements * (cost.encode if code.what == "encode" else cost.decode)

    def size(self, channel: Channel, layout: Layout) -> int:
        """Bytes of a payload: exact where the compressor knows them, else from bits per element."""
        most = channel.nbytes(layout)
        if channel.encoder.fixed_size:
            return most
        bits = self.bits.get(channel.encoder.id)
        bits = measured_bits(channel.encoder) if bits is None else bits
        return min(most, HEADER.size + math.ceil(bits * layout.numel / 8))

    def estimated(self, channels: tuple[Channel, ...]) -> dict[str, float]:
        """The bits per element that sizes of these channels rest on, by the id of the encoder."""
        open_ended = [channel.encoder for channel in channels if not channel.encoder.fixed_size]
        return {one.id: self.bits[one.id] if one.id in self.bits else measured_bits(one) for one in open_ended}


@lru_cache(maxsize=256)
def measured_bits(compressor: Compressor) -> float:
    """Bits per element of a payload of Gaussian numbers."""
    x = torch.randn(SAMPLE, generator=torch.Generator().manual_seed(0))
    payload = compressor.encode(x, Layout.of([("", x)]), Key(seed=1))
    return 8 * (payload.nbytes - HEADER.size) / x.numel()

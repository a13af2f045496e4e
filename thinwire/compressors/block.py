"""What the compressors on the kernels' passes share: KernelCompressor, and BlockQuantiser with symbols for codecs.

The body is the scales of every block, float32 (one, two for ranges, or none), then fields of `quant.width` bits.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire import kernels
from thinwire.core.coded import FeedbackSymbols
from thinwire.core.compressor import Compressor, scheme
from thinwire.core.payload import HEADER, Payload, Tail
from thinwire.core.relay import Relaying
from thinwire.kernels.mean_encode import Again, Arrived, mean_encode, one_pass
from thinwire.kernels.spec import Blocks, Quant

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from thinwire.core.types import Key, Layout


class KernelCompressor(Relaying):
    """A subclass says how an element becomes a field (`quant`) and which elements share a scale (`blocks`)."""

    decodes_any: ClassVar[bool] = True

    @property
    @abstractmethod
    def quant(self) -> Quant:
        """How an element becomes a field."""

    @abstractmethod
    def blocks(self, layout: Layout) -> Blocks:
        """Which elements share a scale."""

    @final
    @cached_property
    def plans(self) -> dict[Layout, _Plan]:
        """The plan for each layout seen so far. It is kept here because a look-up by all settings is slow."""
        return {}

    @final
    def side_bytes(self, layout: Layout) -> int:
        """Four bytes per scale."""
        return _plan(self, layout).side

    @final
    def nbytes(self, layout: Layout) -> int:
        """The bytes of scales and fields."""
        return _plan(self, layout).nbytes

    @final
    def write_fused(
        self,
        x: Tensor,
        layout: Layout,
        key: Key,
        body: Tensor,
        *,
        residual: Tensor | None = None,
        alpha: float = 1.0,
        beta: float = 1.0,
        checksum: bool = False,
    ) -> Tail | None:
        """One pass: compensate, scale, round, pack, keep the error, sum the fields for the checksum."""
        plan = _plan(self, layout)
        side, codes = plan.cut(body)
        partial = kernels.select(x).encode(
            x,
            plan.quant,
            plan.blocks,
            key,
            side,
            codes,
            residual=residual,
            alpha=alpha,
            beta=beta,
            first=plan.first if checksum else None,
        )
        return None if partial is None else Tail(codes.numel(), partial)

    @final
    def add(self, body: Tensor, layout: Layout, key: Key, out: Tensor, weight: float) -> None:
        """One fused pass: unpack, scale, add."""
        self._decode(body, layout, out, weight, fresh=False)

    @final
    def put(self, body: Tensor, layout: Layout, key: Key, out: Tensor, weight: float) -> None:
        """One fused pass: unpack, scale, write."""
        self._decode(body, layout, out, weight, fresh=True)

    @final
    def put_all(self, bodies: Sequence[Tensor], layout: Layout, out: Tensor, weight: float) -> None:
        """One fused pass for up to eight bodies, where the tier has one."""
        plan = _plan(self, layout)
        sides, codes = zip(*(plan.cut(body) for body in bodies), strict=True)
        kernels.select(out).decode_mean(sides, codes, plan.quant, plan.blocks, out, weight)

    @final
    def joins(self, count: int, down: Compressor, layout: Layout, like: Tensor) -> bool:
        """Where both keep their scales inside what a pass of the tier holds."""
        if not isinstance(down, KernelCompressor):
            return False
        plan, then = _plan(self, layout), _plan(down, layout)
        return one_pass(like, count, plan.quant, plan.blocks, then.quant, then.blocks)

    @final
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
        """One pass: unpack, scale and add all bodies, then all that `write_fused` does."""
        assert isinstance(down, KernelCompressor)  # it joins no other
        plan, then = _plan(self, layout), _plan(down, layout)
        sides, fields = zip(*(plan.cut(one) for one in bodies), strict=True)
        side, codes = then.cut(body)
        first = then.first if checksum else None
        partial = mean_encode(
            Arrived(sides, fields, plan.quant, plan.blocks, weight),
            Again(then.quant, then.blocks, key, side, codes, residual, alpha, beta, first),
        )
        return None if partial is None else Tail(codes.numel(), partial)

    def _decode(self, body: Tensor, layout: Layout, out: Tensor, weight: float, *, fresh: bool) -> None:
        plan = _plan(self, layout)
        kernels.select(body).decode_add(*plan.cut(body), plan.quant, plan.blocks, out, weight, fresh=fresh)


@dataclass(frozen=True, eq=False)
class _Plan:
    """What a compressor does with vectors of one layout, worked out once and used at every step."""

    quant: Quant
    whole: Quant  # the same with one byte per field
    blocks: Blocks
    side: int  # bytes
    nbytes: int

    @property
    def first(self) -> int:
        """The index, in a payload, of the word where the fields begin."""
        return (HEADER.size + self.side) // 4

    def cut(self, body: Tensor) -> tuple[Tensor, Tensor]:
        """Scales and fields."""
        return body[: self.side].view(torch.float32), body[self.side :]


def _plan(compressor: KernelCompressor, layout: Layout) -> _Plan:
    found = compressor.plans.get(layout)
    if found is None:
        quant, blocks = compressor.quant, compressor.blocks(layout)
        side = 4 * quant.scales * blocks.count
        found = _Plan(quant, replace(quant, width=8), blocks, side, side + quant.code_bytes(layout.numel))
        compressor.plans[layout] = found
    return found


class BlockQuantiser(KernelCompressor, FeedbackSymbols):
    """A kernel compressor with scales and fields of at most 8 bits: its symbols can be coded, its scales shared."""

    @final
    @cached_property
    def width(self) -> int:
        """Bits of a field."""
        return self.quant.width

    @final
    def scales(self, x: Tensor, layout: Layout) -> Tensor:
        """Only the scale of every block: ranks that share scales take the maximum of these."""
        return kernels.select(x).scales(x.detach().view(-1), self.quant, self.blocks(layout))

    @final
    def encode_scaled(self, x: Tensor, scales: Tensor, layout: Layout, key: Key, *, checksum: bool = True) -> Payload:
        """`encode` with scales that came from elsewhere; ranks that share them may add their symbols."""
        plan = _plan(self, layout)
        payload = Payload.new(plan.nbytes, x.device)
        side, codes = plan.cut(payload.body)
        side.copy_(scales)
        kernels.select(x).encode(x.detach().view(-1), plan.quant, plan.blocks, key, side, codes, given=True)
        return payload.seal(scheme(self, layout), key, checksum=checksum)

    @final
    def write_symbols(self, x: Tensor, layout: Layout, key: Key, side: Tensor) -> Tensor:
        """Fields as whole bytes (the 8-bit layout is element order); signed ones as 0, -1, 1, -2, ..."""
        return self._symbols(x, layout, key, side, None, 1.0, 1.0)

    @final
    def write_symbols_with_feedback(
        self, x: Tensor, layout: Layout, key: Key, side: Tensor, e: Tensor, alpha: float, beta: float
    ) -> Tensor:
        """Write symbols and keep the error in the same pass."""
        return self._symbols(x, layout, key, side, e, alpha, beta)

    def _symbols(
        self, x: Tensor, layout: Layout, key: Key, side: Tensor, e: Tensor | None, alpha: float, beta: float
    ) -> Tensor:
        plan, tier = _plan(self, layout), kernels.select(x)
        codes = torch.empty(plan.whole.code_bytes(layout.numel), dtype=torch.uint8, device=x.device)
        scales = side.view(torch.float32)
        tier.encode(x, plan.whole, plan.blocks, key, scales, codes, residual=e, alpha=alpha, beta=beta)
        symbols = codes[: layout.numel]
        if plan.quant.signed:
            tier.fold(symbols)
        return symbols

    @final
    def add_symbols(self, side: Tensor, symbols: Tensor, layout: Layout, out: Tensor, weight: float) -> None:
        """Add the vector that the symbols stand for."""
        self._values(side, symbols, layout, out, weight, fresh=False)

    @final
    def put_symbols(self, side: Tensor, symbols: Tensor, layout: Layout, out: Tensor, weight: float) -> None:
        """Write the vector that the symbols stand for."""
        self._values(side, symbols, layout, out, weight, fresh=True)

    def _values(
        self, side: Tensor, symbols: Tensor, layout: Layout, out: Tensor, weight: float, *, fresh: bool
    ) -> None:
        plan, tier = _plan(self, layout), kernels.select(side)
        codes = symbols
        if more := plan.whole.code_bytes(layout.numel) - layout.numel:  # the last tile is padded
            codes = torch.cat((symbols, symbols.new_zeros(more)))
        if plan.quant.signed:
            tier.unfold(codes)
        tier.decode_add(side.view(torch.float32), codes, plan.whole, plan.blocks, out, weight, fresh=fresh)


def equal_blocks(layout: Layout, size: int | None) -> Blocks:
    """Blocks of `size` elements across the whole vector; one block if `size` is None or larger than the vector."""
    return Blocks(layout.numel, size=max(1, min(size or layout.numel, layout.numel)))


def check_block(name: str, block: int | None) -> None:
    """Refuse a block size that is not a positive number."""
    if block is not None and (not isinstance(block, int) or block < 1):
        raise ValueError(f"{name}(block={block}): write a positive block size, or None for one block")


def check_bits(name: str, bits: int, lowest: int = 1) -> None:
    """Refuse a field width that cannot be packed."""
    if not isinstance(bits, int) or not lowest <= bits <= 8:
        raise ValueError(f"{name}(bits={bits}): fields have {lowest} to 8 bits")


def within(block: int | None, d: int) -> int:
    """The dimension that a bound depends on: that of a block, or of the whole vector."""
    return d if block is None else min(block, d)


def omega_max(levels: int, d: int) -> float:
    """The variance of stochastic rounding to `levels` steps of the largest magnitude, over |x|^2, at the worst x.

    Attained by one entry N and d-1 entries a with a = N (sqrt(s^2 + d - 1) - s) / (d - 1); s = 1 is TernGrad's
    (sqrt(d) - 1) / 2.

    >>> omega_max(1, 1024)
    15.5
    """
    return (math.sqrt(levels**2 + d - 1) - levels) / (2 * levels)


def contraction(omega: float | None) -> float | None:
    """1 - omega if omega < 1: then E|C(x) - x|^2 <= omega |x|^2 is a contraction."""
    return 1.0 - omega if omega is not None and omega < 1 else None

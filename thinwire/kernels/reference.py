"""The reference tier: every pass in plain torch, written to be read. It is the definition of the bits.

All arithmetic is float32 with one rounding per operation, in the order written here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import torch

from thinwire.kernels import checksum, philox, planar
from thinwire.kernels.base import TAME, Kernels
from thinwire.kernels.scales import find_scales
from thinwire.kernels.spec import CHECKED, COVERED, FLAGS, HEADER, Kind, Norm

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.kernels.key import Key
    from thinwire.kernels.spec import Blocks, Quant


def _lift(scale: Tensor) -> Tensor:
    """2^100 where the reciprocal of a tiny scale would overflow, else 1."""
    return torch.where((scale > 0) & (scale < 2.0**-96), 2.0**100, 1.0).float()


def _factors(scales: Tensor, quant: Quant) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(k, lo, pre, step) of every block: t = (x - lo) * pre * k, value = lo + code * step."""
    if quant.scales == 2:
        lo, hi = scales.view(-1, 2).unbind(1)
    elif quant.kind is Kind.UNSIGNED and quant.norm is Norm.UNIT:
        lo, hi = (torch.full_like(scales, end) * scales for end in (quant.lo, quant.hi))
    else:
        lo, hi = -scales, scales
    if quant.kind is Kind.PAIR:
        return torch.zeros_like(hi), lo, torch.ones_like(hi), hi
    levels = torch.full_like(hi, quant.levels)  # a tensor: division by a Python number may multiply instead
    unit = torch.full_like(hi, 2.0**quant.fraction if quant.stochastic else 1.0)
    zero = torch.zeros_like(hi)
    if quant.kind is Kind.UNSIGNED:
        step = hi / levels - lo / levels
        pre = _lift(step)
        return torch.where(step == 0, zero, unit / (step * pre)), lo, pre, step
    pre = _lift(hi)
    top = torch.full_like(hi, 2.0 ** (quant.levels - 1)) if quant.kind is Kind.DITHER else levels * unit
    k = torch.where(hi == 0, zero, top / (hi * pre))
    return k, zero, pre, hi / levels if quant.kind is Kind.SIGNED else hi


def _at_most(t: Tensor, top: float) -> Tensor:
    return torch.where(t < top, t, top)


def _round_fixed(t: Tensor, u: Tensor, fraction: int) -> Tensor:
    """floor(t + u) in fixed point, with `fraction` bits behind the point; u is 32 bits of noise."""
    return ((t.round().to(torch.int64) + (u >> (32 - fraction))) >> fraction).to(torch.int32)


def quantise(p: Tensor, scales: Tensor, quant: Quant, blocks: Blocks, u: Tensor | None) -> Tensor:
    """Codes as int32 in element order; SIGNED and DITHER may be negative."""
    if quant.kind in (Kind.SIGN, Kind.PAIR):
        return (p >= 0).to(torch.int32)
    if quant.kind is Kind.NATURAL:
        assert u is not None
        bits = p.view(torch.int32) & 0x7FFFFFFF
        exponent = ((bits.long() + (u >> 9)) >> 23).clamp(max=254).to(torch.int32)
        return torch.where(bits >= 0x7F800000, 255, exponent)
    index = blocks.index.to(p.device)
    k, lo, pre, _ = (f[index] for f in _factors(scales, quant))
    top = quant.levels * (2.0**quant.fraction if quant.stochastic else 1.0)
    if quant.kind is Kind.UNSIGNED:
        t = _at_most(((p - lo) * pre) * k, top)
        t = torch.where(t > 0, t, 0.0)
        return (t + 0.5).to(torch.int32) if u is None else _round_fixed(t, u, quant.fraction)
    if quant.kind is Kind.SIGNED:  # floor(t + u) is unbiased for negative t too
        t = (p * pre) * k
        t = _at_most(torch.where(t > -top, t, -top), top)
        return t.round().to(torch.int32) if u is None else _round_fixed(t, u, quant.fraction)
    assert u is not None
    t = _at_most((p.abs() * pre) * k, 2.0 ** (quant.levels - 1))
    low = _round_fixed(_at_most(t, 1.0) * 2.0**30, u, 30)
    high = (((t.view(torch.int32).long() + (u >> 9)) >> 23) - 126).to(torch.int32)
    q = torch.where(t < 1, low, high)
    return torch.where(p < 0, -q, q)


def dequantise(codes: Tensor, scales: Tensor, quant: Quant, blocks: Blocks) -> Tensor:
    """Values (float32) of int32 codes in element order."""
    index = blocks.index.to(codes.device)
    _, lo, _, step = (f[index] for f in _factors(scales, quant))
    if quant.kind in (Kind.SIGN, Kind.PAIR):
        return torch.where(codes != 0, step, lo if quant.kind is Kind.PAIR else -step)
    if quant.kind is Kind.UNSIGNED:
        return lo + codes.float() * step
    if quant.kind is Kind.DITHER:
        m = codes.abs()
        power = ((m - quant.levels + 127) << 23).view(torch.float32)
        value = torch.where(m == 0, torch.where(step.isnan(), step, 0.0), power * step)
        return torch.where(codes < 0, -value, value)
    return codes.float() * step


def _values(scales: Tensor, codes: Tensor, quant: Quant, blocks: Blocks) -> Tensor:
    if quant.kind is Kind.NATURAL:
        return planar.unpack_natural(codes, blocks.n)
    fields = planar.unpack(codes, blocks.n, quant.width).to(torch.int32)
    if quant.signed:
        half = 1 << (quant.width - 1)
        fields = (fields ^ half) - half
    return dequantise(fields, scales, quant, blocks)


@final
class ReferenceKernels(Kernels):
    """Plain torch, on any device."""

    name = "reference"
    family = "reference"

    def encode(
        self,
        x: Tensor,
        quant: Quant,
        blocks: Blocks,
        key: Key,
        scales: Tensor,
        codes: Tensor,
        *,
        given: bool = False,
        residual: Tensor | None = None,
        alpha: float = 1.0,
        beta: float = 1.0,
        first: int | None = None,
    ) -> int | Tensor | None:
        if not blocks.n:
            return None
        wide = x.float()
        p = wide if residual is None else wide + residual * alpha
        if quant.norm is not Norm.NONE and not given:
            scales.copy_(find_scales(p, quant, blocks))
        noisy = quant.stochastic and quant.kind not in (Kind.SIGN, Kind.PAIR)
        u = philox.noise(key, blocks.n, x.device) if noisy else None
        q = quantise(p, scales, quant, blocks, u)
        if quant.kind is Kind.NATURAL:
            codes.copy_(planar.pack_natural(q, (p.view(torch.int32) < 0).to(torch.uint8)))
        else:
            codes.copy_(planar.pack(q, quant.width))
        if residual is not None:
            now = residual * beta + (wide - _values(scales, codes, quant, blocks))
            residual.copy_(torch.where(now.isnan(), residual, now))  # a block that is not finite keeps its residual
        return None

    def scales(self, x: Tensor, quant: Quant, blocks: Blocks) -> Tensor:
        return find_scales(x.float(), quant, blocks) if blocks.n and quant.scales else x.new_empty(0).float()

    def decode_add(
        self,
        scales: Tensor,
        codes: Tensor,
        quant: Quant,
        blocks: Blocks,
        out: Tensor,
        weight: float = 1.0,
        *,
        fresh: bool = False,
    ) -> None:
        if blocks.n:
            out.copy_((0.0 if fresh else out) + _values(scales, codes, quant, blocks) * weight)

    def noise(self, key: Key, n: int) -> Tensor:
        return philox.noise(key, n, torch.device("cpu"))

    def pack(self, codes: Tensor, width: int, out: Tensor) -> None:
        out.copy_(planar.pack(codes, width))

    def unpack(self, packed: Tensor, n: int, width: int) -> Tensor:
        return planar.unpack(packed, n, width)

    def copy(self, x: Tensor, out: Tensor) -> bool:
        return bool((out.copy_(x).abs() < TAME).all())

    def difference(self, a: Tensor, b: Tensor, out: Tensor, again: Tensor | None = None) -> bool:
        torch.sub(a, b, out=out)
        if again is not None:
            again.copy_(out)
        return bool((out.abs() < TAME).all())

    def fold(self, codes: Tensor) -> None:
        q = codes.view(torch.int8)
        q.copy_((q << 1) ^ (q >> 7))

    def unfold(self, symbols: Tensor) -> None:
        symbols.copy_((symbols >> 1) ^ (0 - (symbols & 1)))

    def total(self, data: Tensor, first: int = 0) -> int | Tensor:
        total = checksum.total(data, first)
        return int(total) & checksum.MASK64 if data.is_cpu else total

    def seal(self, data: Tensor, header: bytes, tail: int = 0, partial: int | Tensor = 0) -> None:
        if (data.numel() - tail) % 4 and tail:
            raise ValueError(
                f"a part with a sum of its own starts at a whole word, not at byte {data.numel() - tail}"
            )
        if not data.is_cpu:
            self._seal_there(data, header, tail, partial)
            return
        data[:COVERED] = torch.frombuffer(bytearray(header), dtype=torch.uint8)
        check = self._check(data, tail, int(partial))
        data[COVERED:HEADER] = torch.frombuffer(bytearray(check.to_bytes(4, "little")), dtype=torch.uint8)

    def _seal_there(self, data: Tensor, header: bytes, tail: int, partial: int | Tensor) -> None:
        """On a GPU, without a wait."""
        data[:COVERED].copy_(torch.frombuffer(bytearray(header), dtype=torch.uint8), non_blocking=True)
        total = checksum.total(data[:COVERED])
        if header[FLAGS] & CHECKED:
            total += checksum.total(data[HEADER : data.numel() - tail], HEADER // 4)
            total += partial.sum() if isinstance(partial, torch.Tensor) else partial
        low = checksum.finished(total)
        data[COVERED:HEADER] = (low - ((low >> 31) << 32)).to(torch.int32).view(torch.uint8)

    def sealed(self, data: Tensor) -> bool:
        if not data.is_cpu:
            return not bool(self.damaged([data]))
        return data[COVERED:HEADER].cpu().numpy().tobytes() == self._check(data).to_bytes(4, "little")

    def _check(self, data: Tensor, tail: int = 0, partial: int = 0) -> int:
        total = int(self.total(data[:COVERED]))
        if int(data[FLAGS]) & CHECKED:
            total += int(self.total(data[HEADER : data.numel() - tail], HEADER // 4)) + partial
        return checksum.finish(total)

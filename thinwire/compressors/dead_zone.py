"""Dead zone: an entropy-coded uniform quantiser at any rate from 0.1 to 8 bits per element.

Sends, for each block of B elements, its root mean square N (16 bits), and for each element u = x / N a symbol

    q = 0 where |u| < z,    else q = sgn(u) (1 + floor((|u| - z) / step))

at its entropy (thinwire.codecs.rans). `rate` sets the step such that the symbols of a Gaussian have that entropy, and
the dead zone z = r step. r is 0.7 up to half a bit and 0.5 from 1.5 bits on; a Gaussian loses less than 0.01 bit to
the best r, while Laplace and gradients gain. q decodes to N (z + step (|q| - 1 + o)), where o is the mean of what was
cut off, measured by the sender for |q| = 1 .. 7 and for all above: eight numbers per message. The low bits of symbols
beyond a byte (rates above 6.4) are sent plainly; elements beyond those, 6 N and more, are sent as float32.

On 2^20 Gaussian elements it takes 0.256 to 0.26 bits more than Shannon's 1/2 log2(1 / nmse) from 1.4 bits on (any
scalar quantiser needs 0.255 at high rates), and 0.03 at 0.1 bits. On other data the rate differs: heavy tails take
fewer bits above half a bit.

Bounds: what the dead zone cuts off has at most z^2 of a block's mean square, and what is rounded moves by at most
3/4 step: delta = 1 - 1.01 (z^2 + 9/16 step^2) for rates of 2 and more. Below that no bound holds for every vector.
Wire: the entropy + 16/B bits per element, and about 200 bytes per message.

>>> c = DeadZone(rate=2.5)
>>> round(c.step, 3), round(c.zone, 3), round(c.delta(512), 3)
(0.747, 0.374, 0.542)

Reference: Gish and Pierce, "Asymptotically efficient quantizing", 1968, for uniform steps with an entropy code;
Sullivan, "Efficient scalar quantization of exponential and Laplacian random variables", 1996, for dead zones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire import kernels
from thinwire.codecs.rans import Rans
from thinwire.compressors.block import check_block, equal_blocks
from thinwire.core.bitpack import BitPack
from thinwire.core.compressor import Biased
from thinwire.core.errors import PayloadError
from thinwire.kernels.spec import Blocks, Kind, Norm, Quant, packed_bytes

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Key, Layout

# The step for rates 0.1, 0.2, .. 4.0 of a Gaussian; each bit above halves it.
# fmt: off
STEPS = (
    3.6225, 3.18, 2.8882, 2.6608, 2.4693, 2.3681, 2.2769, 2.1918, 2.1101, 2.0296,
    1.9488, 1.8668, 1.7829, 1.6971, 1.6101, 1.4826, 1.3674, 1.2633, 1.1686, 1.0824,
    1.0036, 0.93138, 0.86497, 0.80381, 0.74738, 0.69524, 0.647, 0.60231, 0.56088, 0.52243,
    0.48673, 0.45356, 0.42272, 0.39403, 0.36733, 0.34248, 0.31935, 0.2978, 0.27772, 0.25902,
)
# fmt: on
L2 = Quant(Kind.SIGNED, Norm.L2, levels=1, width=2)
CLASSES = 8  # magnitudes with an offset of their own; the last offset serves all larger ones too
HEAD = 2 * CLASSES + 4  # the offsets, and how many bytes the codec takes
LARGEST, ESCAPE = 127, 255  # magnitude of a symbol; the symbol of an element sent as float32
REACH = 6.0  # magnitudes that need no escape
BIAS, NAN = 200, 0xFFFF  # of packed scales


@final
@dataclass(frozen=True)
class DeadZone(Biased):
    """A uniform quantiser with a dead zone and an entropy code, of about `rate` bits per element."""

    name: ClassVar[str] = "dead-zone"
    fixed_size: ClassVar[bool] = False
    rate: float = 2.0
    block: int = 32768

    def __post_init__(self) -> None:
        if not 0.1 <= self.rate <= 8:
            raise ValueError(f"DeadZone(rate={self.rate}): write a rate of 0.1 to 8 bits per element")
        check_block("DeadZone", self.block)

    @property
    def step(self) -> float:
        """The step of the grid, in units of N, interpolated linearly between the table's entries."""
        halvings = max(0, math.ceil(self.rate - 4))
        place = (self.rate - halvings) * 10 - 1
        low = min(int(place), len(STEPS) - 2)
        part = place - low
        return (STEPS[low] * (1 - part) + STEPS[low + 1] * part) / (1 << halvings)

    @property
    def zone(self) -> float:
        """Half of the dead zone, in units of N."""
        return min(0.7, max(0.5, 0.8 - 0.2 * self.rate)) * self.step

    @property
    def low_bits(self) -> int:
        """Bits of a magnitude beyond its symbol."""
        return next(k for k in range(8) if LARGEST * self.step * (1 << k) >= REACH)

    def delta(self, d: int) -> float | None:
        """The bound given in the module's docstring."""
        return 1 - 1.01 * (self.zone**2 + 9 / 16 * self.step**2) if self.rate >= 2 else None

    def nbytes(self, layout: Layout) -> int:
        """The bytes if the codec gained nothing and every element were sent as float32."""
        n = layout.numel
        most = self._blocks(layout).count * 2 + HEAD + Rans().bound(n, 8) + packed_bytes(n, self.low_bits)
        return most + 4 * n if n else 0

    def write(self, x: Tensor, layout: Layout, key: Key, body: Tensor) -> int | None:
        """Write the scales, offsets, symbols, low bits and escapes."""
        if not layout.numel:
            return 0
        blocks = self._blocks(layout)
        norms = kernels.select(x).scales(x, L2, blocks).double()
        scales = _pack_scales(norms / _lengths(blocks, x).sqrt())
        n_of = _spread(_unpack_scales(scales), blocks)
        wide = x.double()
        u = torch.where(n_of > 0, wide.abs() / n_of, 0.0)  # NaN is not above 0
        place = (u - self.zone) / self.step
        q = torch.where(u < self.zone, 0, place.floor().clamp(max=1e9).long() + 1)
        high = ((q - 1) >> self.low_bits) + 1
        inside = (q > 0) & (high <= LARGEST)
        symbols = torch.where(inside, 2 * high - (wide < 0).long(), torch.where(q > 0, ESCAPE, 0)).to(torch.uint8)
        parts = [
            scales.to(torch.int32).to(torch.uint16).view(torch.uint8),
            self._offsets(q[inside], place[inside]).to(torch.uint16).view(torch.uint8),
        ]
        data = Rans().pack(symbols, 8)
        parts += [torch.tensor([data.numel()], dtype=torch.int32, device=x.device).view(torch.uint8), data]
        if self.low_bits:
            low = (q[inside] - 1) & ((1 << self.low_bits) - 1)
            parts.append(BitPack().pack(low.to(torch.uint8), self.low_bits))
        parts.append(x[symbols == ESCAPE].float().contiguous().view(torch.uint8))
        whole = torch.cat(parts)
        body[: whole.numel()].copy_(whole)
        return whole.numel()

    def add(self, body: Tensor, layout: Layout, key: Key, out: Tensor, weight: float) -> None:
        """Decode and add."""
        blocks, n, k = self._blocks(layout), layout.numel, self.low_bits
        side = 2 * blocks.count
        if body.numel() < side + HEAD:
            raise PayloadError(f"{self.id} has at least {side + HEAD} body bytes; {body.numel()} arrived")
        size = int(body[side + HEAD - 4 : side + HEAD].clone().view(torch.int32))
        end = side + HEAD + size
        if not 0 < size <= body.numel() - side - HEAD:
            raise PayloadError(f"{self.id}: {size} bytes of symbols do not fit a body of {body.numel()}")
        symbols = Rans().unpack(body[side + HEAD : end], n, 8)
        inside, escaped = (symbols > 0) & (symbols < ESCAPE), symbols == ESCAPE
        low_end = end + (packed_bytes(int(inside.sum()), k) if k else 0)
        if body.numel() != low_end + 4 * int(escaped.sum()):
            raise PayloadError(f"{self.id}: the {body.numel() - end} bytes after the symbols do not match them")
        above = ((symbols[inside].long() + 1) >> 1) - 1 << k
        if k:
            above += BitPack().unpack(body[end:low_end].clone(), above.numel(), k).long()
        offsets = body[side : side + 2 * CLASSES].clone().view(torch.uint16).to(torch.float64) / 65536
        size_of = self.zone + (above + offsets[above.clamp(max=CLASSES - 1)]) * self.step
        values = torch.zeros(n, dtype=torch.float64, device=body.device)
        values[inside] = torch.where(symbols[inside] & 1 > 0, -size_of, size_of)
        values *= _spread(_unpack_scales(body[:side].clone().view(torch.uint16).long()), blocks)
        top = torch.finfo(torch.float32).max
        decoded = values.clamp(-top, top).float()
        decoded[escaped] = body[low_end:].clone().view(torch.float32)
        out.copy_(out + decoded * weight)

    def _blocks(self, layout: Layout) -> Blocks:
        return equal_blocks(layout, self.block)

    def _offsets(self, q: Tensor, place: Tensor) -> Tensor:
        """The mean of place - (q - 1) for each class, in 1/65536; whole numbers, so that order does not matter."""
        part = ((place - (q - 1)) * 65536).floor().clamp(0, 65535).long()
        kind = q.clamp(max=CLASSES) - 1
        total, count = torch.zeros(2, CLASSES, dtype=torch.int64, device=q.device)
        total.index_add_(0, kind, part)
        count.index_add_(0, kind, torch.ones_like(part))
        mean: Tensor = total // count.clamp(min=1)
        return mean.clamp(16384, 49152) if self.rate >= 2 else mean


def _lengths(blocks: Blocks, like: Tensor) -> Tensor:
    """Elements of each block."""
    lengths = torch.full((blocks.count,), blocks.size, dtype=torch.float64, device=like.device)
    lengths[-1] = blocks.n - (blocks.count - 1) * blocks.size
    return lengths


def _spread(scales: Tensor, blocks: Blocks) -> Tensor:
    """The scale of every element."""
    return scales.repeat_interleave(blocks.size)[: blocks.n]


def _pack_scales(rms: Tensor) -> Tensor:
    """The nearest number with 7 bits of fraction and 9 of exponent: 0 for 0, 0xFFFF for NaN."""
    part, exponent = torch.frexp(torch.where(rms.isfinite(), rms, 0.0))
    code = (exponent.long() + BIAS) * 128 + ((2 * part - 1) * 128 + 0.5).floor().long()
    return torch.where(rms.isnan(), NAN, torch.where(rms > 0, code, 0))


def _unpack_scales(code: Tensor) -> Tensor:
    """The scales as float64, put together from their bits."""
    value = (((code // 128 - BIAS - 1 + 1023) << 52) | ((code % 128) << 45)).view(torch.float64)
    return torch.where(code == NAN, torch.nan, torch.where(code == 0, 0.0, value))

"""Low precision for models: as few bits as keep the expected error of random rounding below a bound.

    delta = max|x| / (2^(b-1) - 1),    Q(x) in {-(2^(b-1) - 1) delta, .., -delta, 0, delta, .., (2^(b-1) - 1) delta}
    E|Q(x) - x|^2 = delta^2 sum_i r_i (1 - r_i) <= d delta^2 / 4,    r_i = the fraction of x_i / delta

A word for the wire is a tensor of float32 whose bits are the number of bits b (int32), delta, and packed fields; with
b = 32 the fields are x itself.

>>> import torch
>>> from thinwire.core.types import Key
>>> x = torch.tensor([1.0, -0.5, 0.25])
>>> unpack(pack(x, 4, Key()), 3)[0]  # 1 is the largest, and is exact
tensor(1.)
>>> width(x, lowest=2, bound=1e-6), width(x, lowest=2, bound=0.5)
(11, 2)

Reference: Yu, Wu, Huang, "Double quantization for communication-efficient distributed optimization", NeurIPS 2019,
arXiv 1805.10111, section 2. `thinwire.compressors.LowPrecision` is the same with up to 8 bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from thinwire import kernels
from thinwire.codecs.wide import pack_wide, unpack_wide, wide_bytes
from thinwire.core.errors import PayloadError

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Key

FLOAT = 32
WIDEST = 24  # beyond it float32 is not coarser
HEAD = 2  # floats in front of the fields


def delta(x: Tensor, bits: int) -> float:
    """The distance of neighbours in the domain, a float32; 0 where x is."""
    largest = float(x.abs().max()) if x.numel() else 0.0
    return float(torch.tensor(largest / ((1 << (bits - 1)) - 1), dtype=torch.float32))


def error(x: Tensor, bits: int) -> float:
    """E|Q(x) - x|^2."""
    step = delta(x, bits)
    if not step:
        return 0.0
    r = (x.double() / step).frac().abs()
    return step * step * float((r * (1 - r)).sum())


def width(x: Tensor, lowest: int, bound: float) -> int:
    """The fewest bits, from `lowest` on, for which E|Q(x) - x|^2 <= bound; 32 where even 24 are too few."""
    return next((bits for bits in range(lowest, WIDEST + 1) if error(x, bits) <= bound), FLOAT)


def pack(x: Tensor, bits: int, key: Key) -> Tensor:
    """The word of Q(x), with the noise of `key`."""
    if bits == FLOAT:
        return torch.cat((_head(bits, 0.0), x.float().cpu()))
    step, top = delta(x, bits), (1 << (bits - 1)) - 1
    noise = kernels.get("cpu").noise(key, x.numel()).double() / 2.0**32
    q = (x.double().cpu() / (step or 1.0) + noise).floor().long().clamp(-top, top)
    fields = pack_wide(q + top, bits)
    padded = torch.nn.functional.pad(fields, (0, -fields.numel() % 4))
    return torch.cat((_head(bits, step), padded.view(torch.float32)))


def unpack(word: Tensor, n: int) -> Tensor:
    """The `n` elements of a word, float32."""
    bits, step = int(word[:1].view(torch.int32)), word[1]
    if bits == FLOAT:
        return word[HEAD : HEAD + n].clone()
    size = wide_bytes(n, bits) if 2 <= bits <= WIDEST else -1
    fields = word[HEAD:].contiguous().view(torch.uint8)
    if fields.numel() != size + -size % 4:
        raise PayloadError(f"{n} fields of {bits} bits do not fit {fields.numel()} bytes")
    return (unpack_wide(fields[:size], n, bits) - ((1 << (bits - 1)) - 1)) * step


def _head(bits: int, step: float) -> Tensor:
    return torch.cat((torch.tensor([bits], dtype=torch.int32).view(torch.float32), torch.tensor([step])))

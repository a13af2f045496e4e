"""Floats of 8 and 4 bits with a scale for every block of equal size: the passes of the compressor `float`.

With N the largest magnitude of a block, at most 2^126, and M that of the format:

    code = x / N, at least -1 and at most 1, times M, rounded to nearest even;    decoded: its value times N / M

Without a mantissa every number but 0 is odd, and between two of them a tie goes to the larger, as IEEE 754 has it.
NaN becomes 0 in 8 bits and M in 4, in a block whose scale is NaN. The plain torch here is the definition of the bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from thinwire.kernels.dispatch import select
from thinwire.kernels.spec import TOP, packed_bytes
from thinwire.kernels.table import find

if TYPE_CHECKING:
    from torch import Tensor

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E3M0 = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)


class Format(NamedTuple):
    """A small float."""

    bits: int
    mantissa: int  # bits
    bias: int
    top: float  # the largest magnitude
    dtype: torch.dtype | None  # None where a table is used
    table: tuple[float, ...] = ()


E4M3_FORMAT = Format(8, 3, 7, 448.0, torch.float8_e4m3fn)
E5M2_FORMAT = Format(8, 2, 15, 57344.0, torch.float8_e5m2)
E2M1_FORMAT = Format(4, 1, 1, 6.0, None, E2M1)
E3M0_FORMAT = Format(4, 0, 3, 16.0, None, E3M0)


def write(
    x: Tensor,
    form: Format,
    size: int,
    scales: Tensor,
    codes: Tensor,
    *,
    residual: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    first: int | None = None,
) -> Tensor | None:
    """Encode p = x + alpha e in blocks of `size`; with a residual set e = beta e + (x - decoded p), in place.

    With `first`, the index in the payload of the word where the codes begin, returns the codes' part of the
    checksum's sum, in parts, if the pass made it.
    """
    run = find("minifloat.write", x, _write)
    return run(x, form, size, scales, codes, residual=residual, alpha=alpha, beta=beta, first=first)


def _write(
    x: Tensor,
    form: Format,
    size: int,
    scales: Tensor,
    codes: Tensor,
    *,
    residual: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    first: int | None = None,
) -> Tensor | None:
    n = x.numel()
    if not n:
        return None
    p = x if residual is None else x.float() + residual * alpha
    rows = x.new_zeros(scales.numel() * size, dtype=torch.float32)
    rows[:n] = p
    rows = rows.view(-1, size)
    top = rows.abs().amax(1)
    top = torch.where(top.isfinite(), top.clamp(max=TOP), torch.nan)
    scales.copy_(top)
    divisor = torch.where(top > 0, top, 1.0)[:, None]
    scaled = ((rows / divisor).clamp(-1, 1) * form.top).view(-1)[:n]
    small = _to_table(scaled, form) if form.dtype is None else scaled.nan_to_num(0.0).to(form.dtype).view(torch.uint8)
    select(small).pack(small, form.bits, codes)
    if residual is not None:
        sent = torch.zeros(n, device=x.device)
        _add([scales], [codes], form, size, sent, 1.0, fresh=True)
        now = residual * beta + (x.float() - sent)
        residual.copy_(torch.where(now.isnan(), residual, now))
    return None


def add(
    scales: Sequence[Tensor],
    codes: Sequence[Tensor],
    form: Format,
    size: int,
    out: Tensor,
    weight: float,
    *,
    fresh: bool = False,
) -> None:
    """`out += weight * decoded` of one payload after another, in place; with `fresh`, `out` counts as zero."""
    find("minifloat.add", out, _add)(scales, codes, form, size, out, weight, fresh=fresh)


def _add(
    scales: Sequence[Tensor],
    codes: Sequence[Tensor],
    form: Format,
    size: int,
    out: Tensor,
    weight: float,
    *,
    fresh: bool = False,
) -> None:
    n = out.numel()
    if fresh:
        out.zero_()
    for top, packed in zip(scales, codes, strict=True):
        small = select(packed).unpack(packed, n, form.bits)
        values = _from_table(small, form) if form.dtype is None else small.view(form.dtype).float()
        step = (top / torch.full_like(top, form.top)).repeat_interleave(size)[:n]
        out.copy_(out + (values * step) * weight)


def code_bytes(form: Format, n: int) -> int:
    """Bytes of the codes of `n` elements."""
    return packed_bytes(n, form.bits)


def _to_table(x: Tensor, form: Format) -> Tensor:
    """Codes of the nearest values: sign in bit 3, index in bits 0 to 2."""
    table = torch.tensor(form.table, device=x.device)
    middles = (table[1:] + table[:-1]) / 2
    magnitude = x.abs()
    index = torch.bucketize(magnitude, middles)  # a tie goes to the lower index ...
    odd = index % 2 == 1 if form.mantissa else index > 0
    tie = (index < 7) & (magnitude == middles[index.clamp(max=6)]) & odd
    index = index + tie.long()  # ... unless that one is odd
    return (index + 8 * (x < 0)).to(torch.uint8)


def _from_table(codes: Tensor, form: Format) -> Tensor:
    table = torch.tensor(form.table, device=codes.device)
    value = table[(codes & 7).long()]
    return torch.where(codes >= 8, -value, value)

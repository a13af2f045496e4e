"""The passes of `gpu/floats.py`, launched as `kernels/minifloat.py` describes them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from thinwire.kernels.gpu import floats, plan
from thinwire.kernels.gpu.decode import MOST
from thinwire.kernels.gpu.launch import NB, ONE_WARP, PRECISE, WARPS, as_words, on, scaled
from thinwire.kernels.spec import Blocks, Kind, Norm, Quant

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.kernels.minifloat import Format

LARGEST = Quant(Kind.SIGNED, Norm.MAX, levels=1, width=8)  # how blocks find their scales


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
    """Encode, and with a residual keep the error; returns partial sums for the checksum if `first` is given."""
    blocks, done = Blocks(x.numel(), size=size), 0
    many, warps = ONE_WARP if residual is None else (NB, WARPS)
    partial = x.new_empty(sum(part.grid for part in plan.parts(blocks.n, many)), dtype=torch.int64)
    with on(x):
        for part, how in scaled(x, residual, alpha, LARGEST, blocks, scales, many):
            floats.encode[(part.grid,)](
                x,
                x if residual is None else residual,
                scales,
                as_words(codes),
                partial[done:],
                blocks.n,
                part.tiles,
                part.tile0,
                part.lanes,
                size,
                first or 0,
                alpha,
                beta,
                **_constants(form, blocks, how),
                FEEDBACK=residual is not None,
                SUM=first is not None,
                FULL=part.full,
                NB=part.per_program,
                num_warps=warps if part.full else 1,
                **PRECISE,
            )
            done += part.grid
    return None if first is None else partial


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
    """Decode payloads, up to eight in one pass, and add them in order."""
    blocks = Blocks(out.numel(), size=size)
    with on(out):
        for at in range(0, len(codes), MOST):
            sides, some = scales[at : at + MOST], codes[at : at + MOST]
            none = MOST - len(some)
            for part, how in plan.passes(LARGEST, blocks, NB):
                floats.decode[(part.grid,)](
                    *sides,
                    *[sides[0]] * none,
                    *some,
                    *[some[0]] * none,
                    out,
                    blocks.n,
                    part.tiles,
                    part.tile0,
                    part.lanes,
                    size,
                    weight,
                    **_constants(form, blocks, how),
                    COUNT=len(some),
                    FRESH=fresh and at == 0,
                    FULL=part.full,
                    NATIVE=_native(out.device),
                    NB=part.per_program,
                    num_warps=WARPS if part.full else 1,
                    **PRECISE,
                )


@cache
def _native(device: torch.device) -> bool:
    """Whether the processor converts floats of 8 bits by itself: GPUs do from compute capability 8.9 on."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


def _constants(form: Format, blocks: Blocks, mode: int) -> dict[str, Any]:
    """What the passes are compiled for."""
    shape = {"TOP": form.top, "BIAS": form.bias, "MANTISSA": form.mantissa, "WIDTH": form.bits}
    return {**shape, "MODE": mode, "SIZE": plan.constant(blocks)}

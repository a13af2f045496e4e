"""What launches of the Triton tier share: the device, addresses, and scales that are found before an encode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from thinwire.kernels.gpu import plan, segments
from thinwire.kernels.gpu.plan import FUSED, SEGMENT, Part, mode, passes
from thinwire.kernels.spec import TILE, Blocks, Norm, Quant

HERE = nullcontext()
PRECISE = {"enable_fp_fusion": False}  # every operation rounds once, as in the reference
ROWS = 32  # of 64 lanes, that a program has under way where scales are found before an encode
NB, WARPS = 8, 4  # tiles per program
NARROW = 4, 2  # the same for fields of one or two bits, where something is encoded with feedback
ONE_WARP = 2, 1  # and where it is encoded without, in fields of at most `FEW_BITS`: nobody waits at a barrier
FEW_BITS = 5
MEANS = {2: (2, 1)}  # and for means of more than `PAIR` payloads, by the width of their fields
PAIR = 2
TURNED = True  # where scales are found before an encode, it begins with what was read last
FEW_REGISTERS = 64  # measured: the compiler's own choice keeps too few threads under way


def on(x: Tensor) -> AbstractContextManager[object]:
    """Triton launches on the current device: make it that of the tensor."""
    if not x.is_cuda or x.get_device() == torch.cuda.current_device():
        return HERE
    return torch.cuda.device(x.device)


def shape(width: int, *, feedback: bool) -> tuple[int, dict[str, Any]]:
    """Tiles per program of a pass that encodes, and how whole programs of it are launched."""
    if not feedback and width <= FEW_BITS:
        many, warps = ONE_WARP
        return many, {"num_warps": warps, **({"maxnreg": FEW_REGISTERS} if width <= 2 else {})}
    many, warps = NARROW if width <= 2 else (NB, WARPS)
    return many, {"num_warps": warps}


def decode_shape(width: int, count: int) -> tuple[int, int]:
    """Tiles per program of a pass that decodes so many payloads, and its warps."""
    return MEANS.get(width, (NB, WARPS)) if count > PAIR else (NB, WARPS)


def taken_to(device: torch.device, numbers: Tensor) -> Tensor:
    """What the host knows, where kernels read it; nobody waits."""
    return numbers.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else numbers


def as_words(codes: Tensor) -> Tensor:
    """Bytes from an address that words may be stored to."""
    assert codes.data_ptr() % 4 == 0
    n = codes.numel()
    if n < 4:
        return codes
    return (codes if n % 4 == 0 else codes[: n // 4 * 4]).view(torch.int32)


def scaled(
    x: Tensor,
    residual: Tensor | None,
    alpha: float,
    quant: Quant,
    blocks: Blocks,
    out: Tensor,
    per_program: int,
    *,
    given: bool = False,
) -> Iterator[tuple[Part, int]]:
    """The launches of an encode with how each finds its scales, after those have been found that it looks up."""
    ahead = not given and quant.norm is not Norm.NONE
    fused = mode(quant, blocks, given=given) == FUSED
    if ahead and not fused:
        find_scales(x, residual, alpha, quant, blocks, out, 0)
    for part, how in passes(quant, blocks, per_program, given=given):
        if ahead and fused and how != FUSED:  # the blocks of the narrow tile
            find_scales(x, residual, alpha, quant, blocks, out, part.tile0 * TILE // blocks.size)
        yield part, how


def find_scales(
    x: Tensor, residual: Tensor | None, alpha: float, quant: Quant, blocks: Blocks, out: Tensor, block0: int
) -> None:
    """The scales of all blocks from `block0` on."""
    ragged = blocks.starts is not None
    table = plan.table(blocks, x.device) if ragged else None
    if table is not None:
        per_block, count, grid = 1, blocks.count, table.segments.shape[0]
        single = table.longest <= SEGMENT
    else:
        per_block = -(-blocks.size // SEGMENT)
        count = blocks.count - block0
        grid, single = count * per_block, per_block == 1
    scratch = x.new_empty(0 if single else 6 * grid, dtype=torch.float64)
    constant: dict[str, Any] = {"NORM": int(quant.norm), "RAGGED": ragged}
    with on(x):
        segments.segments[(grid,)](
            x,
            x if residual is None else residual,
            out,
            scratch,
            x if table is None else table.segments,
            blocks.n,
            grid,
            block0,
            blocks.size,
            per_block,
            alpha,
            quant.clip,
            **constant,
            FEEDBACK=residual is not None,
            SINGLE=single,
            ROWS=ROWS,
            num_warps=2,
            **PRECISE,
        )
        if not single:
            starts, parts = (x, x) if table is None else (table.starts, table.parts)
            where = (blocks.n, grid, block0, blocks.size, per_block, quant.clip)
            segments.combine[(count,)](out, scratch, starts, parts, *where, **constant, num_warps=1, **PRECISE)

"""GpuKernels: what the tier launches for each pass. `kernels/base.py` says what the passes do."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

import torch
from torch import Tensor

from thinwire.kernels.base import Kernels
from thinwire.kernels.gpu import checks, decode, encode, passes, plan, scales, sums
from thinwire.kernels.key import Key
from thinwire.kernels.spec import CHECKED, COVERED, FLAGS, HEADER, TILE, Blocks, Norm, Quant

PRECISE = {"enable_fp_fusion": False}  # every operation rounds once, as in the reference
SOME = 1  # segments per program
WORDS = 2048  # summed per program
BYTES = 1024  # the same where they do not start at a word; more would take ptxas seconds
NB, WARPS = 8, 4  # tiles per program
NARROW = 4, 2  # the same for fields of one or two bits


@final
class GpuKernels(Kernels):
    """Triton, on CUDA tensors; under Triton's interpreter on CPU tensors."""

    name = "gpu"
    family = "gpu"

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
    ) -> Tensor | None:
        if not blocks.n:
            return None
        mode = plan.mode(quant, blocks, given=given)
        many, warps = NARROW if quant.width <= 2 else (NB, WARPS)
        parts = plan.parts(blocks.n, many)
        partial = x.new_empty(sum(part.grid for part in parts), dtype=torch.int64)
        if mode != plan.FUSED and not given and quant.norm is not Norm.NONE:
            self._scales(x, residual, alpha, quant, blocks, scales, 0)
        done, words = 0, _signed(key.words())
        with _on(x):
            for part in parts:
                how = mode
                if mode == plan.FUSED and not part.full:  # rows of a narrow tile are not whole blocks
                    how = plan.EQUAL
                    if quant.norm is not Norm.NONE:
                        self._scales(x, residual, alpha, quant, blocks, scales, part.tile0 * TILE // blocks.size)
                table = plan.table(blocks, x.device) if how == plan.RAGGED else None
                encode.encode[(part.grid,)](
                    x,
                    x if residual is None else residual,
                    scales if scales.numel() else x,
                    _as_words(codes),
                    partial[done:],
                    x if table is None else table.starts,
                    x if table is None else table.reach,
                    blocks.n,
                    part.tiles,
                    part.tile0,
                    part.lanes,
                    blocks.size,
                    first or 0,
                    *words,
                    alpha,
                    beta,
                    quant.lo,
                    quant.hi,
                    quant.clip,
                    KIND=int(quant.kind),
                    NORM=int(quant.norm),
                    LEVELS=quant.levels,
                    WIDTH=quant.width,
                    FRACTION=quant.fraction,
                    STOCHASTIC=plan.noisy(quant),
                    MODE=how,
                    SIZE=plan.constant(blocks) if how != plan.RAGGED else 0,
                    FEEDBACK=residual is not None,
                    SUM=first is not None,
                    FULL=part.full,
                    NB=part.per_program,
                    num_warps=warps if part.full else 1,
                    **PRECISE,
                )
                done += part.grid
        return None if first is None else partial

    def scales(self, x: Tensor, quant: Quant, blocks: Blocks) -> Tensor:
        out = x.new_empty(blocks.count * quant.scales, dtype=torch.float32)
        if blocks.n and quant.scales:
            self._scales(x, None, 1.0, quant, blocks, out, 0)
        return out

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
        self._decode([scales], [codes], quant, blocks, out, weight, fresh=fresh)

    def decode_mean(
        self,
        scales: Sequence[Tensor],
        codes: Sequence[Tensor],
        quant: Quant,
        blocks: Blocks,
        out: Tensor,
        weight: float,
    ) -> None:
        for at in range(0, len(codes), decode.MOST):
            some = slice(at, at + decode.MOST)
            self._decode(scales[some], codes[some], quant, blocks, out, weight, fresh=at == 0)

    def noise(self, key: Key, n: int) -> Tensor:
        out = torch.empty(n, dtype=torch.int64, device=_device())
        with _on(out):
            for part in plan.parts(n, NB):
                where = (n, part.tiles, part.tile0, part.lanes, *_signed(key.words()))
                passes.draw[(part.grid,)](out, *where, FULL=part.full, NB=part.per_program)
        return out

    def pack(self, codes: Tensor, width: int, out: Tensor) -> None:
        self._each(passes.pack, codes.numel(), width, codes, _as_words(out))

    def unpack(self, packed: Tensor, n: int, width: int) -> Tensor:
        out = packed.new_empty(n)
        self._each(passes.unpack, n, width, packed, out)
        return out

    def copy(self, x: Tensor, out: Tensor) -> bool:
        return bool(out.copy_(x).isfinite().all())

    def fold(self, codes: Tensor) -> None:
        self._fold(codes, back=False)

    def unfold(self, symbols: Tensor) -> None:
        self._fold(symbols, back=True)

    def total(self, data: Tensor, first: int = 0) -> Tensor:
        return self._sums(data, first).sum(0, keepdim=True)

    def seal(self, data: Tensor, header: bytes, tail: int = 0, partial: int | Tensor = 0) -> None:
        assert isinstance(partial, Tensor) or not tail
        checked = header[FLAGS] & CHECKED
        body = self._sums(data[HEADER : data.numel() - tail], HEADER // 4) if checked else data.new_empty(0).long()
        other = partial if isinstance(partial, Tensor) and checked else body[:0]
        counts = ((other, other.numel()), (body, body.numel()))
        words = struct.unpack(f"<{COVERED // 4}i", header)
        with _on(data):
            sums.seal[(1,)](data[:HEADER].view(torch.int32), *counts[0], *counts[1], *words, STEP=1024)

    def sealed(self, data: Tensor) -> bool:
        return not bool(self.damaged(data))

    def damaged(self, data: Tensor) -> Tensor:
        if data.data_ptr() % 4:
            return super().damaged(data)
        body, out = self._sums(data[HEADER:], HEADER // 4), data.new_empty(1, dtype=torch.int32)
        with _on(data):
            checks.wrong[(1,)](data[:HEADER].view(torch.int32), body, body.numel(), out, STEP=1024)
        return out

    def _decode(
        self,
        sides: Sequence[Tensor],
        codes: Sequence[Tensor],
        quant: Quant,
        blocks: Blocks,
        out: Tensor,
        weight: float,
        *,
        fresh: bool,
    ) -> None:
        if not blocks.n:
            return
        mode = plan.mode(quant, blocks, given=False)
        count, none = len(codes), decode.MOST - len(codes)
        scales = [side if side.numel() else out for side in sides]
        with _on(out):
            for part in plan.parts(blocks.n, NB):
                how = plan.EQUAL if mode == plan.FUSED and not part.full else mode
                table = plan.table(blocks, out.device) if how == plan.RAGGED else None
                decode.decode[(part.grid,)](
                    *scales,
                    *[scales[0]] * none,
                    *codes,
                    *[codes[0]] * none,
                    out,
                    out if table is None else table.starts,
                    out if table is None else table.reach,
                    blocks.n,
                    part.tiles,
                    part.tile0,
                    part.lanes,
                    blocks.size,
                    weight,
                    quant.lo,
                    quant.hi,
                    KIND=int(quant.kind),
                    NORM=int(quant.norm),
                    LEVELS=quant.levels,
                    WIDTH=quant.width,
                    MODE=how,
                    SIZE=plan.constant(blocks) if how != plan.RAGGED else 0,
                    COUNT=count,
                    FRESH=fresh,
                    FOLD=how == plan.FUSED and plan.folds(quant, blocks, weight, count),
                    FULL=part.full,
                    NB=part.per_program,
                    num_warps=WARPS if part.full else 1,
                    **PRECISE,
                )

    def _scales(
        self, x: Tensor, residual: Tensor | None, alpha: float, quant: Quant, blocks: Blocks, out: Tensor, block0: int
    ) -> None:
        """The scales of all blocks from `block0` on."""
        ragged = blocks.starts is not None
        table = plan.table(blocks, x.device) if ragged else None
        if table is not None:
            per_block, count, grid = 1, blocks.count, table.segments.shape[0]
            single = table.longest <= plan.SEGMENT
        else:
            per_block = -(-blocks.size // plan.SEGMENT)
            count = blocks.count - block0
            grid, single = count * per_block, per_block == 1
        scratch = x.new_empty(0 if single else 6 * grid, dtype=torch.float64)
        constant: dict[str, Any] = {"NORM": int(quant.norm), "RAGGED": ragged}
        with _on(x):
            scales.segments[(-(-grid // SOME),)](
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
                SOME=SOME,
                num_warps=2,
                **PRECISE,
            )
            if not single:
                starts, parts = (x, x) if table is None else (table.starts, table.parts)
                where = (blocks.n, block0, blocks.size, per_block, quant.clip)
                scales.combine[(count,)](out, scratch, starts, parts, *where, **constant, num_warps=1, **PRECISE)

    def _each(self, kernel: Any, n: int, width: int, source: Tensor, out: Tensor) -> None:
        with _on(source):
            for part in plan.parts(n, NB):
                where = (n, part.tiles, part.tile0, part.lanes)
                kernel[(part.grid,)](source, out, *where, WIDTH=width, FULL=part.full, NB=part.per_program)

    def _fold(self, codes: Tensor, *, back: bool) -> None:
        n = codes.numel()
        if n:
            with _on(codes):
                passes.fold[(-(-n // 4096),)](codes, n, BACK=back, SIZE=4096)

    def _sums(self, data: Tensor, first: int) -> Tensor:
        """Partial sums of bytes."""
        n = data.numel()
        cut = n // 4 * 4 if data.data_ptr() % 4 == 0 else 0  # words that can be read as such
        rest = -(-(n - cut) // BYTES)
        words = -(-cut // (4 * WORDS))
        partial = data.new_empty(words + rest, dtype=torch.int64)
        with _on(data):
            if words:
                sums.total[(words,)](data[:cut].view(torch.int32), partial, cut, first, WORDS=WORDS)
            if rest:
                where = (n - cut, first + cut // 4)
                sums.ragged_total[(rest,)](data[cut:], partial[words:], *where, BYTES=BYTES)
        return partial


def _device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def _on(x: Tensor) -> AbstractContextManager[object]:
    """Triton launches on the current device: make it that of the tensor."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def _signed(words: Sequence[int]) -> list[int]:
    """Words as int32, so that a launch always has the same types."""
    return [word - (1 << 32) if word >> 31 else word for word in words]


def _as_words(codes: Tensor) -> Tensor:
    """Bytes from an address that words may be stored to."""
    assert codes.data_ptr() % 4 == 0
    return codes[: codes.numel() // 4 * 4].view(torch.int32) if codes.numel() >= 4 else codes

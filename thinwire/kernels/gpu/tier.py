"""GpuKernels: what the tier launches for each pass. `kernels/base.py` says what the passes do."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor

from thinwire.kernels.base import Kernels
from thinwire.kernels.gpu import checks, decode, encode, launch, passes, plan, sums
from thinwire.kernels.gpu.butterfly import signed
from thinwire.kernels.key import Key
from thinwire.kernels.spec import CHECKED, COVERED, FLAGS, HEADER, TILE, Blocks, Quant

FEW = 1 << 16  # bytes that one program sums
BYTES = 1024  # summed per program where they do not start at a word; more would take ptxas seconds


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
        blocks = plan.plain(blocks)
        many, whole = launch.shape(quant.width, feedback=residual is not None)
        partial = x.new_empty(sum(part.grid for part in plan.parts(blocks.n, many)), dtype=torch.int64)
        done, words = 0, signed(key.words())
        with launch.on(x):
            for part, how in launch.scaled(x, residual, alpha, quant, blocks, scales, many, given=given):
                table = plan.table(blocks, x.device) if how == plan.RAGGED else None
                encode.encode[(part.grid,)](
                    x,
                    x if residual is None else residual,
                    scales if scales.numel() else x,
                    launch.as_words(codes),
                    partial[done:] if done else partial,
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
                    TURNED=launch.TURNED and part.full and how == plan.WHOLE and not given,
                    NB=part.per_program,
                    **(whole if part.full else {"num_warps": 1}),
                    **launch.PRECISE,
                )
                done += part.grid
        return None if first is None else partial

    def scales(self, x: Tensor, quant: Quant, blocks: Blocks) -> Tensor:
        out = x.new_empty(blocks.count * quant.scales, dtype=torch.float32)
        if blocks.n and quant.scales:
            launch.find_scales(x, None, 1.0, quant, plan.plain(blocks), out, 0)
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
        with launch.on(out):
            for part in plan.parts(n, launch.NB):
                where = (n, part.tiles, part.tile0, part.lanes, *signed(key.words()))
                passes.draw[(part.grid,)](out, *where, FULL=part.full, NB=part.per_program)
        return out

    def pack(self, codes: Tensor, width: int, out: Tensor) -> None:
        self._each(passes.pack, codes.numel(), width, codes, launch.as_words(out))

    def unpack(self, packed: Tensor, n: int, width: int) -> Tensor:
        out = packed.new_empty(n)
        self._each(passes.unpack, n, width, packed, out)
        return out

    def copy(self, x: Tensor, out: Tensor) -> bool:
        return bool(out.copy_(x).isfinite().all())

    def difference(self, a: Tensor, b: Tensor, out: Tensor, again: Tensor | None = None) -> bool:
        torch.sub(a, b, out=out)
        if again is not None:
            again.copy_(out)
        return bool(out.isfinite().all())

    def fold(self, codes: Tensor) -> None:
        self._fold(codes, back=False)

    def unfold(self, symbols: Tensor) -> None:
        self._fold(symbols, back=True)

    def total(self, data: Tensor, first: int = 0) -> Tensor:
        return self._sums(data, first).sum(0, keepdim=True)

    def seal(self, data: Tensor, header: bytes, tail: int = 0, partial: int | Tensor = 0) -> None:
        assert isinstance(partial, Tensor) or not tail
        checked = header[FLAGS] & CHECKED
        rest = data.numel() - HEADER - tail if checked else 0
        few = rest <= FEW and rest % 4 == 0  # words that the launch adds up itself
        none = data.new_empty(0, dtype=torch.int64)
        made = partial if isinstance(partial, Tensor) and checked else none
        body = none if few else self._sums(data[HEADER : HEADER + rest], HEADER // 4)
        others = (made, made.numel(), body, body.numel())
        words = struct.unpack(f"<{COVERED // 4}i", header)
        with launch.on(data):
            sums.seal[(1,)](launch.as_words(data), rest // 4 if few else 0, *others, *words, STEP=1024)

    def seal_all(self, payloads: Sequence[Tensor], headers: Sequence[bytes]) -> None:
        if any(data.data_ptr() % 16 or data.numel() < HEADER for data in payloads):
            super().seal_all(payloads, headers)
            return
        for at in range(0, len(payloads), checks.MOST):
            some, heads = payloads[at : at + checks.MOST], headers[at : at + checks.MOST]
            every, sizes = _in_one_launch(some)
            words = torch.frombuffer(bytearray(b"".join(head + bytes(4) for head in heads)), dtype=torch.int32)
            there = launch.taken_to(some[0].device, words)
            totals = some[0].new_zeros(len(some), dtype=torch.int64)
            with launch.on(totals):
                covered = [size if head[FLAGS] & CHECKED else 0 for size, head in zip(sizes, heads, strict=False)]
                sizes[: len(some)] = covered
                if any(covered):
                    grid = -(-max(sizes) // (4 * checks.WORDS))
                    checks.sums[(grid, len(some))](*every, *sizes, totals, SIZE=checks.WORDS)
                checks.seals[(len(some),)](*every, there, totals, num_warps=1)

    def sealed(self, data: Tensor) -> bool:
        return not bool(self.damaged([data]))

    def damaged(self, payloads: Sequence[Tensor]) -> Tensor:
        if any(data.data_ptr() % 16 for data in payloads):
            return super().damaged(payloads)
        found = []
        for at in range(0, len(payloads), checks.MOST):
            some = payloads[at : at + checks.MOST]
            count = len(some)
            totals, out = some[0].new_zeros((2, count), dtype=torch.int64)
            every, sizes = _in_one_launch(some)
            with launch.on(out):
                grid = -(-max(sizes) // (4 * checks.WORDS))
                checks.sums[(grid, count)](*every, *sizes, totals, SIZE=checks.WORDS)
                checks.verdicts[(count,)](*every, totals, out, num_warps=1)
            found.append(out)
        return found[0] if len(found) == 1 else torch.cat(found)

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
        blocks = plan.plain(blocks)
        count, none = len(codes), decode.MOST - len(codes)
        scales = [side if side.numel() else out for side in sides]
        every = (*scales, *[scales[0]] * none, *codes, *[codes[0]] * none)
        with launch.on(out):
            many, warps = launch.decode_shape(quant.width, count)
            for part, how in plan.passes(quant, blocks, many):
                table = plan.table(blocks, out.device) if how == plan.RAGGED else None
                found = (out, out) if table is None else (table.starts, table.reach)
                constants: dict[str, Any] = {
                    "KIND": int(quant.kind),
                    "NORM": int(quant.norm),
                    "LEVELS": quant.levels,
                    "WIDTH": quant.width,
                    "MODE": how,
                    "SIZE": plan.constant(blocks) if how != plan.RAGGED else 0,
                    "COUNT": count,
                    "NB": part.per_program,
                    "num_warps": warps if part.full else 1,
                    **launch.PRECISE,
                }
                if how != plan.FUSED or blocks.size < TILE:
                    constants["maxnreg"] = launch.FEW_REGISTERS
                where = (blocks.n, part.tiles, part.tile0, part.lanes, blocks.size, weight, quant.lo, quant.hi)
                decode.decode[(part.grid,)](*every, out, *found, *where, FRESH=fresh, FULL=part.full, **constants)

    def _each(self, kernel: Any, n: int, width: int, source: Tensor, out: Tensor) -> None:
        with launch.on(source):
            for part in plan.parts(n, launch.NB):
                where = (n, part.tiles, part.tile0, part.lanes)
                kernel[(part.grid,)](source, out, *where, WIDTH=width, FULL=part.full, NB=part.per_program)

    def _fold(self, codes: Tensor, *, back: bool) -> None:
        n = codes.numel()
        if n:
            with launch.on(codes):
                passes.fold[(-(-n // 4096),)](codes, n, BACK=back, SIZE=4096)

    def _sums(self, data: Tensor, first: int) -> Tensor:
        """Partial sums of bytes."""
        n = data.numel()
        cut = n // 4 * 4 if data.data_ptr() % 4 == 0 else 0  # words that can be read as such
        rest = -(-(n - cut) // BYTES)
        words = -(-cut // (4 * checks.WORDS))
        partial = data.new_empty(words + rest, dtype=torch.int64)
        with launch.on(data):
            if words:
                sums.total[(words,)](data[:cut].view(torch.int32), partial, cut, first, WORDS=checks.WORDS)
            if rest:
                where = (n - cut, first + cut // 4)
                sums.ragged_total[(rest,)](data[cut:], partial[words:], *where, BYTES=BYTES)
        return partial


def _in_one_launch(payloads: Sequence[Tensor]) -> tuple[list[Tensor], list[int]]:
    """The words of payloads, and their sizes in bytes, as `checks` is given them: always `MOST` of each."""
    none = checks.MOST - len(payloads)
    words = [launch.as_words(data) for data in payloads]
    return [*words, *[words[0]] * none], [*(data.numel() for data in payloads), *[0] * none]


def _device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")

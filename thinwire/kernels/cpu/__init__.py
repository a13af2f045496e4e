"""The C++ tier: one set of passes, compiled for AVX-512, AVX2 and any CPU, chosen at run time.

The sources beside this file take plain addresses, hold no Python objects and release the GIL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import torch

from thinwire.kernels.base import Kernels
from thinwire.kernels.checksum import MASK64
from thinwire.kernels.spec import packed_bytes

try:
    import thinwire.kernels.cpu._cpu as _cpu
except ModuleNotFoundError:
    raise ImportError(
        f"{__path__[0]} holds the sources of thinwire's C++ kernels and no compiled module: start Python in another "
        "folder than the clone if you ran `pip install .`, or write `pip install -e .` in the clone"
    ) from None

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.kernels.key import Key
    from thinwire.kernels.spec import Blocks, Quant

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
VECTORS = {"avx512": 2, "avx2": 1, "portable": 0}


def tiers() -> dict[str, Kernels]:
    """The instruction sets of this machine, fastest first."""
    return {f"cpu-{isa}": CpuKernels(isa) for isa in _cpu.available()}


def _blocks(blocks: Blocks) -> tuple[int, int, int, int]:
    starts = 0 if blocks.starts is None else blocks.starts.data_ptr()
    return blocks.n, blocks.size, starts, blocks.count


def _check(tensor: Tensor, dtype: torch.dtype, numel: int) -> int:
    """The tensor's address, after checking that C++ may use it."""
    if tensor.dtype != dtype or not tensor.is_cpu or not tensor.is_contiguous() or tensor.numel() < numel:
        raise ValueError(
            f"the C++ kernels need a contiguous CPU tensor of {dtype} with at least {numel} elements; "
            f"got {tensor.dtype} on {tensor.device}, shape {tuple(tensor.shape)}, strides {tensor.stride()}"
        )
    return tensor.data_ptr()


@final
class CpuKernels(Kernels):
    """The passes for one instruction set."""

    family = "cpu"

    def __init__(self, isa: str) -> None:
        self.isa = isa
        self.name = f"cpu-{isa}"
        self.vectors = VECTORS[isa]

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
        total = _cpu.encode(
            self.isa,
            quant.numbers,
            *_blocks(blocks),
            key.words(),
            _check(x, x.dtype, blocks.n),
            DTYPES[x.dtype],
            0 if residual is None else _check(residual, torch.float32, blocks.n),
            alpha,
            beta,
            _check(scales, torch.float32, blocks.count * quant.scales),
            given,
            _check(codes, torch.uint8, quant.code_bytes(blocks.n)),
            first is not None,
            first or 0,
            torch.get_num_threads(),
        )
        return None if first is None else total

    def scales(self, x: Tensor, quant: Quant, blocks: Blocks) -> Tensor:
        out = torch.empty(blocks.count * quant.scales)
        if out.numel():
            address = _check(x, x.dtype, blocks.n)
            arguments = (address, DTYPES[x.dtype], out.data_ptr(), torch.get_num_threads())
            _cpu.scales(self.isa, quant.numbers, *_blocks(blocks), *arguments)
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
        _cpu.decode_add(
            self.isa,
            quant.numbers,
            *_blocks(blocks),
            _check(scales, torch.float32, blocks.count * quant.scales),
            _check(codes, torch.uint8, quant.code_bytes(blocks.n)),
            _check(out, torch.float32, blocks.n),
            weight,
            fresh,
            torch.get_num_threads(),
        )

    def noise(self, key: Key, n: int) -> Tensor:
        out = torch.empty(n, dtype=torch.uint32)
        _cpu.noise(self.isa, key.words(), n, out.data_ptr(), torch.get_num_threads())
        return out.to(torch.int64)

    def pack(self, codes: Tensor, width: int, out: Tensor) -> None:
        n = codes.numel()
        _cpu.pack(
            self.isa,
            _check(codes, torch.uint8, n),
            n,
            width,
            _check(out, torch.uint8, packed_bytes(n, width)),
        )

    def unpack(self, packed: Tensor, n: int, width: int) -> Tensor:
        out = torch.empty(n, dtype=torch.uint8)
        _cpu.unpack(self.isa, _check(packed, torch.uint8, packed_bytes(n, width)), n, width, out.data_ptr())
        return out

    def copy(self, x: Tensor, out: Tensor) -> bool:
        n = out.numel()
        addresses = _check(x, torch.float32, n), n, _check(out, torch.float32, n)
        return _cpu.copy(self.isa, *addresses, torch.get_num_threads())

    def difference(self, a: Tensor, b: Tensor, out: Tensor, again: Tensor | None = None) -> bool:
        n = out.numel()
        inputs = _check(a, torch.float32, n), _check(b, torch.float32, n), n
        too = 0 if again is None else _check(again, torch.float32, n)
        return _cpu.difference(self.isa, *inputs, _check(out, torch.float32, n), too, torch.get_num_threads())

    def fold(self, codes: Tensor) -> None:
        _cpu.fold(_check(codes, torch.uint8, 0), codes.numel())

    def unfold(self, symbols: Tensor) -> None:
        _cpu.unfold(_check(symbols, torch.uint8, 0), symbols.numel())

    def total(self, data: Tensor, first: int = 0) -> int | Tensor:
        return _cpu.total(self.isa, _check(data, torch.uint8, 0), data.numel(), first, torch.get_num_threads())

    def seal(self, data: Tensor, header: bytes, tail: int = 0, partial: int | Tensor = 0) -> None:
        address = _check(data, torch.uint8, 0)
        _cpu.seal(self.isa, address, data.numel(), header, tail, int(partial) & MASK64, torch.get_num_threads())

    def sealed(self, data: Tensor) -> bool:
        return _cpu.sealed(self.isa, _check(data, torch.uint8, 0), data.numel(), torch.get_num_threads())

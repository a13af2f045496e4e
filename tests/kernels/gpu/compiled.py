"""Compiles for a GPU what calls on CPU tensors would launch, on a machine that has none; prints what it compiled.

Triton's interpreter runs Python, where a variable may change its type; the compiler refuses that, and much else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler import compile as compiled

from thinwire import Key, Layout, compressors, kernels
from thinwire.core.compressor import FusedCompressor
from thinwire.kernels.gpu import rans
from thinwire.kernels.gpu.ready import Ready

TYPES = {
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.int16: "*i16",
    torch.uint16: "*u16",
    torch.uint8: "*u8",
    torch.float64: "*fp64",
    torch.float32: "*fp32",
}
HOPPER = GPUTarget("cuda", 90, 32)
METHODS = ("qsgd:bits=1", "qsgd:bits=2", "qsgd:bits=4", "scaled-sign", "natural-dithering:levels=8")
seen: set[str] = set()


def compiles(self: Ready, grid: tuple[int, ...]) -> Callable[..., None]:
    """In place of a launch."""

    def run(*args: Any, **named: Any) -> None:
        kernel = self.kernel
        given = {**dict(zip(kernel.arg_names, args, strict=False)), **named}
        signature: dict[str, str] = {}
        constants, attributes = {}, {}
        for at, parameter in enumerate(kernel.params):
            value = given.pop(parameter.name)
            if parameter.is_constexpr:
                signature[parameter.name], constants[at,] = "constexpr", value
            elif isinstance(value, Tensor):
                signature[parameter.name] = TYPES[value.dtype]
                if value.data_ptr() % 16 == 0:
                    attributes[at,] = [["tt.divisibility", 16]]
            else:
                signature[parameter.name] = "fp32" if isinstance(value, float) else "i32"
        what = f"{kernel.fn.__name__} {constants}"
        if what not in seen:
            seen.add(what)
            compiled(ASTSource(kernel, signature, constants, attributes), target=HOPPER, options=given)
            print(what, flush=True)

    return run


def main() -> None:
    """Codes, checksums, and some quantisers."""
    Ready.__getitem__ = compiles  # type: ignore[method-assign]
    x, layout, key = torch.zeros(2000), Layout.flat(2000), Key()
    with kernels.force("gpu"):
        for text in METHODS:
            c = compressors.get(text)
            assert isinstance(c, FusedCompressor)
            body = torch.zeros(c.nbytes(layout), dtype=torch.uint8)
            c.write_fused(x, layout, key, body, residual=x.clone(), checksum=True)
            c.put_all([body] * 3, layout, x, 1 / 3)
        for n, width in ((3_000_000, 3), (1000, 4), (100_000, 8)):
            symbols, data = torch.zeros(n, dtype=torch.uint8), torch.zeros(n + 64, dtype=torch.uint8)
            rans.encode([symbols, symbols], width, [data, data])
            rans.decode([data, data], width, [symbols, symbols])
        tier = kernels.get("gpu")
        payloads = [torch.zeros(1000, dtype=torch.uint8)] * 3
        tier.seal_all(payloads, [b"\xff" * 28] * 3)
        tier.damaged(payloads)


if __name__ == "__main__":
    main()

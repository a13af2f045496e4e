"""Compiles for a GPU what calls on CPU tensors would launch, on a machine that has none; prints what it compiled.

Triton's interpreter runs Python, where a variable may change its type; the compiler refuses that, and much else. Here
Triton itself looks at the arguments of every launch, as before a real one: their types, which are multiples of 16,
and which are 1. Nothing runs, so results are whatever was in memory, and no call may depend on them.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from thinwire import Key, Layout, compressors, kernels
from thinwire.compressors import Drive, Eden
from thinwire.core.compressor import FusedCompressor
from thinwire.core.relay import Relaying
from thinwire.kernels import gpu
from thinwire.kernels.gpu import dct, hadamard, minifloat, rans, rotated_codes, selection
from thinwire.kernels.gpu.ready import Ready
from thinwire.kernels.hadamard import Blocking, streams

METHODS = (
    *("qsgd:bits=1", "qsgd:bits=2", "qsgd:bits=4", "scaled-sign", "natural-dithering:levels=8"),
    *("float:format=e4m3", "float:format=e5m2", "float:format=e2m1"),
)
N = 2000  # elements: full tiles, and a narrow one
KEY = Key(seed=2**40 + 3)
SHARED = 227 << 10  # bytes of shared memory that a program can have


class Hopper:
    """What Triton asks of a driver before it compiles."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


class Variant:
    """A compiled kernel. `Ready` starts it again only where Triton, too, would have taken it."""

    def __init__(self, kernel: Any, compiled: Any, options: dict[str, Any]) -> None:
        self.kernel, self.compiled, self.options = kernel, compiled, options

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def start(*args: Any) -> None:
            again = self.kernel.run(*args, grid=grid, warmup=True, **self.options)
            assert again is self.compiled, f"{self.kernel.fn.__name__}: the wrong variant"

        return start


seen: dict[Any, set[int]] = {}


def compiles(self: Any, grid: tuple[int, ...]) -> Callable[..., Variant]:
    """In place of a launch."""

    def run(*args: Any, **named: Any) -> Variant:
        compiled = self.run(*args, grid=grid, warmup=True, **named)
        if id(compiled) not in seen.setdefault(self, set()):
            seen[self].add(id(compiled))
            assert compiled.metadata.shared <= SHARED, f"{self.fn.__name__}: {compiled.metadata.shared} bytes"
            print(self.fn.__name__, named, flush=True)
        return Variant(self, compiled, {name: value for name, value in named.items() if name not in self.arg_names})

    return run


def every_kernel() -> Iterator[Any]:
    """Those of the package that are launched: no other calls them."""
    modules = [importlib.import_module(f"{gpu.__name__}.{one.name}") for one in pkgutil.iter_modules(gpu.__path__)]
    values = [value for module in modules for value in vars(module).values()]
    kernels_ = [value.kernel if isinstance(value, Ready) else value for value in values]
    functions = {one for one in kernels_ if isinstance(one, JITFunction)}
    called = {one.__globals__.get(name) for one in functions for name in one.fn.__code__.co_names}
    return (one for one in functions if one.__module__.startswith(gpu.__name__) and one not in called)


def quantise() -> None:
    """Payloads, their means, and means that are encoded again."""
    x, layout = torch.zeros(N), Layout.flat(N)
    for text in METHODS:
        c = compressors.get(text)
        assert isinstance(c, FusedCompressor)
        body = torch.zeros(c.nbytes(layout), dtype=torch.uint8)
        c.write_fused(x, layout, KEY, body, residual=x.clone(), checksum=True)
        c.put_all([body] * 3, layout, x, 1 / 3)
    for text in METHODS[0], METHODS[-1]:
        c = compressors.get(text)
        body = torch.zeros(c.nbytes(layout), dtype=torch.uint8)
        c.write(x.bfloat16(), layout, KEY, body)
        c.add(body, layout, KEY, x, 1.0)
    up = compressors.get("qsgd:bits=4")
    assert isinstance(up, Relaying)
    body = torch.zeros(up.nbytes(layout), dtype=torch.uint8)
    up.write_mean([body] * 2, 0.5, up, layout, KEY, body.clone(), residual=x, checksum=True)
    tensors = Layout(("a", "b"), ((70_000,), (80_000,)))  # more than a program sums
    ragged = compressors.get("scaled-sign")
    ragged.write(torch.zeros(tensors.numel), tensors, KEY, torch.zeros(ragged.nbytes(tensors), dtype=torch.uint8))


def code() -> None:
    """Frames of rANS: of narrow symbols so many that they are joined."""
    for n, width in ((2_200_000, 1), (1_100_000, 2), (3_000_000, 3), (1000, 4), (100_000, 8)):
        symbols, data = torch.zeros(n, dtype=torch.uint8), torch.zeros(n + 64, dtype=torch.uint8)
        rans.encode([symbols, symbols], width, [data, data])
        rans.decode([data, data], width, [symbols, symbols])


def seal() -> None:
    """Checksums, one by one and together, and the small passes."""
    tier = kernels.get("gpu")
    for n in (1000, 1001, 1 << 17):
        payloads = [torch.zeros(n, dtype=torch.uint8)] * 3
        tier.seal(payloads[0], b"\xff" * 28)
        tier.seal_all(payloads, [b"\xff" * 28] * 3)
        tier.damaged(payloads)
    codes = torch.zeros(N, dtype=torch.uint8)
    tier.pack(codes, 3, torch.zeros(N, dtype=torch.uint8))
    tier.unpack(codes, N, 3)
    tier.fold(codes)
    tier.unfold(codes)
    tier.noise(KEY, N)


def rotate() -> None:
    """Rotations, codes of rotated blocks, and the DCT."""
    for cut, rotations in ((Blocking(4700, 4096, 512), 2), (Blocking(40_000, 1 << 14, 512), 1)):
        x, words = torch.zeros(cut.n), streams(KEY, rotations)
        unit = hadamard.unit(x)
        hadamard.unrotate_add(hadamard.rotate(x, cut, words, 1 / unit), cut, words, x, unit, 0.5)
        for c in (Drive(), Eden(bits=1.5)):
            codes, scales = rotated_codes.encode(x, cut, words, unit, c.tables, biased=False)
            rotated_codes.decode_add(codes, scales, cut, words, c.tables, x, 0.5)
    hadamard.hadamard(torch.zeros(1 << 13), 1 << 13)
    for m, n in ((64, 64), (5, 12)):
        dct.sandwich(torch.zeros(m, m), torch.zeros(3, m, n), torch.zeros(n, n))


def choose() -> None:
    """The largest elements, of short vectors and of one that is worth a sample."""
    for n, k in ((5000, 40), (1 << 22, 4000)):
        selection.top(torch.zeros(n), k)
    for block, k in ((64, 3), (5000, 40)):
        selection.top_blocks(torch.zeros(10_000), block, k, 10_000 // block * k)
    selection.add_at(torch.zeros(N), torch.zeros(9, dtype=torch.int64), torch.zeros(9), 0.5)


def main() -> None:
    """Every kernel, as the host launches it."""
    driver.set_active(Hopper())
    JITFunction.__getitem__ = compiles
    minifloat._native = lambda device: True  # type: ignore[assignment]
    with kernels.force("gpu"):
        for some in (quantise, code, seal, rotate, choose):
            some()
    missing = sorted(one.fn.__name__ for one in every_kernel() if one not in seen)
    assert not missing, f"compiled nowhere: {missing}"


if __name__ == "__main__":
    main()

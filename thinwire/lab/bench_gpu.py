"""The kernels on a GPU against a copy on the same GPU, in the same run.

A copy of n floats moves 8n bytes. `bytes` is what a kernel must move, P the bytes of a payload's body:

    encode       4n + P    (with the codes' part of the checksum)
    encode_ef   12n + P    (x, and the residual in and out)
    decode_add   8n + P
    mean8        4n + 8P   (eight payloads, each in memory of its own)
    mean_encode  3P        (the mean of two of them encoded again in one pass, where the tier has one)
    mean_then_encode  8n + 3P   (the same with a mean that is written and read)
    hadamard     8n        (in place)
    dct          8n

Where a scale belongs to more elements than a tile holds, or to a ragged block, it must be known before the first
element is rounded: then x is read twice, and so is the residual, and `bytes` counts both reads (4n or 8n more).
`gbps` is bytes over time, `copy_gbps` the same for the copy, and `ratio` their quotient. Selection reads 4n bytes and
writes little, and rANS codes n symbols of one byte: these stand against 4n, the bytes that a copy reads.

Each figure is the median of runs that take turns with copies, by the GPU's own clock. Before every timed run some
copies are not timed: they keep the GPU busy while the host queues the run, and leave nothing of its data in cache.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire import compressors, kernels
from thinwire.codecs import Rans
from thinwire.compressors import MiniFloat
from thinwire.compressors.block import KernelCompressor
from thinwire.core.coded import SymbolCompressor
from thinwire.core.compressor import FusedCompressor
from thinwire.core.types import Key, Layout
from thinwire.kernels import selection
from thinwire.kernels.dct import dct
from thinwire.kernels.hadamard import hadamard
from thinwire.kernels.spec import TILE, Norm
from thinwire.lab import bench_kernels
from thinwire.lab.records import Row, quantiles

SIZE = 1 << 26  # 256 MB, so that caches hold little of it
METHODS = (
    *(name for name in bench_kernels.METHODS if name.partition(":")[0] not in bench_kernels.ALONE),
    "one-bit",
    *(f"float:format={name},block=32" for name in ("e4m3", "e5m2", "e2m1")),
    *(name for name in bench_kernels.METHODS if name.partition(":")[0] in bench_kernels.ALONE),
    "dct:chunk=64",
)
WARM = 5  # runs before the first that counts, for the compiler
BEFORE = 16  # copies before a timed run: a millisecond, in which the host queues even an entropy code
PAYLOADS, FEW = 8, 2  # of a mean; of one that is encoded again, which pays for few

Run = Callable[[], object]
Clock = Callable[[Run], Callable[[], float]]
"""Runs something, and returns what will say how many seconds it took."""


@dataclass(frozen=True)
class _Case:
    kernel: str
    run: Run
    moved: float  # bytes
    against: float  # the bytes of a copy that count
    most: int | None = None  # timed runs, where it is slow


def events(run: Run) -> Callable[[], float]:
    """The GPU's clock."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    run()
    end.record()

    def seconds() -> float:
        end.synchronize()
        return 1e-3 * float(start.elapsed_time(end))

    return seconds


def check(device: str) -> torch.device:
    """The GPU called `device`; raises ValueError where there is none."""
    names = ["cuda", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    if not torch.cuda.is_available() or device not in names:
        raise ValueError(f"no GPU called '{device}' on this machine; write --device cpu, or leave it out")
    return torch.device(device if ":" in device else "cuda:0")


def bench(
    size: int, methods: Sequence[str], backends: Sequence[str], repeats: int, device: torch.device, clock: Clock
) -> Iterator[Row]:
    """One row for each kernel, method and backend."""
    x = torch.randn(size, generator=torch.Generator().manual_seed(0)).to(device)
    target = torch.empty_like(x)
    name = torch.cuda.get_device_name(device) if x.is_cuda else device.type
    for backend in backends:
        with torch.cuda.device(device) if x.is_cuda else nullcontext(), kernels.force(backend) as tier:
            for text in methods:
                for row in _measure(text, x, target, repeats, clock):
                    yield {"device": name, "backend": tier.name, **row}


def _hadamard(block: str, x: Tensor) -> Iterator[_Case]:
    size = int(block.removeprefix("block=") or 4096)
    buffer = x[:1].repeat(-(-x.numel() // size) * size)  # whole blocks; the transform is its own inverse
    yield _Case("hadamard", lambda: hadamard(buffer, size), 8.0 * buffer.numel(), 8.0 * x.numel())


def _dct(chunk: str, x: Tensor) -> Iterator[_Case]:
    size = int(chunk.removeprefix("chunk=") or 64)
    chunks = torch.zeros(-(-x.numel() // size**2), size, size, device=x.device)  # may be overwritten: zeros stay
    yield _Case("dct", lambda: dct(chunks), 8.0 * chunks.numel(), 8.0 * x.numel())


def _rans(settings: str, x: Tensor) -> Iterator[_Case]:
    c, layout = compressors.get(f"qsgd:{settings}" if settings else "qsgd:levels=4,norm=l2"), Layout.flat(x.numel())
    assert isinstance(c, SymbolCompressor)
    codec, n = Rans(), x.numel()
    side = torch.empty(c.side_bytes(layout), dtype=torch.uint8, device=x.device)
    symbols = c.write_symbols(x, layout, Key(seed=1), side).contiguous()
    room = torch.empty(codec.bound(n, c.width), dtype=torch.uint8, device=x.device)
    data, back = room[: codec.write(symbols, c.width, room)].clone(), torch.empty_like(symbols)
    yield _Case("rans_encode", lambda: codec.begin_write(symbols, c.width, room), 1.0 * n, 4.0 * n)
    yield _Case("rans_decode", lambda: codec.begin_read(data, c.width, back), 1.0 * n, 4.0 * n)


def _topk(settings: str, x: Tensor) -> Iterator[_Case]:
    c = compressors.get(f"topk:{settings}" if settings else "topk")
    assert isinstance(c, compressors.TopK)
    k, nbytes = c.most(x.numel()), 4.0 * x.numel()
    yield _Case("topk", lambda: selection.top(x, k), nbytes, nbytes)
    yield _Case("torch.topk", lambda: torch.topk(x.abs(), k), nbytes, nbytes, most=3)


def _block_topk(settings: str, x: Tensor) -> Iterator[_Case]:
    c = compressors.get(f"block-topk:{settings}" if settings else "block-topk")
    assert isinstance(c, compressors.BlockTopK)
    nbytes = 4.0 * x.numel()
    yield _Case("block_topk", lambda: selection.top_blocks(x, c.block, c.k), nbytes, nbytes)


ALONE: dict[str, Callable[[str, Tensor], Iterator[_Case]]] = {
    "block-topk": _block_topk,
    "dct": _dct,
    "hadamard": _hadamard,
    "rans": _rans,
    "topk": _topk,
}
"""Kernels that are not compressors, by the word before the colon; they are given what follows it."""


def read_twice(c: FusedCompressor, layout: Layout) -> bool:
    """Whether encoding reads x once for the scales and once more to round.

    >>> [read_twice(compressors.get(c), Layout.flat(4096)) for c in ("int:block=512", "int:block=1024", "natural")]
    [False, True, False]
    """
    if isinstance(c, MiniFloat):
        return TILE % min(c.block or layout.numel, layout.numel) != 0
    assert isinstance(c, KernelCompressor)
    blocks, norm = c.blocks(layout), c.quant.norm
    if norm is Norm.NONE:
        return False
    return blocks.starts is not None or TILE % blocks.size != 0 or norm is Norm.SIDES


def _cases(text: str, x: Tensor) -> Iterator[_Case]:
    name, _, settings = text.partition(":")
    if name in ALONE:
        yield from ALONE[name](settings, x)
        return
    c = compressors.get(text)
    if not isinstance(c, FusedCompressor):
        raise ValueError(f"{text} has no kernel of its own to time; write one of {', '.join(METHODS)}")
    n, layout, key = x.numel(), Layout.flat(x.numel()), Key(seed=1)
    size = c.nbytes(layout)
    again, copy = 4.0 * n * read_twice(c, layout), 8.0 * n
    bodies = [torch.empty(size, dtype=torch.uint8, device=x.device) for _ in range(PAYLOADS)]
    out, residual = torch.zeros_like(x), torch.zeros_like(x)
    for rank, body in enumerate(bodies):
        c.write(x, layout, Key(seed=1, rank=rank), body)
    body, other = bodies[0], torch.empty_like(bodies[0])
    yield _Case("encode", lambda: c.write_fused(x, layout, key, other, checksum=True), 4.0 * n + size + again, copy)
    yield _Case(
        "encode_ef",
        lambda: c.write_fused(x, layout, key, other, residual=residual, checksum=True),
        12.0 * n + size + 2 * again,
        copy,
    )
    yield _Case("decode_add", lambda: c.add(body, layout, key, out, 0.25), 8.0 * n + size, copy)
    weight = 1.0 / PAYLOADS
    yield _Case("mean8", lambda: c.put_all(bodies, layout, out, weight), 4.0 * n + PAYLOADS * size, copy)
    if isinstance(c, KernelCompressor):
        yield from _relayed(c, bodies[:FEW], other, layout, out)


def _relayed(c: KernelCompressor, bodies: list[Tensor], body: Tensor, layout: Layout, out: Tensor) -> Iterator[_Case]:
    """The mean encoded again: as the kernels do it, and with a mean that is written and read."""
    n, key, weight, moved = layout.numel, Key(seed=1), 1.0 / len(bodies), float((len(bodies) + 1) * body.numel())
    if not c.joins(len(bodies), c, layout, out):
        return

    def two_passes() -> None:
        c.put_all(bodies, layout, out, weight)
        c.write_fused(out, layout, key, body, checksum=True)

    def one_pass() -> None:
        c.write_mean(bodies, weight, c, layout, key, body, checksum=True)

    yield _Case("mean_encode", one_pass, moved, 8.0 * n)
    yield _Case("mean_then_encode", two_passes, moved + 8.0 * n, 8.0 * n)


def _measure(text: str, x: Tensor, target: Tensor, repeats: int, clock: Clock) -> Iterator[Row]:
    """A copy and every kernel in shuffled turns."""
    copy = _Case("copy", lambda: target.copy_(x), 8.0 * x.numel(), 8.0 * x.numel())
    cases = [copy, *_cases(text, x)]
    readings: dict[str, list[Callable[[], float]]] = {case.kernel: [] for case in cases}
    for case in cases:
        for _ in range(WARM if case.most is None else 1):
            case.run()
    order = random.Random(0)
    for turn in range(repeats):
        for case in order.sample(cases, len(cases)):
            if case.most is not None and turn >= case.most:
                continue
            for _ in range(BEFORE):
                target.copy_(x)
            readings[case.kernel].append(clock(case.run))
    times = {kernel: quantiles([read() for read in some]) for kernel, some in readings.items()}
    for case in cases[1:]:
        low, median, high = times[case.kernel]
        gbps, copy_gbps = case.moved / median / 1e9, case.against / times["copy"][1] / 1e9
        yield {
            "kernel": case.kernel,
            "method": text,
            "bytes": round(case.moved),
            "gbps": round(gbps, 1),
            "copy_gbps": round(copy_gbps, 1),
            "ratio": round(gbps / copy_gbps, 3),
            "ms_p20": round(1e3 * low, 4),
            "ms_p50": round(1e3 * median, 4),
            "ms_p80": round(1e3 * high, 4),
        }

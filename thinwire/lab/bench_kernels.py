"""The kernels against a memory copy of the same input, in the same run.

A copy of n floats reads 4n bytes and writes 4n. `copy_gbps` is 4n over its time. `gbps` of encode, of decode_add and
of their +checksum forms is 4n over theirs, so `ratio` is copy time / kernel time. encode_ef must move x, the residual
twice and the fields, 12n bytes and more; its `gbps` is half of these bytes over its time, so that `ratio` is
a comparison with a copy that moves as many. `hadamard:block=B` is the Walsh-Hadamard transform of blocks in place: it
reads 4n bytes and writes 4n. `rans:...` codes the one-byte symbols of QSGD with these settings; its `gbps` is n bytes
over the time. `topk:ratio=R` selects places and values of the largest magnitudes; beside it stands torch.topk of the
magnitudes, of which three runs are timed. Each figure is the median of runs that take turns with copies, each after
an untimed run of its own.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire import compressors, kernels
from thinwire.codecs import Rans, rans
from thinwire.core.coded import SymbolCompressor
from thinwire.core.compressor import FusedCompressor, scheme
from thinwire.core.payload import Payload
from thinwire.core.types import Key, Layout
from thinwire.kernels import selection
from thinwire.kernels.hadamard import hadamard
from thinwire.lab.records import Row, quantiles

METHODS = (
    "qsgd:bits=1",
    "qsgd:bits=2",
    "qsgd:bits=4",
    "qsgd:bits=8",
    "qsgd:bits=4,norm=l2",
    "qsgd:bits=1,symmetric=false",
    "int:bits=8",
    "int:bits=4,block=128",
    "scaled-sign",
    "terngrad:clip=none",
    "natural",
    "natural-dithering:levels=8",
    "hadamard:block=1024",
    "hadamard:block=65536",
    "rans:levels=4,norm=l2",
    "rans:bits=4",
    "topk:ratio=0.01",
    "block-topk",
)


@dataclass(frozen=True)
class _Case:
    kernel: str
    run: Callable[[], object]
    counted: float  # the bytes that stand against a copy's 4n
    most: int | None = None  # timed runs, where it is slow


def bench(
    size: int, methods: Sequence[str], backends: Sequence[str], threads: Sequence[int], repeats: int
) -> Iterator[Row]:
    """One row for each kernel, method, backend and number of threads."""
    x = torch.randn(size, generator=torch.Generator().manual_seed(0))
    target = torch.empty_like(x)
    before = torch.get_num_threads()
    try:
        for count in threads:
            torch.set_num_threads(count)
            for backend in backends:
                with kernels.force(backend) as tier:
                    for text in methods:
                        yield from _measure(text, tier.name, count, x, target, repeats)
    finally:
        torch.set_num_threads(before)


def _hadamard(block: str, x: Tensor) -> Iterator[_Case]:
    size = int(block.removeprefix("block=") or 4096)
    buffer = x[:1].repeat(-(-x.numel() // size) * size)  # whole blocks; the transform is its own inverse
    yield _Case("hadamard", lambda: hadamard(buffer, size), 4.0 * buffer.numel())


def _rans(settings: str, x: Tensor) -> Iterator[_Case]:
    c, layout = compressors.get(f"qsgd:{settings}" if settings else "qsgd:levels=4,norm=l2"), Layout.flat(x.numel())
    assert isinstance(c, SymbolCompressor)
    side = torch.empty(c.side_bytes(layout), dtype=torch.uint8)
    symbols = c.write_symbols(x, layout, Key(seed=1), side).contiguous()
    room, back = torch.empty(Rans().bound(x.numel(), 8), dtype=torch.uint8), torch.empty_like(symbols)
    data = room[: rans.encode(symbols, room)].clone()
    yield _Case("rans_encode", lambda: rans.encode(symbols, room), 1.0 * x.numel())
    yield _Case("rans_decode", lambda: rans.decode(data, back, c.width), 1.0 * x.numel())


def _topk(settings: str, x: Tensor) -> Iterator[_Case]:
    c = compressors.get(f"topk:{settings}" if settings else "topk")
    assert isinstance(c, compressors.TopK)
    k = c.most(x.numel())
    yield _Case("topk", lambda: selection.top(x, k), 4.0 * x.numel())
    yield _Case("torch.topk", lambda: torch.topk(x.abs(), k), 4.0 * x.numel(), most=3)


def _block_topk(settings: str, x: Tensor) -> Iterator[_Case]:
    c = compressors.get(f"block-topk:{settings}" if settings else "block-topk")
    assert isinstance(c, compressors.BlockTopK)
    yield _Case("block_topk", lambda: selection.top_blocks(x, c.block, c.k), 4.0 * x.numel())


ALONE: dict[str, Callable[[str, Tensor], Iterator[_Case]]] = {
    "block-topk": _block_topk,
    "hadamard": _hadamard,
    "rans": _rans,
    "topk": _topk,
}
"""Kernels that are not compressors, by the word before the colon; they are given what follows it."""


def _cases(text: str, x: Tensor) -> Iterator[_Case]:
    name, _, settings = text.partition(":")
    if name in ALONE:
        yield from ALONE[name](settings, x)
        return
    c = compressors.get(text)
    if not isinstance(c, FusedCompressor):
        raise ValueError(f"{text} has no kernel of its own to time; write one of {', '.join(METHODS)}")
    layout, key = Layout.flat(x.numel()), Key(seed=1)
    payload = Payload.new(c.nbytes(layout))
    body, nbytes = payload.body, 4.0 * x.numel()
    out, residual, other = torch.zeros_like(x), torch.zeros_like(x), torch.empty_like(body)

    def sealed() -> None:
        payload.seal(scheme(c, layout), key, tail=c.write_fused(x, layout, key, body, checksum=True))

    def opened() -> None:
        payload.open(scheme(c, layout))
        c.add(body, layout, key, out, 0.25)

    sealed()
    yield _Case("encode", lambda: c.write(x, layout, key, body), nbytes)
    yield _Case("encode+checksum", sealed, nbytes)
    yield _Case("decode_add", lambda: c.add(body, layout, key, out, 0.25), nbytes)
    yield _Case("decode_add+checksum", opened, nbytes)
    yield _Case(
        "encode_ef", lambda: c.write_fused(x, layout, key, other, residual=residual), (3 * nbytes + body.numel()) / 2
    )


def _measure(text: str, backend: str, threads: int, x: Tensor, target: Tensor, repeats: int) -> Iterator[Row]:
    """A copy and every kernel in shuffled turns, so that all of them see the same states of the machine."""
    copy = _Case("copy", lambda: target.copy_(x), 4.0 * x.numel())
    cases = [copy, *_cases(text, x)]
    times: dict[str, list[float]] = {case.kernel: [] for case in cases}
    order = random.Random(0)
    for turn in range(repeats):
        for case in order.sample(cases, len(cases)):
            if case.most is not None and turn >= case.most:
                continue
            case.run()  # untimed: clocks rise, and OpenMP's threads from the last copy stop spinning on a core
            start = time.perf_counter()
            case.run()
            times[case.kernel].append(time.perf_counter() - start)
    copy_gbps = copy.counted / quantiles(times["copy"])[1] / 1e9
    for case in cases[1:]:
        low, median, high = quantiles(times[case.kernel])
        gbps = case.counted / median / 1e9
        yield {
            "kernel": case.kernel,
            "method": text,
            "backend": backend,
            "threads": threads,
            "gbps": round(gbps, 2),
            "copy_gbps": round(copy_gbps, 2),
            "ratio": round(gbps / copy_gbps, 3),
            "ms_p20": round(1e3 * low, 3),
            "ms_p50": round(1e3 * median, 3),
            "ms_p80": round(1e3 * high, 3),
        }

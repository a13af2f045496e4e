"""Kernels on a GPU under other constants than those they are launched with: their bits, and their share of a copy.

    python benchmarks/gpu_variants.py [words that a line must hold]

A first pass compares payloads, residuals and means with those of the CPU, then all variants are timed with 2^26
floats as `thinwire bench` times them: the median of runs that take turns with copies, in bytes that must move against
a copy's. `was` is what benchmarks/data/kernels-cuda.csv says of the kernel.
Variants are compiled by several processes at once, into Triton's cache.
"""

from __future__ import annotations

import csv
import multiprocessing
import random
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor

from thinwire import Key, Layout, compressors, kernels
from thinwire.core.compressor import FusedCompressor, encode_with_feedback
from thinwire.kernels.hadamard import hadamard
from thinwire.lab.bench_gpu import BEFORE, events, read_twice

SIZE, SMALL, REPEATS, PROCESSES = 1 << 26, 1 << 20, 15, 12
CHECKED = 3 * 65536 + 700  # elements: whole segments and a part of one, and a narrow last tile
WAS = Path(__file__).parent / "data" / "kernels-cuda.csv"
LAUNCH, FLOATS, TURN = (f"thinwire.kernels.gpu.{name}" for name in ("launch", "minifloat", "hadamard"))


class Variant(NamedTuple):
    """A kernel with constants that differ from the module's."""

    kernel: str
    method: str
    constants: dict[str, Any]

    @property
    def name(self) -> str:
        """The constants in short."""
        return ", ".join(f"{k.rpartition('.')[2]}={v}" for k, v in self.constants.items()) or "as it is"


def shape(many: int, warps: int, where: str = LAUNCH) -> dict[str, Any]:
    """Tiles per program and its warps."""
    return {f"{where}.NB": many, f"{where}.WARPS": warps}


ONE_WARP = f"{LAUNCH}.ONE_WARP"
E4M3, E2M1 = "float:format=e4m3,block=32", "float:format=e2m1,block=32"
DITHER, TERNARY = "natural-dithering:levels=8", "terngrad:clip=none"
VARIANTS = [
    *(Variant("encode", method, constants)
      for method in ("qsgd:bits=1", "qsgd:bits=2", "qsgd:bits=4", DITHER)
      for constants in ({}, {ONE_WARP: (4, 2)}, {ONE_WARP: (8, 4)})),
    *(Variant("encode", method, constants)
      for method in ("scaled-sign", TERNARY, "one-bit")
      for constants in ({}, {f"{LAUNCH}.ROWS": 64}, {f"{LAUNCH}.TURNED": False})),
    *(Variant("encode", method, constants)
      for method in (E2M1, E4M3) for constants in ({}, {f"{FLOATS}.ONE_WARP": (8, 4)})),
    *(Variant("mean8", "qsgd:bits=1", constants) for constants in ({}, shape(4, 2), shape(2, 1))),
    *(Variant("mean8", "qsgd:bits=2", {f"{LAUNCH}.MEANS": means}) for means in ({2: (2, 1)}, {2: (4, 2)}, {})),
    *(Variant("mean8", method, constants) for method in (E2M1, E4M3) for constants in ({}, shape(4, 2, FLOATS))),
    Variant("mean8", "one-bit", {}),
    *(Variant("hadamard", "hadamard:block=65536", {f"{TURN}.PART": 1 << k}) for k in (26, 24, 23)),
]  # fmt: skip


def with_constants(variant: Variant) -> ExitStack:
    """While it is open, launches have the variant's constants."""
    stack = ExitStack()
    for name, value in variant.constants.items():
        stack.enter_context(patch(name, value))
    return stack


def case(variant: Variant, x: Tensor) -> tuple[Callable[[], object], float]:
    """What is run, and the bytes it must move."""
    n, layout, key = x.numel(), Layout.flat(x.numel()), Key(seed=1)
    if variant.kernel == "hadamard":
        block = int(variant.method.partition("=")[2])
        buffer = x.clone()
        return lambda: hadamard(buffer, block), 8.0 * n
    c = compressors.get(variant.method)
    assert isinstance(c, FusedCompressor)
    bodies = [torch.empty(c.nbytes(layout), dtype=torch.uint8, device=x.device) for _ in range(8)]
    size = bodies[0].numel()
    if variant.kernel == "encode":
        run = lambda: c.write_fused(x, layout, key, bodies[0], checksum=True)  # noqa: E731
        return run, 4.0 * n * (1 + read_twice(c, layout)) + size
    for rank, body in enumerate(bodies):
        c.write_fused(x, layout, Key(seed=1, rank=rank), body, checksum=True)
    out = torch.empty_like(x)
    return lambda: c.put_all(bodies, layout, out, 0.125), 4.0 * n + 8 * size


def compiled(variant: Variant) -> None:
    """Leaves the variant's kernels in Triton's cache: what is compiled does not depend on the size."""
    with kernels.force("gpu"), with_constants(variant):
        case(variant, torch.randn(SMALL, device="cuda"))[0]()
    torch.cuda.synchronize()


def hard(n: int, seed: int) -> Tensor:
    """Numbers of all sizes, zeros of both signs, a scale with all bits set; if `seed`, what is not finite or huge."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, generator=g) * 2.0 ** torch.randint(-6, 3, (n,), generator=g)
    x[2048:4096] *= 1e-38
    x[4096:4608] *= 1e-43
    x[5000::97], x[5001::97] = 0.0, -0.0
    x[6144:6176] = x[6144:6176].clamp(-1, 1)
    x[6150], x[6151] = 1.9999998807907104, 0.25
    x[8192:8224] = torch.randn(32, generator=g) * 2.0 ** torch.linspace(-149, 120, 32)
    if seed:
        x[9000], x[9600], x[10300], x[11000] = float("nan"), float("inf"), -float("inf"), 3e38
    return x


def differing(method: str) -> str:
    """What has other bits on the GPU than on the CPU; empty if all are equal."""
    wrong = []
    for seed in (0, 1):
        x, layout, key = hard(CHECKED, seed), Layout.flat(CHECKED), Key(seed=5, step=2)
        if method.startswith("hadamard"):
            here = x[: 3 * 65536].nan_to_num(0.0, 1.0, -1.0).clamp(-1e4, 1e4)
            there = here.cuda()
            hadamard(here, 65536)
            hadamard(there, 65536)
            wrong += [] if torch.equal(here, there.cpu()) else ["hadamard"]
            continue
        c = compressors.get(method)
        ragged = Layout(("a", "b", "c"), ((150000,), (37,), (CHECKED - 150037,)))
        for some in (ragged, layout):
            made = [c.encode(v, some, key) for v in (x, x.cuda())]
            if not torch.equal(made[0].data, made[1].data.cpu()):
                wrong.append(f"payload {seed} of {len(some.names)}")
        sums = [torch.zeros(CHECKED), torch.zeros(CHECKED, device="cuda")]
        assert isinstance(c, FusedCompressor)
        for out, data in zip(sums, (made[0].data, made[0].data.cuda()), strict=True):
            body = data[data.numel() - c.nbytes(layout) :]
            c.put_all([body.clone() for _ in range(8)], layout, out, 0.125)
        if not torch.equal(*(s.cpu().nan_to_num(7e33, 1e38, -1e38) for s in sums)):
            wrong.append(f"mean {seed}")
        errors = [torch.full((CHECKED,), 0.01), torch.full((CHECKED,), 0.01, device="cuda")]
        for v, e in zip((x, x.cuda()), errors, strict=True):
            encode_with_feedback(c, v, e, layout, key, alpha=0.5, beta=0.75)
        if not torch.equal(*(e.cpu().nan_to_num(7e33, 1e38, -1e38) for e in errors)):
            wrong.append(f"residual {seed}")
    return ", ".join(wrong)


def measured(variant: Variant, x: Tensor, target: Tensor) -> tuple[float, float]:
    """Milliseconds, and the share of a copy."""
    with kernels.force("gpu"), with_constants(variant):
        run, moved = case(variant, x)
        runs = {"copy": lambda: target.copy_(x), "it": run}
        for _ in range(3):
            run()
        readings: dict[str, list[Callable[[], float]]] = {name: [] for name in runs}
        order = random.Random(0)
        for _ in range(REPEATS):
            for name in order.sample(list(runs), 2):
                for _ in range(BEFORE):
                    target.copy_(x)
                readings[name].append(events(runs[name]))
        copy, it = (statistics.median(read() for read in readings[name]) for name in runs)
    return 1e3 * it, moved / it / (8.0 * x.numel() / copy)


def alone(x: Tensor, target: Tensor) -> Iterator[str]:
    """What writing takes alone, and each pass that finds scales, in shares of a copy."""
    tier = kernels.get("gpu")
    runs: dict[str, Callable[[], object]] = {"fill": lambda: target.zero_()}
    for method in (TERNARY, "scaled-sign", "one-bit"):
        c: Any = compressors.get(method)
        blocks = c.blocks(Layout.flat(x.numel()))
        runs[f"scales of {method}"] = partial(tier.scales, x, c.quant, blocks)
    for name, run in runs.items():
        times: dict[str, list[float]] = {"it": [], "copy": []}
        for _ in range(8):
            for kind, some in (("copy", lambda: target.copy_(x)), ("it", run)):
                for _ in range(BEFORE):
                    target.copy_(x)
                times[kind].append(events(some)())
        it, copy = statistics.median(times["it"][2:]), statistics.median(times["copy"][2:])
        yield f"{name}: {1e3 * it:.4f} ms, {4.0 * x.numel() / it / (8.0 * x.numel() / copy):.3f} of a copy"


def main(words: list[str]) -> None:
    """Check, compile, measure, print."""
    chosen = [v for v in VARIANTS if all(w in f"{v.kernel} {v.method} {v.name}" for w in words)]
    with WAS.open() as file:
        was = {(row["kernel"], row["method"]): row["ratio"] for row in csv.DictReader(file)}
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        checks = {m: pool.apply_async(differing, (m,)) for m in dict.fromkeys(v.method for v in chosen)}
        jobs = [pool.apply_async(compiled, (v,)) for v in chosen]
        for job in jobs:
            job.get()
        verdicts = {m: check.get() or "equal" for m, check in checks.items()}
    x = torch.randn(SIZE, generator=torch.Generator(device="cuda").manual_seed(0), device="cuda")
    target = torch.empty_like(x)
    print("bits:", "; ".join(f"{m} {said}" for m, said in verdicts.items()))
    if not words:
        print("\n".join(alone(x, target)))
    print(f"{'kernel':9s}{'method':28s}{'constants':44s}{'ms':>8s}{'was':>7s}{'share':>7s}")
    for v in chosen:
        ms, share = measured(v, x, target)
        before = was.get((v.kernel, v.method), "")
        print(f"{v.kernel:9s}{v.method:28s}{v.name:44s}{ms:8.4f}{before:>7s}{share:7.3f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

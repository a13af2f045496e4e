"""The largest of a vector on a GPU: the results of C++, and the time of each kernel; then rotations.

    python benchmarks/gpu_topk.py [log2 of the elements, 26]

Times are the median of 10 graph replays. A copy reads and writes the vector; the share of a copy is the rate of one
read of the vector against the rate at which a copy reads.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from unittest.mock import patch

import torch
from gpu_clock import kernels, milliseconds
from torch import Tensor

from thinwire.kernels.cpu import selection as cpp
from thinwire.kernels.gpu import hadamard, select, selection

KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "gauss": lambda x: x,
    "heavy tails": lambda x: x**5,
    "16 bits": lambda x: x.bfloat16().float(),
    "layers": lambda x: (
        x * torch.arange(x.numel(), device=x.device).div(2**20, rounding_mode="floor").remainder(7).exp()
    ),
    "ties": lambda x: x.round(),
    "constant": lambda x: torch.full_like(x, -3.0),
    "one-hot": lambda x: torch.zeros_like(x).index_fill_(0, torch.tensor([x.numel() // 3], device=x.device), 1.0),
    "zeros": lambda x: torch.where(x > 3, x, 0.0),
}


def vector(n: int, kind: str) -> Tensor:
    """`n` elements of a kind."""
    g = torch.Generator(device="cuda").manual_seed(0)
    return KINDS[kind](torch.randn(n, generator=g, device="cuda"))


def launched(run: Callable[[], object]) -> float:
    """The mean of 20 runs in a row, launches and all."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(20):
        run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 20


def check(x: Tensor, k: int, what: str) -> None:
    """What C++ finds."""
    indices, values = selection.top(x, k)
    expected = cpp.top(x.cpu(), k)
    assert torch.equal(indices.cpu(), expected[0]), what
    assert torch.equal(values.cpu().view(torch.int32), expected[1].view(torch.int32)), what


def main(log: int) -> None:
    """Checks, then times."""
    for size in (1 << 22, (1 << 22) + 4099, 1 << log):
        for kind in KINDS:
            check(vector(size, kind), size // 100, f"{kind}, {size}")
        check(vector(size, "gauss"), 100, f"100 of {size}")
        print(f"results as C++: {size} elements", flush=True)
    n = 1 << log
    x, y = vector(n, "gauss"), torch.zeros(n, device="cuda")
    copy = milliseconds(partial(y.copy_, x))
    print(f"copy {copy:.3f} ms, {8 * n / copy / 1e6:.0f} GB/s")
    for kind in KINDS:
        x = vector(n, kind)
        for k in (n // 1000, n // 100, n // 10, n // 4) if kind == "gauss" else (n // 100,):
            found, run = select.find(x, k), partial(selection.top, x, k)
            kept = int(found.state[1])
            how = f"{kept / k:.2f} k kept" if found.sampled and k <= kept <= found.kept.numel() else "read anew"
            time = milliseconds(run)
            print(f"{kind}, {k / n:.3f}: {time:.3f} ms, {copy / 2 / time:.3f} of a copy, {how}", end=", ")
            print(f"launched {launched(run):.3f} ms\n  {kernels(run)}", flush=True)
    for block in (1024, 4096, 1 << 14, 1 << 16, 1 << 18):
        for part in (1 << 21, 1 << 22, 1 << 23, 1 << 24, n) if block > 1 << hadamard.ALONE else (n,):
            with patch.object(hadamard, "PART", part):
                turn = partial(hadamard.hadamard, y.zero_(), block)
                time = milliseconds(turn)
                print(
                    f"hadamard {block}, parts of {part}: {time:.3f} ms, {copy / time:.2f} of a copy, "
                    f"launched {launched(turn):.3f} ms",
                    flush=True,
                )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 26)

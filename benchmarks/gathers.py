"""An all-gather of uint8 tensors on gloo: dist.all_gather beside sends and receives to each peer, four ranks.

python benchmarks/gathers.py
"""

from __future__ import annotations

import statistics
import time

import torch
import torch.distributed as dist

from thinwire.comm.processes import Processes
from thinwire.lab.launch import Say, launch

RANKS, SIZES, REPEATS = 4, (1 << 17, 1 << 20), 31


def measure(say: Say) -> dict[int, tuple[float, float]]:
    """Median milliseconds by size: dist.all_gather, and the driver's sends and receives."""
    world = dist.group.WORLD
    assert world is not None
    driver = Processes({tuple(range(RANKS)): world})
    out = {}
    for size in SIZES:
        x = torch.zeros(size, dtype=torch.uint8)
        theirs, ours = [], []
        for _ in range(REPEATS):
            dist.barrier()
            start = time.perf_counter()
            dist.all_gather([torch.empty_like(x) for _ in range(RANKS)], x)
            theirs.append(time.perf_counter() - start)
            dist.barrier()
            start = time.perf_counter()
            driver.answer(driver.comm.all_gather(x, equal=True))
            ours.append(time.perf_counter() - start)
        out[size] = 1e3 * statistics.median(theirs), 1e3 * statistics.median(ours)
    return out


if __name__ == "__main__":
    for size, (theirs, ours) in launch(measure, RANKS)[0].items():
        print(f"{size:>9,} bytes: dist.all_gather {theirs:.1f} ms, sends and receives {ours:.1f} ms")

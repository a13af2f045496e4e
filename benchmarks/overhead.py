"""What the engine adds to a step per bucket: one rank, ten buckets of 4,096 elements, plain float32.

python benchmarks/overhead.py
"""

from __future__ import annotations

import statistics
import time

import torch
from torch import nn

import thinwire as tw
from thinwire.lab.launch import Say, launch

BUCKETS, WIDTH, STEPS = 10, 64, 300


def step_ms(attached: bool) -> float:
    """The median step, with or without the engine."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(BUCKETS)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    one_each = tw.Overlap(bucket_mb=4 * WIDTH**2 / 2**20)
    if attached:
        wire = tw.attach(model, optimizer, tw.Method(tw.exchange.AllReduce(), overlap=one_each), min_size=0)
        assert len(wire.plan().parcels) == BUCKETS
    x, times = torch.randn(4, WIDTH), []
    for _ in range(STEPS):
        start = time.perf_counter()
        optimizer.zero_grad()
        torch.autograd.backward(model(x).square().mean())
        optimizer.step()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def measure(say: Say) -> float:
    """Milliseconds per bucket."""
    plain = step_ms(attached=False)
    return (step_ms(attached=True) - plain) / BUCKETS


if __name__ == "__main__":
    print(f"{launch(measure, 1)[0]:.2f} ms per bucket")

"""`thinwire bench simulate`: what simulating costs, by shapes alone: processor time per run and per message.

A model of 50 equal tensors, each a bucket of its own, on workers whose computing scatters: no two steps are equal, so
that none is skipped. Times are of the process, and not of a clock on the wall.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import thinwire as tw
from thinwire.lab.records import Row
from thinwire.sim import Costs, Load, LogNormal, Pass, Weight, foresee

TENSORS, SHAPE = 50, (512, 1024)
METHODS = ("sgd", "qsgd", "topk", "d-psgd")
COSTS = Costs(Pass(encode=1e-10, decode=1e-10))
SIGMA = 0.2


def measure(methods: Sequence[str], workers: Sequence[int], steps: int, tensors: int = TENSORS) -> Iterator[Row]:
    """A row per method and number of workers."""
    if steps < 1 or tensors < 1:
        raise ValueError(
            f"{steps} steps of {tensors} tensors are nothing to simulate; write --steps 100 --tensors 50"
        )
    load = Load.of([Weight(f"layer{number}.weight", SHAPE, 1.0) for number in range(tensors)], seconds=0.3)
    for name in methods:
        method = replace(tw.method(name), overlap=tw.Overlap(bucket_mb=2, chunk_mb=2))
        for n in workers:
            start = time.process_time()
            done = foresee(
                method,
                load,
                n,
                steps=steps,
                network=tw.Network("10gbit", "10us"),
                costs=COSTS,
                stragglers=LogNormal(SIGMA),
            )
            spent = time.process_time() - start
            yield {
                "method": name,
                "workers": n,
                "steps": steps,
                "tensors": tensors,
                "cpu_s": spent,
                "messages": done.messages,
                "ns_per_message": spent / done.messages * 1e9 if done.messages else None,
                "us_per_worker_and_bucket": spent / (n * steps * tensors) * 1e6,
                "step_s": done.step,
            }

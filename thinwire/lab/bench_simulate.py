"""`thinwire bench simulate`: what simulating costs, by shapes alone: processor time per run and per message.

A model of 50 equal tensors, each a bucket of its own, on workers whose computing scatters: no two steps are equal, so
that none is skipped. Times are of the process, and not of a clock on the wall.

    usual        10 Gbit/s and 10 us between any two workers
    racks        32 hosts to a rack, whose uplink has a quarter of their rates
    stragglers   workers compute ten times as long in one step of 20, by chance, and do not scatter in others
    failure      rank 1 dies after half of the time that computing alone takes; those that gossip go on without it
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import thinwire as tw
from thinwire.core.registry import suggest
from thinwire.lab.records import Row
from thinwire.sim import Costs, Load, LogNormal, Pass, Transient, Weight, foresee

TENSORS, SHAPE, SECONDS = 50, (512, 1024), 0.3
METHODS = ("sgd", "qsgd", "topk", "d-psgd")
COSTS = Costs(Pass(encode=1e-10, decode=1e-10))
SCATTER, NETWORK, RACK = LogNormal(0.2), tw.Network("10gbit", "10us"), 32
USUAL = "usual"
SETTINGS: dict[str, Callable[[tw.Method, int, int], dict[str, Any]]] = {
    USUAL: lambda method, n, steps: {},
    "racks": lambda method, n, steps: {
        "network": replace(NETWORK, racks=max(min(2, n), n // RACK), oversubscription=4.0)
    },
    "stragglers": lambda method, n, steps: {"stragglers": Transient(0.05, 10.0)},
    "failure": lambda method, n, steps: {
        "failures": {1: steps * SECONDS / 2},
        "drop_dead": method.exchange.scope == "neighbours",
    },
}
"""What `foresee` is given besides, by method, workers and steps."""


def measure(
    methods: Sequence[str],
    workers: Sequence[int],
    steps: int,
    tensors: int = TENSORS,
    settings: Sequence[str] = (USUAL,),
) -> Iterator[Row]:
    """A row per setting, method and number of workers."""
    if steps < 1 or tensors < 1:
        raise ValueError(
            f"{steps} steps of {tensors} tensors are nothing to simulate; write --steps 100 --tensors 50"
        )
    for setting in settings:
        if setting not in SETTINGS:
            raise ValueError(f"--setting {setting}: there is no such setting{suggest(setting, SETTINGS)}")
    load = Load.of([Weight(f"layer{number}.weight", SHAPE, 1.0) for number in range(tensors)], SECONDS)
    for setting in settings:
        for name in methods:
            method = replace(tw.method(name), overlap=tw.Overlap(bucket_mb=2, chunk_mb=2))
            for n in workers:
                given = {"network": NETWORK, "stragglers": SCATTER, **SETTINGS[setting](method, n, steps)}
                start = time.process_time()
                done = foresee(method, load, n, steps=steps, costs=COSTS, **given)
                spent = time.process_time() - start
                ended = len(done.ends)
                yield {
                    "method": name,
                    "setting": setting,
                    "workers": n,
                    "steps": ended,
                    "tensors": tensors,
                    "cpu_s": spent,
                    "messages": done.messages,
                    "ns_per_message": spent / done.messages * 1e9 if done.messages else None,
                    "us_per_worker_and_bucket": spent / (n * ended * tensors) * 1e6 if ended else None,
                    "step_s": done.step,
                    "stopped": done.stopped,
                }

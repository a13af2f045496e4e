"""How far the model is off: steps that were measured between shaped hosts, beside those that `foresee` gives.

`MEASURED` are rows of benchmarks/data: step-hosts-16.csv, 24 square layers on 4 hosts that share 16 cores, and
step-hosts-cuda.csv, GPT-2 small on 4 hosts that share an H200; DDP stands for `sgd`, its fp16 hook for `fp16`. The
model is given what was measured of the computing (the step without communication) and of the passes (rank 0's
encode and decode, which it sums over threads), and the rate. It knows nothing of headers, of gloo, or of cores that
are shared.

Fitted to these rows: that a worker makes four passes at once (`THREADS`), rather than one. Latency is taken as 0.1
ms.
"""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

import thinwire as tw
from thinwire.lab.records import Row
from thinwire.sim import Costs, Load, Pass, Weight, foresee

HOSTS = 4
LATENCY = "100us"
THREADS = 4
UNIT = 1e-12


class Step(NamedTuple):
    """A measured step: milliseconds of it, of computing alone, and of passes."""

    file: str
    rate: str
    method: str
    step: float
    alone: float
    passes: float


NAMES = {"ddp": "sgd", "ddp fp16": "fp16"}
MEASURED = (
    Step("step-hosts-16", "1gbit", "sgd", 1299.4, 40.8, 0.0),
    Step("step-hosts-16", "1gbit", "fp16", 685.0, 40.8, 0.0),
    Step("step-hosts-16", "1gbit", "int8", 375.4, 40.8, 62.8),
    Step("step-hosts-16", "1gbit", "qsgd:bits=4", 218.0, 40.8, 68.7),
    Step("step-hosts-16", "1gbit", "ecq-sgd", 127.4, 40.8, 187.6),
    Step("step-hosts-16", "1gbit", "ef-signsgd", 107.3, 40.8, 95.4),
    Step("step-hosts-16", "100mbit", "sgd", 13023.9, 40.2, 0.0),
    Step("step-hosts-16", "100mbit", "fp16", 6546.5, 40.2, 0.0),
    Step("step-hosts-16", "100mbit", "int8", 3468.4, 40.2, 50.1),
    Step("step-hosts-16", "100mbit", "qsgd:bits=4", 1772.7, 40.2, 48.7),
    Step("step-hosts-16", "100mbit", "ecq-sgd", 344.5, 40.2, 129.3),
    Step("step-hosts-16", "100mbit", "ef-signsgd", 463.4, 40.2, 68.9),
    Step("step-hosts-cuda", "1gbit", "sgd", 6845.5, 134.1, 0.0),
    Step("step-hosts-cuda", "1gbit", "fp16", 3242.4, 134.1, 0.0),
    Step("step-hosts-cuda", "1gbit", "qsgd:bits=4", 987.3, 134.1, 13.9),
    Step("step-hosts-cuda", "1gbit", "ecq-sgd", 319.3, 134.1, 70.9),
    Step("step-hosts-cuda", "1gbit", "ecq-sgd:levels=2,block=2048,alpha=0.1", 214.6, 134.1, 70.8),
    Step("step-hosts-cuda", "1gbit", "ef-signsgd", 352.9, 134.1, 17.3),
    Step("step-hosts-cuda", "10gbit", "sgd", 741.8, 133.7, 0.0),
    Step("step-hosts-cuda", "10gbit", "fp16", 524.9, 133.7, 0.0),
    Step("step-hosts-cuda", "10gbit", "qsgd:bits=4", 214.0, 133.7, 13.4),
    Step("step-hosts-cuda", "10gbit", "ecq-sgd", 191.8, 133.7, 78.9),
    Step("step-hosts-cuda", "10gbit", "ecq-sgd:levels=2,block=2048,alpha=0.1", 192.3, 133.7, 86.5),
    Step("step-hosts-cuda", "10gbit", "ef-signsgd", 175.1, 133.7, 18.7),
)


def load_of(one: Step) -> Load:
    """What was trained."""
    if one.file == "step-hosts-cuda":
        return Load.of("gpt2", one.alone / 1e3, "cuda")
    return Load.of([Weight(f"layer{at}", (1024, 1024), 1.0) for at in range(24)], one.alone / 1e3)


def modelled(one: Step) -> float:
    """Milliseconds of the step by the model."""
    method, load, network = tw.method(one.method), load_of(one), tw.Network(one.rate, LATENCY)
    unit = foresee(method, load, HOSTS, steps=1, network=network, costs=Costs(Pass(UNIT, UNIT))).coded / HOSTS
    each = UNIT * one.passes / 1e3 / unit if unit else 0.0
    costs = Costs(Pass(each, each), at_once=THREADS)
    return 1e3 * foresee(method, load, HOSTS, steps=4, network=network, costs=costs).step


def rows() -> list[Row]:
    """A row for every measured step."""
    found = [(one, modelled(one)) for one in MEASURED]
    return [
        {
            "kind": "error",
            "network": f"{one.file}, {one.rate}",
            "method": one.method,
            "workers": HOSTS,
            "step_s": took / 1e3,
            "measured_s": one.step / 1e3,
            "off": took / one.step - 1,
        }
        for one, took in found
    ]


def sentence(every: list[Row]) -> str:
    """The error of the model, for every page that rests on it."""
    off = [row["off"] for row in every if row["kind"] == "error"]
    size = sorted(abs(one) for one in off)
    low = sum(one < 0 for one in off)
    short = f"all {low}" if low == len(off) else f"{low} of {len(off)}"
    return (
        f"{len(off)} steps were measured on {HOSTS} hosts with shaped links ([Scaling](scaling.md) lists them). The "
        f"modelled steps differ from them by {median(size):.0%} at the median and {size[-1]:.0%} at worst; {short} "
        "are too short. One constant of the model, four coding passes at once, was chosen on these steps. Nothing "
        "was compared on more hosts."
    )

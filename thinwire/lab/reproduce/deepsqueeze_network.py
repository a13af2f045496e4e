"""DeepSqueeze against rate, latency and number of workers: a step of ResNet-20 on a ring, modelled.

The paper shows ResNet-20 on CIFAR-10 with 8 workers on a ring, under changed rates and latencies. None of its figures
could be had, so that only its statements are judged: what is exchanged with two neighbours is less than what an
all-reduce needs where latency binds, and compressed it is less where the rate binds.

Assumed: a step computes 20 ms. Sweeps go through rates at 0.1 ms and latencies at 1 Gbit/s on 8 workers, and through
workers on a slow (100 Mbit/s, 1 ms) network, where the speed-up is n times the step of one worker over that of n.

Reference: Tang, Lian, Qiu, Yuan, Zhang, Zhang, Liu, "DeepSqueeze: decentralization meets error-compensated
compression", 2019, arXiv 1907.07346. The paper itself was not available; this follows accounts of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, final

import thinwire as tw
from thinwire.lab.records import Row
from thinwire.lab.reproduce.model_costs import QSGD, SIGN, Passes, costs
from thinwire.lab.reproduce.modelled import Claim, Job, Modelled, Rows, only
from thinwire.lab.reproduce.panels import Line, Panel, draw
from thinwire.lab.reproduce.qsgd_nets import resnet_small
from thinwire.sim import Load, foresee

CARD = "H200"
SECONDS = 0.02
WORKERS = 8
MBITS = (1, 3, 10, 30, 100, 300, 1000, 3000, 10000)
MILLISECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
COUNTS = (2, 4, 8, 16, 32, 64, 128)
AT_RATE, AT_LATENCY = 1000, 0.1  # Mbit/s and ms: what stays while the other is changed
SLOW = (100, 1.0)
METHODS = {
    "all-reduce, 32 bits": "sgd",
    "all-reduce, QSGD 4 bits": "qsgd:bits=4",
    "D-PSGD, 32 bits": "d-psgd",
    "CHOCO, 4 bits": "choco-sgd",
    "DeepSqueeze, 4 bits": "deepsqueeze",
    "DeepSqueeze, sign": "deepsqueeze:compressor=(scaled-sign)",
}
SPENT: dict[str, Passes | None] = {
    "all-reduce, QSGD 4 bits": QSGD[4],
    "CHOCO, 4 bits": QSGD[4],
    "DeepSqueeze, 4 bits": QSGD[4],
    "DeepSqueeze, sign": SIGN,
}
SWEEPS = {
    "rate": [(mbit, AT_LATENCY, WORKERS) for mbit in MBITS],
    "latency": [(AT_RATE, ms, WORKERS) for ms in MILLISECONDS],
    "workers": [(*SLOW, n) for n in COUNTS],
}
PLAIN, RING, SQUEEZED = "all-reduce, 32 bits", "D-PSGD, 32 bits", "DeepSqueeze, 4 bits"


def rows_of(sweep: str, name: str) -> list[Row]:
    """One method along one sweep."""
    load, rows = Load.of(resnet_small(20), SECONDS, "cuda"), []
    for mbit, ms, workers in SWEEPS[sweep]:
        network = tw.Network(mbit * 1e6, ms * 1e-3)
        done = foresee(
            tw.method(METHODS[name]),
            load,
            workers,
            steps=4,
            network=network,
            costs=costs(SPENT.get(name), CARD),
            min_size=1,  # most tensors of so small a net would not be compressed
        )
        head: Row = {"sweep": sweep, "method": name, "mbit": mbit, "ms": ms, "workers": workers}
        sent = done.bytes_sent / workers / len(done.ends)
        rows.append(head | {"step_ms": done.step * 1e3, "speedup": workers * SECONDS / done.step, "bytes": sent})
    return rows


def _pair(rows: Rows, sweep: str, first: str, second: str, **at: object) -> tuple[float, float] | None:
    """Steps of two methods at one place of a sweep."""
    a, b = (only(rows, sweep=sweep, method=name, **at) for name in (first, second))
    return None if a is None or b is None else (a["step_ms"], b["step_ms"])


def _faster(sweep: str, first: str, second: str, at: Mapping[str, object], rows: Rows) -> tuple[str, bool] | None:
    found = _pair(rows, sweep, first, second, **at)
    return None if found is None else (f"{found[0]:,.0f} ms against {found[1]:,.0f}", found[0] < found[1])


def _flat(rows: Rows) -> tuple[str, bool] | None:
    mine = [r["step_ms"] for r in rows if (r["sweep"], r["method"]) == ("workers", SQUEEZED) and r["workers"] > 2]
    if not mine:
        return None
    return f"{min(mine):.1f} to {max(mine):.1f} ms from 4 to {COUNTS[-1]} workers", max(mine) < 1.05 * min(mine)


@final
@dataclass(frozen=True)
class DeepSqueezeNetwork(Modelled):
    """Steps against rate, latency and workers."""

    name: ClassVar[str] = "deepsqueeze-network"
    paper: ClassVar[str] = "Tang et al. 2019, arXiv 1907.07346, sweeps of the network"
    claims: ClassVar[str] = "On slow networks DeepSqueeze's steps are shorter than an all-reduce's and D-PSGD's."
    methods: ClassVar[Mapping[str, str]] = METHODS
    fields: ClassVar[tuple[str, ...]] = (
        *("sweep", "method", "mbit", "ms", "workers", "step_ms", "speedup", "bytes"),
    )
    columns: ClassVar[dict[str, str]] = {
        "sweep": "",
        "method": "",
        "mbit": "g",
        "ms": "g",
        "workers": "d",
        "step_ms": ",.1f",
        "speedup": ".1f",
        "bytes": ",.0f",
    }
    heads: ClassVar[Mapping[str, str]] = {
        "mbit": "Mbit/s",
        "ms": "latency ms",
        "step_ms": "step ms",
        "bytes": "bytes sent per worker and step",
    }
    claimed: ClassVar[tuple[Claim, ...]] = (
        Claim(
            "10 Mbit/s, 8 workers",
            "DeepSqueeze is faster than D-PSGD where the rate is low",
            "no figure",
            partial(_faster, "rate", SQUEEZED, RING, {"mbit": 10}),
        ),
        Claim(
            "10 Mbit/s, 8 workers",
            "DeepSqueeze is faster than an all-reduce of 32 bits where the rate is low",
            "no figure",
            partial(_faster, "rate", SQUEEZED, PLAIN, {"mbit": 10}),
        ),
        Claim(
            "10 ms, 8 workers",
            "DeepSqueeze is faster than an all-reduce of 32 bits where latency is high",
            "no figure",
            partial(_faster, "latency", SQUEEZED, PLAIN, {"ms": 10.0}),
        ),
        Claim(
            "10 Mbit/s, 8 workers",
            "DeepSqueeze is faster than QSGD through owners where the rate is low",
            "not compared",
            partial(_faster, "rate", SQUEEZED, "all-reduce, QSGD 4 bits", {"mbit": 10}),
        ),
        Claim("100 Mbit/s, 1 ms", "a step does not grow with the number of workers", "linear speed-up", _flat),
    )

    def jobs(self, methods: Sequence[str]) -> list[Job]:
        """Every method along every sweep."""
        return [Job(f"{sweep}, {name}", partial(rows_of, sweep, name)) for sweep in SWEEPS for name in methods]

    def told(self, row: Row) -> bool:
        """A slow and a fast place of each sweep."""
        at = {"rate": ("mbit", (10, 1000)), "latency": ("ms", (0.1, 10.0)), "workers": ("workers", (8, 128))}
        field, shown = at[row["sweep"]]
        return row[field] in shown

    def plot(self, rows: Rows, path: Path) -> None:
        """One panel per sweep."""
        axes = (
            ("rate", "mbit", "step_ms", f"Rate, at {AT_LATENCY} ms, {WORKERS} workers", "Mbit/s", "step, ms"),
            ("latency", "ms", "step_ms", f"Latency, at 1 Gbit/s, {WORKERS} workers", "ms, one way", "step, ms"),
            ("workers", "workers", "speedup", "Workers, at 100 Mbit/s and 1 ms", "workers", "speed-up over one"),
        )
        panels = []
        for sweep, x, y, title, across, up in axes:
            lines = []
            for at, name in enumerate(METHODS):
                mine = [r for r in rows if (r["sweep"], r["method"]) == (sweep, name)]
                lines.append(Line(name, [r[x] for r in mine], [r[y] for r in mine], at))
            panels.append(Panel(title, across, up, lines, log_x=True, log_y=True))
        draw(panels, path)

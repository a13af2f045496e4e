"""Every exchange from 4 to 4096 workers: the step of ResNet-50, and what a worker sends, modelled.

No paper has this comparison. Two networks: 10 Gbit/s with 20 us, and 1 Gbit/s with 100 us, each worker a host of its
own. A step computes 0.2 s, and buckets leave during backward. Encoding and decoding take what `model_costs` has of
QSGD's 4 bits on an H200, for all compressed methods alike. Neighbours form a ring, except SGP's, which change.

Left out: servers, pairs that meet by chance, ADMM, MARINA, Ok-Topk and hierarchical exchanges, which the simulator
of shapes refuses, since their messages depend on numbers or on who comes first. Neighbours and gTop-k end at 256
workers: they are played message by message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, final

import thinwire as tw
from thinwire.lab.markdown import table
from thinwire.lab.records import Row
from thinwire.lab.reproduce import model_error
from thinwire.lab.reproduce.model_costs import QSGD, costs
from thinwire.lab.reproduce.modelled import Claim, Job, Modelled, Rows, only
from thinwire.lab.reproduce.panels import Line, Panel, draw
from thinwire.sim import Load, foresee

SECONDS = 0.2
WORKERS = (4, 16, 64, 256, 1024, 4096)
NETWORKS = {"10 Gbit/s, 20 us": ("10gbit", "20us"), "1 Gbit/s, 100 us": ("1gbit", "100us")}
FAST, SLOW = NETWORKS
METHODS = {
    "all-reduce": "sgd",
    "shards": "qsgd:bits=4",
    "shards, rANS": "ecq-sgd",
    "all-gather": "qsgd:bits=4,exchange=all-gather",
    "all-gather, top 1%": "topk",
    "gTop-k": "gtopk",
    "PowerSGD": "powersgd",
    "sketch": "sketched-sgd",
    "mean of senders": "demo",
    "mix": "d-psgd",
    "mix, 4 bits": "deepsqueeze",
    "push-sum": "sgp",
    "every 8 steps": "local-sgd:every=8",
}
UNCODED = ("all-reduce", "mix", "push-sum", "every 8 steps")
STEPS = 2
BY_MESSAGE = ("gTop-k", "mix", "mix, 4 bits", "push-sum")  # played message by message on the clock, so that
MOST_BY_MESSAGE = 256  # more workers would take minutes
TIMES = ("measured_s", "step_s")


def rows_of(name: str, workers: int, network: str) -> list[Row]:
    """One place."""
    method = tw.method(METHODS[name])
    steps = max(STEPS, method.sync.every)
    done = foresee(
        method,
        Load.of("resnet50", SECONDS, "cuda"),
        workers,
        steps=steps,
        network=tw.Network(*NETWORKS[network]),
        costs=costs(None if name in UNCODED else QSGD[4], "H200"),
    )
    row: Row = {"kind": "step", "network": network, "exchange": name, "method": METHODS[name], "workers": workers}
    return [row | {"step_s": done.step, "mb": done.bytes_sent / workers / len(done.ends) / 1e6}]


def _place(rows: Rows, name: str, workers: int, network: str = FAST) -> Row | None:
    return only(rows, kind="step", exchange=name, workers=workers, network=network)


def _fastest(rows: Rows) -> tuple[str, bool] | None:
    """Whether what sends each payload to everybody loses to a plain ring at last."""
    found = [(_place(rows, "all-gather", n), _place(rows, "all-reduce", n)) for n in WORKERS]
    if any(a is None or b is None for a, b in found):
        return None
    pairs = [(a["step_s"], b["step_s"]) for a, b in found if a is not None and b is not None]
    lost = next((n for n, (a, b) in zip(WORKERS, pairs, strict=True) if a > b), None)
    last = pairs[-1]
    return f"from {lost} workers on; {last[0]:.1f} s against {last[1]:.1f} on {WORKERS[-1]}", last[0] > last[1]


def _ring(rows: Rows) -> tuple[str, bool] | None:
    a, b = (_place(rows, "mix", n) for n in (WORKERS[0], MOST_BY_MESSAGE))
    if a is None or b is None:
        return None
    return f"{a['step_s']:.3f} s and {b['step_s']:.3f}", abs(b["step_s"] / a["step_s"] - 1) < 0.05


def _latency(rows: Rows) -> tuple[str, bool] | None:
    a, b = (_place(rows, name, WORKERS[-1]) for name in ("PowerSGD", "all-reduce"))
    if a is None or b is None:
        return None
    return f"{a['mb']:.1f} MB in {a['step_s']:.1f} s, {b['mb']:.0f} MB in {b['step_s']:.1f} s", a["step_s"] > b[
        "step_s"
    ]


@final
@dataclass(frozen=True)
class Scaling(Modelled):
    """Steps from 4 to 4096 workers."""

    name: ClassVar[str] = "scaling"
    paper: ClassVar[str] = "no paper: every exchange from 4 to 4096 workers"
    claims: ClassVar[str] = "How a step of ResNet-50 grows with the number of workers, exchange by exchange."
    methods: ClassVar[Mapping[str, str]] = METHODS
    fields: ClassVar[tuple[str, ...]] = (
        *("kind", "network", "exchange", "method", "workers", "step_s", "mb", "measured_s", "off"),
    )
    columns: ClassVar[dict[str, str]] = {
        "network": "",
        "exchange": "",
        "method": "",
        "workers": "d",
        "step_s": ".3f",
        "mb": ",.1f",
    }
    sections: ClassVar[tuple[str, ...]] = ("results", "statements", "error")
    claimed: ClassVar[tuple[Claim, ...]] = (
        Claim(FAST, "all-gathers of 4 bits lose to a ring of 32 bits", "by formula", _fastest),
        Claim(FAST, "a step with neighbours on a ring is as long on 256 workers as on 4", "by formula", _ring),
        Claim(FAST, "on 4096 workers messages count, and not bytes: PowerSGD is slower", "by formula", _latency),
    )

    def jobs(self, methods: Sequence[str]) -> list[Job]:
        """Every place, and the measured steps."""
        jobs = [
            Job(f"{name}, {n} workers, {network}", partial(rows_of, name, n, network))
            for network in NETWORKS
            for n in WORKERS
            for name in methods
            if n <= MOST_BY_MESSAGE or name not in BY_MESSAGE
        ]
        return [*jobs, Job("measured steps", model_error.rows)]

    def told(self, row: Row) -> bool:
        """All but the measured steps."""
        return bool(row["kind"] == "step")

    def page(self, rows: Rows) -> dict[str, str]:
        """A column per number of workers, and the measured steps."""
        made = Modelled.page(self, rows)
        parts = []
        for network in NETWORKS:
            body = []
            for name, id_ in METHODS.items():
                found = [_place(rows, name, n, network) for n in WORKERS]
                steps = ["" if row is None else f"{row['step_s']:.2f}" for row in found]
                body.append([name, f"`{id_}`", *steps, *("" if r is None else f"{r['mb']:,.1f}" for r in found[::5])])
            head = ["exchange", "method", *(f"{n:,}" for n in WORKERS), "MB at 4", f"MB at {WORKERS[-1]:,}"]
            parts.append(f"**{network}**, seconds of a step:\n\n" + table(head, body, left=2))
        done = made["results"].split("\n\n")[-1]
        errors = [
            [r["network"], f"`{r['method']}`", *(f"{1e3 * r[s]:,.0f}" for s in TIMES), f"{r['off']:+.0%}"]
            for r in rows
            if r["kind"] == "error"
        ]
        head = ["file and rate", "method", "measured ms", "model ms", "off"]
        return made | {"results": "\n\n".join([*parts, done]), "error": table(head, errors, left=2)}

    def plot(self, rows: Rows, path: Path) -> None:
        """Steps on both networks, and what a worker sends."""
        panels = []
        wanted = [(network, "step_s", "seconds of a step") for network in NETWORKS]
        for network, field, up in (*wanted, (FAST, "mb", "MB sent per worker and step")):
            lines = []
            for at, name in enumerate(METHODS):
                mine = [row for n in WORKERS if (row := _place(rows, name, n, network)) is not None]
                x, y = [row["workers"] for row in mine], [row[field] for row in mine]
                lines.append(Line(name, x, y, at, dashed=at >= len(METHODS) // 2 + 1))
            panels.append(Panel(network if field == "step_s" else "Traffic", "workers", up, lines, True, True))
        draw(panels, path)

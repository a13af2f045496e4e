"""One table of all methods on least squares that differ between ranks: distance, loss and bits.

Four ranks, 64 unknowns, full gradients, a constant step. Every registered method whose result estimates the gradient
takes part, so a new one joins by being registered: its step follows from declared facts, and it must at least halve
the loss. Sparsifiers keep a quarter of the elements: 1% of 64 would be one.
"""

from __future__ import annotations

import inspect
from typing import NamedTuple

from lockstep import Quadratics, quick

from thinwire import Layout, Method
from thinwire.core.method import METHODS
from thinwire.memory import Difference
from thinwire.sync import Grad

N, D = 4, 64
LAYOUT = Layout(("w",), ((8, 8),))
TASK = Quadratics(N, D)
BAR, SIGNS = 0.5, 0.8  # of the loss at the start; for methods that hand out signs
EXACT = {"sgd": 1e-4, "fp16": 1e-4, "bf16": 1e-3, "lag": 1e-4, "laq": 1e-2, "slaq": 1e-2, "diana": 0.05, "ef21": 0.05}
"""Methods that tend to the optimum itself, and the share of the loss that they leave after 40 steps."""
STEPS = 25
"""Of the others, which halve the loss in fewer."""
IDS = {"strom": "strom:tau=1"}
"""Settings for this task: Strom's threshold is an absolute size."""


class Row(NamedTuple):
    """The result of one method."""

    method: str
    lr: float
    distance: float  # |x - x*|^2 / |x*|^2
    loss: float  # f(x) - f(x*), over the same at the start
    bits: float  # per element and round, sent by rank 0


def named(name: str) -> str:
    """The id to run: sparsifiers keep a quarter."""
    if name in IDS:
        return IDS[name]
    return f"{name}:ratio=0.25" if "ratio" in inspect.signature(METHODS[name]).parameters else name


def rate(method: Method) -> float:
    """Small for signs; for unbiased ones smaller with a larger omega, for biased ones with a small delta."""
    compressor = method.exchange.channels[0].compressor
    omega, delta = compressor.omega(D), compressor.delta(D)
    if not method.exchange.keeps_scale:
        return 0.02
    if omega is not None:
        return 0.1 / (1 + omega / 4)
    return 0.1 if delta is None or delta > 0.3 or isinstance(method.exchange.channels[0].memory, Difference) else 0.05


def run(name: str) -> Row:
    method = METHODS.parse(named(name))
    lr = rate(method)
    world, steps = quick(method.exchange, LAYOUT, N), 40 if name in EXACT else STEPS
    x = TASK.path(world, lr, steps)
    start = TASK.loss(x * 0)
    distance = float((x - TASK.optimum).square().sum() / TASK.optimum.square().sum())
    return Row(method.id, lr, distance, TASK.loss(x) / start, 8 * world.traffic[0].bytes / steps / D)


def table(rows: list[Row]) -> str:
    lines = [f"{'method':<28} {'lr':>7} {'distance':>9} {'loss':>9} {'bits':>7}"]
    lines += [f"{r.method:<28} {r.lr:>7.4f} {r.distance:>9.1e} {r.loss:>9.1e} {r.bits:>7.1f}" for r in rows]
    return "\n".join(lines)


def bar(row: Row) -> float:
    signs = not METHODS.parse(row.method).exchange.keeps_scale
    return EXACT.get(row.method.partition(":")[0], SIGNS if signs else BAR)


def test_every_method_descends() -> None:
    of = {name: METHODS.parse(name) for name in METHODS}
    # In step all servers do the same: asgd stands for them.
    alone = [name for name in of if name == "asgd" or not of[name].exchange.served]
    rows = [run(name) for name in alone if isinstance(of[name].sync.of, Grad)]
    failed = [row for row in rows if not row.loss < bar(row)]
    assert not failed, f"{table(failed)}\n\nof\n\n{table(rows)}"
    assert {*EXACT} <= {row.method.partition(":")[0] for row in rows}

"""DIANA: quantised differences reach the optimum where quantised gradients stop short of it.

Softmax regression on the digits with a ridge, shared by eight workers, full gradients, a constant rate:

    gd          no compression, rate 1/L
    quantised   Q(g_i), one level: with the length of a block as scale that is QSGD, with its largest element
                TernGrad without clipping; rate 1/(L (1 + omega/n)), or a quarter of it
    diana       Q(g_i - h_i), h_i += alpha Q(g_i - h_i); the same rate, alpha = 1/(1 + omega)

A case is the scale, and how images are dealt: `sorted` by label, so that workers see different digits, or `mixed`.
Gaps are f - f* in float64; messages are float32, which is where gaps end.

Reference: Mishchenko, Gorbunov, Takac, Richtarik, "Distributed learning with compressed gradient differences", 2019,
arXiv 1901.09269.

Departs from the paper: other data; no proximal step and no momentum; blocks of 130 elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal, final

import torch

from thinwire.compressors.identity import Identity
from thinwire.compressors.qsgd import Qsgd
from thinwire.core.channel import Channel
from thinwire.core.types import Layout
from thinwire.exchange.all_gather import AllGather
from thinwire.lab.records import Row
from thinwire.lab.reproduce.logistic import Logistic
from thinwire.lab.reproduce.panels import Line, Panel, draw
from thinwire.lab.reproduce.study import Means, Run, Statement, Study
from thinwire.lab.world import World
from thinwire.memory.difference import Difference

SLOW = "quantised, rate / 4"
METHODS = ("gd", "quantised", SLOW, "diana")
CASES: dict[str, tuple[Literal["l2", "max"], bool]] = {
    "largest, sorted": ("max", True),
    "largest, mixed": ("max", False),
    "length, sorted": ("l2", True),
}
N, RIDGE, BLOCK, STEPS = 8, 0.05, 130, 2000
SEEN = 10  # steps between two looks at the gap
SHOWN = 40  # points of a curve
GOALS = {"to_3": 1e-3, "to_5": 1e-5, "to_7": 1e-7}  # gaps, and the steps until they are reached


def channel(case: str, method: str) -> tuple[Channel, float]:
    """What a worker sends, and by what the rate 1/L is divided."""
    if method == "gd":
        return Channel(Identity()), 1.0
    q = Qsgd(levels=1, norm=CASES[case][0], block=BLOCK)
    omega = q.omega(BLOCK) or 0.0
    slower = 1 + omega / N
    if method == "diana":
        return Channel(q, Difference(1 / (1 + omega))), slower
    return Channel(q), 4 * slower if method == SLOW else slower


@lru_cache(maxsize=4)
def problem(by_label: bool, seed: int) -> Logistic:
    """The digits, shared by eight workers."""
    return Logistic(N, RIDGE, by_label=by_label, seed=seed)


def _stalls(case: str) -> Statement:
    def test(at: Means) -> tuple[str, bool]:
        plain, slow, mine = (at[case, method] for method in ("quantised", SLOW, "diana"))
        told = f"gap {plain['gap']:.1g}, {slow['gap']:.1g} at a quarter of the rate, DIANA {mine['gap']:.1g}"
        return told, plain["to_5"] is None and slow["to_5"] is None and mine["gap"] < GOALS["to_7"]

    needs = tuple((case, method) for method in ("quantised", SLOW, "diana"))
    claim = f"quantised gradients do not reach the optimum, DIANA does ({case})"
    return Statement(claim, '"incapable of converging to the true optimum in the batch mode"', needs, test)


def _linear(at: Means) -> tuple[str, bool]:
    first, then, last = (at["largest, sorted", "diana"][name] for name in GOALS)
    if first is None or then is None or last is None:
        return "a gap of 1e-7 was not reached", False
    told = f"{then - first:.0f} steps from a gap of 1e-3 to 1e-5, {last - then:.0f} from there to 1e-7"
    return told, 0.5 < (last - then) / max(1, then - first) < 2


def _differ(at: Means) -> tuple[str, bool]:
    apart, alike = (at[f"largest, {deal}", "quantised"]["gap"] for deal in ("sorted", "mixed"))
    return f"gap {apart:.1g} sorted, {alike:.1g} mixed", alike < apart / 2


def _fewer(at: Means) -> tuple[str, bool]:
    whole, mine = (at["largest, sorted", method]["sent"] for method in ("gd", "diana"))
    if whole is None or mine is None:
        return "a gap of 1e-7 was not reached", False
    return f"{mine:.0f} bits per element against {whole:.0f}: {whole / mine:.1f} times fewer", mine < whole


@final
class Diana(Study):
    """Differences in place of gradients."""

    name: ClassVar[str] = "diana"
    paper: ClassVar[str] = "Mishchenko et al. 2019, arXiv 1901.09269"
    claims: ClassVar[str] = (
        "Quantised gradient differences converge to the optimum at a linear rate; quantised gradients do not."
    )
    cases: ClassVar[dict[str, tuple[str, ...]]] = dict.fromkeys(CASES, METHODS)
    main: ClassVar[str] = "gap"
    empty: ClassVar[str] = "never"
    columns: ClassVar[dict[str, str]] = {
        "case": "",
        "method": "",
        "message": ".2f",
        "to_3": ".0f",
        "to_5": ".0f",
        "to_7": ".0f",
        "sent": ".0f",
        "gap": ".1e",
    }
    heads: ClassVar[dict[str, str]] = {
        "case": "scale, images",
        "message": "bits per element of a message",
        "to_3": "steps to a gap of 1e-3",
        "to_5": "1e-5",
        "to_7": "1e-7",
        "sent": "bits per element to 1e-7",
        "gap": f"gap after {STEPS} steps",
    }
    statements: ClassVar[tuple[Statement, ...]] = (
        *map(_stalls, CASES),
        Statement("DIANA's rate is linear", "proved", (("largest, sorted", "diana"),), _linear),
        Statement(
            "where quantised gradients stop depends on how much the workers' data differ",
            "not quoted",
            (("largest, sorted", "quantised"), ("largest, mixed", "quantised")),
            _differ,
        ),
        Statement(
            "DIANA sends fewer bits than gradient descent to reach a gap of 1e-7",
            "not quoted",
            (("largest, sorted", "gd"), ("largest, sorted", "diana")),
            _fewer,
        ),
    )

    def work(self, run: Run) -> list[Row]:
        """A curve of the gap."""
        f, (how, slower) = problem(CASES[run.case][1], run.seed), channel(run.case, run.method)
        w = torch.zeros(f.d, dtype=torch.float64)
        world = World(AllGather(how), Layout.flat(f.d), N, run.seed, once=True)
        reached: dict[str, int | None] = dict.fromkeys(GOALS)
        rows: list[Row] = []
        for step in range(1, STEPS + 1):
            w = w - world.step(f.gradients(w).float()).double() / f.smooth / slower
            if step % SEEN:
                continue
            gap = f.gap(w)
            for name, goal in GOALS.items():
                if gap < goal and reached[name] is None:
                    reached[name] = step
            if step % (STEPS // SHOWN) == 0:
                bits, last = world.message_bits, reached["to_7"]
                sent = None if last is None else last * bits
                rows.append({"step": step, "steps": STEPS, "gap": gap, **reached, "message": bits, "sent": sent})
        return rows

    def plot(self, rows: Sequence[Row], path: Path) -> None:
        """The gap over the steps."""
        panels = []
        for case in CASES:
            lines = []
            for colour, method in enumerate(METHODS):
                mine = [row for row in rows if (row["case"], row["method"], row["seed"]) == (case, method, 0)]
                gaps = [max(1e-16, row["gap"]) for row in mine]
                lines.append(Line(method, [row["step"] for row in mine], gaps, colour))
            panels.append(Panel(f"scale: {case}", "step", "f - f*", lines, log_y=True))
        draw(panels, path)

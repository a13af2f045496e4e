"""LAQ: quantised changes of the gradient, uploaded when worth it, keep gradient descent's rate with few uploads.

Softmax regression on the digits with a ridge, shared by ten workers, full gradients, rate 1/L:

    gd     g_i, every step
    qgd    Q(g_i - q_i), the nearest of 16 points per coordinate, every step: quantised gradient descent
    lag    g_i, when it has changed by more than the parameters have moved lately
    laq    Q(g_i - q_i), by the same rule with room for the quantiser's errors; 16 or 256 points

A case is how images are dealt: `sorted` by label or `mixed`. Uploads and bits are counted until f - f* < 1e-6, as a
server would: each message once, with its header.

Reference: Sun, Chen, Giannakis, Yang, "Communication-efficient distributed learning via lazily aggregated quantized
gradients", NeurIPS 2019, arXiv 1909.07588. LAG: Chen, Giannakis, Sun, Yin, NeurIPS 2018, arXiv 1805.09965.

Departs from the paper: it uses the digits, not MNIST; rate, ridge and goal are ours; there is no neural net and there
are no mini-batches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, final

import torch

import thinwire as tw
from thinwire.compressors.identity import Identity
from thinwire.compressors.laq_grid import LaqGrid
from thinwire.core.channel import Channel
from thinwire.core.types import Layout
from thinwire.exchange.all_gather import AllGather
from thinwire.lab.records import Row
from thinwire.lab.reproduce.logistic import Logistic
from thinwire.lab.reproduce.panels import Line, Panel, draw
from thinwire.lab.reproduce.study import Means, Run, Statement, Study
from thinwire.lab.world import World
from thinwire.memory.difference import Difference

CASES = ("sorted", "mixed")
METHODS = ("gd", "qgd", "lag", "laq", "laq, 8 bits")
N, RIDGE, STEPS, GOAL = 10, 0.05, 1000, 1e-6
SPREAD = 0.1  # of the weights to start from
SEEN = 10  # steps between two looks at the gap
SHOWN = 50  # points of a curve


def channel(method: str) -> Channel:
    """What a worker sends."""
    named = {"lag": "lag", "laq": "laq:bits=4", "laq, 8 bits": "laq:bits=8"}
    if method in named:
        (made,) = tw.method(named[method]).exchange.channels
        return made
    return Channel(Identity()) if method == "gd" else Channel(LaqGrid(4), Difference(1.0))


@lru_cache(maxsize=4)
def problem(case: str, seed: int) -> Logistic:
    """The digits, shared by ten workers."""
    return Logistic(N, RIDGE, by_label=case == "sorted", seed=seed)


def _cheaper(case: str, what: str, others: tuple[str, ...], claim: str) -> Statement:
    def test(at: Means) -> tuple[str, bool]:
        mine, theirs = at[case, "laq"][what], [at[case, other][what] for other in others]
        if mine is None or None in theirs:
            return f"a gap of {GOAL:.0e} was not reached", False
        told = ", ".join(f"{value / mine:.3g} times (`{name}`)" for name, value in zip(others, theirs, strict=True))
        return f"{told} LAQ's {mine:.0f}", mine < min(theirs)

    needs = tuple((case, method) for method in ("laq", *others))
    published = "not quoted" if others == ("lag",) else '"major savings" in bits and rounds'
    return Statement(f"{claim} ({case})", published, needs, test)


def _rate(case: str) -> Statement:
    def test(at: Means) -> tuple[str, bool]:
        plain, mine = at[case, "gd"], at[case, "laq"]
        told = (
            f"{mine['earlier']:.2f} decades in 100 steps, {mine['later']:.2f} in the last quarter; "
            f"gradient descent {plain['later']:.2f}"
        )
        steady = 0.5 < mine["later"] / mine["earlier"] < 2 if mine["earlier"] > 0 else False
        return told, steady and mine["later"] > 0.8 * plain["later"]

    claim = f"LAQ converges at gradient descent's linear rate ({case})"
    return Statement(claim, "proved", ((case, "gd"), (case, "laq")), test)


def _accurate(case: str) -> Statement:
    def test(at: Means) -> tuple[str, bool]:
        plain, mine = at[case, "gd"]["accuracy"], at[case, "laq"]["accuracy"]
        return f"{mine:.2%}, gradient descent {plain:.2%}", abs(mine - plain) < 1 / 360

    return Statement(f"LAQ's accuracy is the same ({case})", "not quoted", ((case, "gd"), (case, "laq")), test)


@final
class Laq(Study):
    """Few uploads of few bits."""

    name: ClassVar[str] = "laq"
    paper: ClassVar[str] = "Sun et al. 2019, arXiv 1909.07588"
    claims: ClassVar[str] = "LAQ converges as fast as gradient descent with far fewer uploads and bits."
    cases: ClassVar[dict[str, tuple[str, ...]]] = dict.fromkeys(CASES, METHODS)
    main: ClassVar[str] = "uploads"
    empty: ClassVar[str] = "never"
    columns: ClassVar[dict[str, str]] = {
        "case": "",
        "method": "",
        "to_goal": ".0f",
        "uploads": ".0f",
        "least": ".0f",
        "most": ".0f",
        "kilobits": ".0f",
        "gap": ".1e",
        "later": ".2f",
        "accuracy": ".2%",
    }
    heads: ClassVar[dict[str, str]] = {
        "case": "images",
        "to_goal": "steps to 1e-6",
        "uploads": "uploads to 1e-6",
        "least": "seeds from",
        "most": "to",
        "kilobits": "kbit to 1e-6",
        "gap": f"gap after {STEPS} steps",
        "later": "decades in 100 steps, last quarter",
        "accuracy": "test accuracy",
    }
    statements: ClassVar[tuple[Statement, ...]] = tuple(
        statement
        for case in CASES
        for statement in (
            _rate(case),
            _cheaper(case, "uploads", ("gd", "qgd"), "LAQ uploads less often than methods that upload every step"),
            _cheaper(case, "uploads", ("lag",), "LAQ uploads less often than LAG"),
            _cheaper(case, "kilobits", ("gd", "qgd", "lag"), "LAQ sends fewer kbit than all others"),
            _accurate(case),
        )
    )

    def work(self, run: Run) -> list[Row]:
        """A curve of the gap, with the uploads so far."""
        f, how = problem(run.case, run.seed), channel(run.method)
        layout, g = Layout.flat(f.d), torch.Generator().manual_seed(run.seed)
        world, w = World(AllGather(how), layout, N, run.seed), SPREAD * torch.randn(f.d, generator=g).double()
        kilobits = how.nbytes(layout) * 8e-3  # of a message
        done: Row = dict.fromkeys(("to_goal", "uploads", "kilobits"))
        gaps: dict[int, float] = {}
        rows: list[Row] = []
        for step in range(1, STEPS + 1):
            w = w - world.step(f.gradients(w)).double() / f.smooth
            if step % SEEN:
                continue
            gap = gaps[step] = f.gap(w)
            so_far = world.uploads if how.memory.skips else N * step
            if gap < GOAL and done["to_goal"] is None:
                done = {"to_goal": step, "uploads": so_far, "kilobits": so_far * kilobits}
            if step % (STEPS // SHOWN) == 0:
                seen: Row = {"gap": gap, "uploaded": so_far, "sent": so_far * kilobits, "accuracy": f.accuracy(w)}
                half, late = (gaps.get(STEPS * part // 4, gap) for part in (2, 3))
                falls = {"earlier": _decades(half, late), "later": _decades(late, gap)}
                rows.append({"step": step, "steps": STEPS, **done, **seen, **falls})
        return rows

    def plot(self, rows: Sequence[Row], path: Path) -> None:
        """The gap of seed 0 over steps, uploads and bits."""
        axes = (("sorted", "step", "step"), ("sorted", "uploaded", "uploads"), ("sorted", "sent", "kbit"))
        draw([_panel(rows, *axis) for axis in (*axes, ("mixed", "sent", "kbit"))], path)


def _decades(before: float, after: float) -> float:
    """How far the gap fell per 100 steps in a quarter of the steps."""
    return 100 / (STEPS / 4) * math.log10(max(before, 1e-16) / max(after, 1e-16))


def _panel(rows: Sequence[Row], case: str, field: str, name: str) -> Panel:
    lines = []
    for colour, method in enumerate(METHODS):
        mine = [row for row in rows if (row["case"], row["method"], row["seed"]) == (case, method, 0)]
        gaps = [max(1e-16, row["gap"]) for row in mine]
        lines.append(Line(method, [row[field] for row in mine], gaps, colour, dashed=method == "qgd"))
    return Panel(f"{case} images", name, "f - f*", lines, log_x=field != "step", log_y=True)

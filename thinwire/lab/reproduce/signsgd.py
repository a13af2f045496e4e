"""signSGD's counter-examples: signs alone fail to converge or to generalise, and error feedback repairs them.

    skewed          f(x) = x / 4 on [-1, 1], gradients 4 with probability 1/4 and -1 else: their mean sign is -1/2
    non-smooth      f(x) = e |x1 + x2| + |x1 - x2| from (1, 1): every sign step is +-(1, -1), so x1 + x2 stays
    least squares   f(x) = <a, x>^2 + <b, x>^2, a, b = +-(1, -1) + e (1, 1), one of the two per step: the same
    generalisation  least squares with more unknowns (about 3 n) than rows (n): signs leave the span of the data

There is one rank. Rates fall with the root of the step where gradients do not vanish at the optimum; signs never
vanish. Losses are above the minimum.

Reference: Karimireddy, Rebjock, Stich, Jaggi, "Error feedback fixes SignSGD and other gradient compression schemes",
ICML 2019, arXiv 1901.09847, section 3 and section 5. The data of the last case are those of Wilson, Roelofs, Stern,
Srebro, Recht, "The marginal value of adaptive gradient methods in machine learning", NeurIPS 2017, arXiv 1705.08292.

Departs from the paper: steps and rates are ours. Its runs on CIFAR-10 and CIFAR-100 are not reproduced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, TypeAlias, final

import torch
from torch import Generator, Tensor

import thinwire as tw
from thinwire.core.types import Layout
from thinwire.lab.records import Row
from thinwire.lab.reproduce.panels import Line, Panel, draw
from thinwire.lab.reproduce.study import Means, Run, Statement, Study
from thinwire.lab.reproduce.wilson import Wilson
from thinwire.lab.world import World

METHODS = ("sgd", "signsgd", "ef-signsgd")
E = 0.1
STEPS = {"skewed": 1000, "non-smooth": 2000, "least squares": 1000, "generalisation": 2000}
RATES = {"skewed": 0.1, "non-smooth": 0.2, "least squares": 0.1, "generalisation": 0.02}
CONSTANT = ("least squares", "generalisation")  # gradients vanish at the optimum; signs do not
SHOWN = 40  # points of a curve
Gradient: TypeAlias = Callable[[Tensor, Generator], Tensor]


def skewed(x: Tensor, g: Generator) -> Tensor:
    """4 or -1, with mean 1/4."""
    return torch.where(torch.rand(1, generator=g) < 0.25, 4.0, -1.0)


def non_smooth(x: Tensor, g: Generator) -> Tensor:
    """A subgradient."""
    along, across = torch.where(torch.stack([x[0] + x[1], x[0] - x[1]]) >= 0, 1.0, -1.0)
    slope: Tensor = E * along * torch.ones(2) + across * torch.tensor([1.0, -1.0])
    return slope


def least_squares(x: Tensor, g: Generator) -> Tensor:
    """The gradient of twice one of the two squares."""
    a = torch.where(torch.rand(1, generator=g) < 0.5, 1.0, -1.0) * torch.tensor([1.0, -1.0]) + E
    return 4 * (a @ x) * a


LOSSES: dict[str, tuple[Gradient, Callable[[Tensor], float]]] = {
    "skewed": (skewed, lambda x: float(x[0] + 1) / 4),
    "non-smooth": (non_smooth, lambda x: float(E * (x[0] + x[1]).abs() + (x[0] - x[1]).abs())),
    "least squares": (
        least_squares,
        lambda x: float(2 * (x[0] - x[1]).square() + 2 * (E * (x[0] + x[1])).square()),
    ),
}


def _stuck(case: str) -> Statement:
    def test(at: Means) -> tuple[str, bool]:
        plain, signs, fed = (at[case, method]["loss"] for method in METHODS)
        told = f"{signs:.2g} of {at[case, 'signsgd']['first']:.2g} left, EF-signSGD {fed:.1g}, SGD {plain:.1g}"
        return told, signs > 0.09 * at[case, "signsgd"]["first"] and fed < 0.1 * signs

    claim = f"on `{case}` signSGD does not converge and EF-signSGD does"
    return Statement(claim, "shown", tuple((case, method) for method in METHODS), test)


def _general(at: Means) -> tuple[str, bool]:
    plain, signs, fed = (at["generalisation", method] for method in METHODS)
    told = ", ".join(
        f"{100 * row['test_accuracy']:.0f}% ({m})" for row, m in zip((plain, signs, fed), METHODS, strict=True)
    )
    fit = max(row["loss"] for row in (plain, signs, fed)) < 1e-2
    return told, fit and signs["test_accuracy"] < 0.75 and min(plain["test_accuracy"], fed["test_accuracy"]) > 0.95


def _span(at: Means) -> tuple[str, bool]:
    signs, fed = (at["generalisation", method]["outside_span"] for method in ("signsgd", "ef-signsgd"))
    return (
        f"{100 * signs:.0f}% of the weights' length is outside for signSGD, {100 * fed:.1g}% for EF-signSGD",
        fed < 0.1 * signs,
    )


@final
class SignSgd(Study):
    """Where signs fail."""

    name: ClassVar[str] = "signsgd"
    paper: ClassVar[str] = "Karimireddy et al. 2019, arXiv 1901.09847"
    claims: ClassVar[str] = (
        "signSGD fails to converge or to generalise on simple convex problems; error feedback fixes it."
    )
    task: ClassVar[str] = "counter-examples"
    cases: ClassVar[dict[str, tuple[str, ...]]] = dict.fromkeys(STEPS, METHODS)
    main: ClassVar[str] = "loss"
    empty: ClassVar[str] = ""
    columns: ClassVar[dict[str, str]] = {
        "case": "",
        "method": "",
        "lr": ".3g",
        "steps": ".0f",
        "first": ".3g",
        "loss": ".2g",
        "outside_span": ".1%",
        "test_accuracy": ".1%",
    }
    heads: ClassVar[dict[str, str]] = {
        "first": "loss at first",
        "outside_span": "weights outside the span",
        "loss": "loss at last",
    }
    statements: ClassVar[tuple[Statement, ...]] = (
        *map(_stuck, LOSSES),
        Statement(
            "all fit the training data, and only signSGD's solution fails on other data",
            '"may generalize poorly"',
            tuple(("generalisation", method) for method in METHODS),
            _general,
        ),
        Statement(
            "with error feedback the weights return to the span of the gradients",
            "not quoted",
            (("generalisation", "signsgd"), ("generalisation", "ef-signsgd")),
            _span,
        ),
    )

    def work(self, run: Run) -> list[Row]:
        """A curve of the loss."""
        lr, steps = RATES[run.case], STEPS[run.case]
        g = torch.Generator().manual_seed(run.seed)
        data = Wilson(run.seed) if run.case == "generalisation" else None
        gradient: Gradient
        loss: Callable[[Tensor], float]
        gradient, loss = (data.gradient, data.loss) if data else LOSSES[run.case]
        x = torch.zeros(data.d if data else 1) if run.case in ("generalisation", "skewed") else torch.ones(2)
        world = World(tw.method(run.method).exchange, Layout.flat(x.numel()), 1, run.seed)
        first, last = loss(x), 0.0
        rows: list[Row] = []
        shown = {round(steps ** (i / SHOWN)) for i in range(SHOWN + 1)}
        for step in range(1, steps + 1):
            now = lr if run.case in CONSTANT and run.method != "signsgd" else lr / math.sqrt(step)
            if last:
                world.rescale(last / now)
            last = now
            x = x - now * world.step(gradient(x, g)[None])
            if run.case == "skewed":
                x = x.clamp(-1, 1)
            if step in shown:
                seen: Row = {"outside_span": data.outside(x), "test_accuracy": data.accuracy(x)} if data else NOTHING
                rows.append({"lr": lr, "step": step, "steps": steps, "first": first, "loss": loss(x), **seen})
        return rows

    def plot(self, rows: Sequence[Row], path: Path) -> None:
        """The loss of seed 0 over the steps, case by case."""
        draw([_panel(case, [r for r in rows if r["case"] == case and r["seed"] == 0]) for case in self.cases], path)


NOTHING: Row = {"outside_span": None, "test_accuracy": None}


def _panel(case: str, rows: Sequence[Row]) -> Panel:
    lines = []
    for colour, method in enumerate(METHODS):
        mine = [row for row in rows if row["method"] == method]
        floor = [max(1e-9, row["loss"]) for row in mine]
        lines.append(Line(method, [row["step"] for row in mine], floor, colour))
    return Panel(case, "step", "loss above the minimum", lines, log_x=True, log_y=True)

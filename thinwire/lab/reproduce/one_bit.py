"""1-bit SGD with and without error feedback: digits, four workers, both directions quantised.

    float32      no compression
    feedback     p = g + e, e = p - Q(p): the method `one-bit-sgd`
    cold start   the same after a quarter of the epochs in float32
    printed      p = g + e, e = g - Q(p): the residual as the paper prints it, without the old one
    none         Q(g)

A case is a learning rate. A method's best rate is the one with the least training loss.

Reference: Seide, Fu, Droppo, Li, Yu, "1-bit stochastic gradient descent and its application to data-parallel
distributed training of speech DNNs", Interspeech 2014.

Departs from the paper: a net of 26,122 parameters on 1,437 images in place of speech; momentum in place of AdaGrad;
no double buffering.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, final

from thinwire.compressors.one_bit import OneBit
from thinwire.core.channel import Channel
from thinwire.core.exchange import Exchange
from thinwire.core.memory import NoMemory
from thinwire.exchange.all_reduce import AllReduce
from thinwire.exchange.scatter_gather import ScatterGather
from thinwire.lab.records import Row
from thinwire.lab.reproduce.panels import Line, Panel, draw
from thinwire.lab.reproduce.replicas import Plan, train
from thinwire.lab.reproduce.study import Means, Place, Run, Statement, Study
from thinwire.memory.error_feedback import ErrorFeedback

METHODS = ("float32", "feedback", "cold start", "printed", "none")
RATES = (0.05, 0.1, 0.2, 0.4)
CASES = tuple(f"lr {rate:g}" for rate in RATES)
SLOW = CASES[0]
NEAR = 1.5  # points of accuracy that count as no loss
FAR = 5.0  # points of accuracy that count as a loss
GUESS = math.log(10)  # the loss of a model that knows nothing; above it a run has diverged


def exchange(method: str) -> Exchange:
    """How the ranks average."""
    if method == "float32":
        return AllReduce()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # beta = 0 lets errors grow, and warns of it
        memory = {"printed": ErrorFeedback(alpha=1, beta=0), "none": NoMemory()}.get(method, ErrorFeedback())
        return ScatterGather(Channel(OneBit(), memory))


def points(at: Means, mine: Place, other: Place) -> float:
    """How far the accuracy is above the other's."""
    return 100 * float((at[mine]["accuracy"] or 0) - (at[other]["accuracy"] or 0))


def best(at: Means, method: str) -> Place:
    """The case with the least training loss."""
    losses = {case: at[case, method]["loss"] for case in CASES}
    return min(CASES, key=lambda case: math.inf if losses[case] is None else losses[case]), method


def _each(*methods: str) -> tuple[Place, ...]:
    return tuple((case, method) for case in CASES for method in methods)


def _slow(at: Means) -> tuple[str, bool]:
    away = points(at, (SLOW, "feedback"), (SLOW, "float32"))
    return f"{away:+.2f} points", away > -NEAR


def _at_best(method: str) -> Callable[[Means], tuple[str, bool]]:
    def test(at: Means) -> tuple[str, bool]:
        mine, other = best(at, method), best(at, "float32")
        away = points(at, mine, other)
        return f"{away:+.2f} points ({mine[0]}; float32 {other[0]})", away > -NEAR

    return test


def _loses(at: Means) -> tuple[str, bool]:
    mine, other = best(at, "none"), best(at, "float32")
    away = points(at, mine, other)
    return f"{away:+.1f} points ({mine[0]}; float32 {other[0]})", away < -FAR


def _diverges(at: Means) -> tuple[str, bool]:
    losses = {case: at[case, "none"]["loss"] for case in CASES}
    told = ", ".join(f"{'lost' if x is None else f'{x:.2g}'} ({case})" for case, x in losses.items())
    return f"training loss {told}; {GUESS:.1f} by guessing", all(x is None or x > GUESS for x in losses.values())


def _worse(at: Means) -> tuple[str, bool]:
    away = {case: points(at, (case, "none"), (case, "feedback")) for case in CASES}
    return ", ".join(f"{a:+.1f} points ({case})" for case, a in away.items()), all(a < -NEAR for a in away.values())


def _bits(at: Means) -> tuple[str, bool]:
    ratio = at[SLOW, "float32"]["bits"] / at[SLOW, "feedback"]["bits"]
    return f"{ratio:.1f} times, counting the means of columns and the headers", ratio > 25


@final
class OneBitSgd(Study):
    """One bit per element, and what is done with the rest."""

    name: ClassVar[str] = "one-bit"
    paper: ClassVar[str] = "Seide et al. 2014, Interspeech"
    claims: ClassVar[str] = (
        "One bit per gradient element keeps accuracy if the error is carried forward; without that, it fails."
    )
    cases: ClassVar[dict[str, tuple[str, ...]]] = dict.fromkeys(CASES, METHODS)
    epochs: ClassVar[int | None] = 12
    main: ClassVar[str] = "accuracy"
    columns: ClassVar[dict[str, str]] = {
        "case": "",
        "method": "",
        "accuracy": ".2%",
        "least": ".2%",
        "most": ".2%",
        "loss": ".3g",
        "bits": ".2f",
        "seeds": "d",
    }
    heads: ClassVar[dict[str, str]] = {"bits": "bits sent per element and step", "loss": "training loss"}
    statements: ClassVar[tuple[Statement, ...]] = (
        Statement(
            f"with error feedback one bit costs little or no accuracy, at {SLOW}",
            "frame accuracy 55.5% against 55.6%",
            ((SLOW, "float32"), (SLOW, "feedback")),
            _slow,
        ),
        Statement(
            "the same with the cold start, each at its best rate",
            "frame accuracy 55.5% against 55.6%",
            _each("float32", "cold start"),
            _at_best("cold start"),
        ),
        Statement(
            "the same without the cold start, each at its best rate",
            "not reported",
            _each("float32", "feedback"),
            _at_best("feedback"),
        ),
        Statement(
            "without error feedback accuracy is lost (5 points or more), each at its best rate",
            "diverges",
            _each("float32", "none"),
            _loses,
        ),
        Statement(
            "without error feedback training diverges, at every rate",
            "diverges",
            _each("none"),
            _diverges,
        ),
        Statement(
            "accuracy is worse without error feedback than with it, at every rate",
            "not reported",
            _each("feedback", "none"),
            _worse,
        ),
        Statement(
            "a message is nearly 32 times smaller",
            "1 bit instead of 32",
            ((SLOW, "float32"), (SLOW, "feedback")),
            _bits,
        ),
    )

    def work(self, run: Run) -> list[Row]:
        """Train once."""
        lr = float(run.case.removeprefix("lr "))
        cold = run.epochs // 4 if run.method == "cold start" else 0
        return [{"lr": lr, **train(exchange(run.method), Plan(run.epochs, run.seed, lr=lr, cold=cold))}]

    def plot(self, rows: Sequence[Row], path: Path) -> None:
        """Accuracy and loss against the rate."""
        means = [row for row in self.summary(rows) if row["accuracy"] is not None]
        panels = []
        for field, title in (("accuracy", "test accuracy"), ("loss", "training loss, last epoch")):
            lines = []
            for colour, method in enumerate(METHODS):
                mine = [row for row in means if row["method"] == method]
                lines.append(Line(method, [row["lr"] for row in mine], [row[field] for row in mine], colour))
            panels.append(Panel(title, "learning rate", field, lines, log_y=field == "loss"))
        draw(panels, path)

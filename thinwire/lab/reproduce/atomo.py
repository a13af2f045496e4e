"""ATOMO: atoms drawn with the best probabilities lose least; singular vectors are better atoms than elements.

    special cases      one-level QSGD and ternary levels beside element-wise ATOMO with s = |g|_1/|g|_2, |g|_1/|g|_max
    gradient, 2 bits   a recorded gradient at about 2 bits per element: singular vectors, elements,
                       quantisers; `even` draws as many atoms with equal probabilities
    training, 2 bits   four workers, one residual net, the digits: the same; variances of one of its gradients

Variance is E|decoded - g|^2 / |g|^2, from 300 draws per seed; that of even singular vectors is computed. Bits are
those of whole messages, including the header.

Reference: Wang, Sievert, Liu, Charles, Papailiopoulos, Wright, "ATOMO: communication-efficient learning via atomic
sparsification", NeurIPS 2018, arXiv 1806.04090.

Departs from the paper: a small net on the digits; there is no cluster to time, so the speed-ups are not measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, final

from thinwire.compressors.atomo import AtomoEntries, AtomoSpectral
from thinwire.compressors.qsgd import Qsgd
from thinwire.compressors.terngrad import TernGrad
from thinwire.core.channel import Channel
from thinwire.lab import gradient, tasks
from thinwire.lab.intervals import no_loss
from thinwire.lab.records import Row
from thinwire.lab.reproduce.atomo_facts import (
    ATOMS,
    COMPRESSORS,
    DRAWS,
    RECORDED,
    SHARE,
    SPECIAL,
    even,
    measure,
    trained,
)
from thinwire.lab.reproduce.one_model import FLOAT, train
from thinwire.lab.reproduce.one_model import Run as Training
from thinwire.lab.reproduce.panels import Line, Panel, draw
from thinwire.lab.reproduce.study import Means, Run, Statement, Study

TRAINING = "training, 2 bits"
EVEN = "singular vectors, even"
BIASED = 2.5  # a squared bias of half a percent of the variance; a few atoms make most of it, so chance is large too
CHANNELS: dict[str, Channel] = {
    "float32": FLOAT,
    "singular vectors": Channel(AtomoSpectral(1.25)),
    "elements": Channel(AtomoEntries(SHARE)),
    "qsgd": Channel(Qsgd(levels=1, norm="l2", block=512)),
    "terngrad": Channel(TernGrad(clip=None)),
}


def _unbiased(method: str) -> Statement:
    def test(at: Means) -> tuple[str, bool]:
        part = at[RECORDED, method]["bias"]
        return f"the mean of {DRAWS} draws errs by {part:.2f} of what chance alone would leave", part < BIASED

    return Statement(f"ATOMO is unbiased ({method})", "proved", ((RECORDED, method),), test)


def _alike(plain: str) -> Statement:
    mine = f"elements, s of {plain}"

    def test(at: Means) -> tuple[str, bool]:
        a, b = at[SPECIAL, plain]["variance"], at[SPECIAL, mine]["variance"]
        return f"variance {a:.3g} and {b:.3g}", abs(a / b - 1) < 0.05

    name = {"qsgd": "one-level QSGD", "ternary": "TernGrad without clipping"}[plain]
    return Statement(f"{name} is ATOMO on elements", "proved", ((SPECIAL, plain), (SPECIAL, mine)), test)


def _less(one: str, other: str, claim: str, published: str) -> Statement:
    def test(at: Means) -> tuple[str, bool]:
        a, b = at[RECORDED, one], at[RECORDED, other]
        told = f"variance {a['variance']:.3g} at {a['bits']:.2f} bits, {b['variance']:.3g} at {b['bits']:.2f}"
        return told, a["variance"] < b["variance"]

    return Statement(claim, published, ((RECORDED, one), (RECORDED, other)), test)


def _kept(other: str) -> Statement:
    def test(at: Means) -> tuple[str, bool]:
        a, b = at[TRAINING, "singular vectors"], at[TRAINING, other]
        away, kept = no_loss(a["accuracy"], b["accuracy"], tasks.get("digits").tested)
        return f"{a['accuracy']:.2%} at {a['bits']:.2f} bits, {b['accuracy']:.2%} at {b['bits']:.2f}: {away}", kept

    claim = f"singular vectors train as accurately as {other}"
    return Statement(claim, "no figure", ((TRAINING, "singular vectors"), (TRAINING, other)), test)


@final
class Atomo(Study):
    """Which atoms are drawn, and with which probabilities."""

    name: ClassVar[str] = "atomo"
    paper: ClassVar[str] = "Wang et al. 2018, arXiv 1806.04090"
    claims: ClassVar[str] = (
        "ATOMO draws atoms without bias at the least variance; singular vectors lose less than elements."
    )
    epochs: ClassVar[int | None] = 15
    cases: ClassVar[dict[str, tuple[str, ...]]] = {
        SPECIAL: tuple(COMPRESSORS[SPECIAL]),
        RECORDED: (*COMPRESSORS[RECORDED], EVEN),
        TRAINING: tuple(CHANNELS),
    }
    main: ClassVar[str] = "variance"
    empty: ClassVar[str] = ""
    columns: ClassVar[dict[str, str]] = {
        "case": "",
        "method": "",
        "bits": ".2f",
        "variance": ".3g",
        "bias": ".2f",
        "encode_ms": ".2f",
        "loss": ".3f",
        "accuracy": ".2%",
    }
    heads: ClassVar[dict[str, str]] = {
        "bits": "bits per element",
        "bias": "error of the mean draw, relative to no bias",
        "encode_ms": "ms per encode",
        "loss": "training loss",
        "accuracy": "test accuracy",
    }
    statements: ClassVar[tuple[Statement, ...]] = (
        _unbiased("singular vectors"),
        _unbiased("elements"),
        _alike("qsgd"),
        _alike("ternary"),
        _less("elements", "elements, even", "ATOMO's probabilities beat equal ones (elements)", "proved"),
        _less("singular vectors", EVEN, "ATOMO's probabilities beat equal ones (singular vectors)", "proved"),
        _less("singular vectors", "elements", "singular vectors lose less than elements", "not quoted"),
        _less("singular vectors", "qsgd", "singular vectors lose less than QSGD", "up to 2x faster training"),
        _less("singular vectors", "terngrad", "singular vectors lose less than TernGrad", "up to 3x faster training"),
        *map(_kept, ("float32", "elements", "qsgd", "terngrad")),
    )

    def work(self, run: Run) -> list[Row]:
        """One row: a variance, or a training."""
        nothing: Row = dict.fromkeys(("variance", "bits", "bias", "encode_ms", "accuracy", "loss"))
        if run.case == TRAINING:
            how = CHANNELS[run.method]
            done = train(Training("digits", how, run.seed, run.epochs))
            found = measure(how.compressor, run.seed, *trained(run.seed))
            found |= {"bits": done["bits_per_element"], "accuracy": done["accuracy"], "loss": done["loss"]}
        elif run.method == EVEN:
            bits = measure(AtomoSpectral(ATOMS), run.seed, *gradient.load())["bits"]
            found = {"variance": even(), "bits": bits}
        else:
            found = measure(COMPRESSORS[run.case][run.method](), run.seed, *gradient.load())
        return [{"step": 1, "steps": 1, **nothing, **found}]

    def plot(self, rows: Sequence[Row], path: Path) -> None:
        """Variance on the recorded gradient, variance and accuracy in training; bars show the range over seeds."""
        means = self.summary(rows)
        draw(
            [
                _panel(means, rows, RECORDED, "variance"),
                _panel(means, rows, TRAINING, "variance"),
                _panel(means, rows, TRAINING, "accuracy"),
            ],
            path,
        )


def _panel(means: Sequence[Row], rows: Sequence[Row], case: str, field: str) -> Panel:
    mine = [row for row in means if row["case"] == case and row[field]]
    lines = []
    for at, row in enumerate(mine):
        seeds = [r[field] for r in rows if (r["case"], r["method"]) == (case, row["method"])]
        name = f"_{row['method']}"  # no legend, since the ticks carry the names
        lines.append(Line(name, [at], [row[field]], 2, marks=True, low=[min(seeds)], high=[max(seeds)]))
    ticks = [row["method"].replace(" ", "\n") for row in mine]
    title = f"{case} per element"
    return Panel(title, "", field, lines, log_y=field == "variance", ticks=ticks)

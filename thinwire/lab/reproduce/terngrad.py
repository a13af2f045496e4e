"""TernGrad: three levels per element on the digits, beside float32; the worth of clipping and of scalers per tensor.

    float32       no compression
    terngrad      one scaler per tensor, clipped to 2.5 standard deviations: the method `terngrad`
    no clip       one scaler per tensor
    one scaler    one scaler for the whole gradient, no clip

A case is a number of workers, which share 64 images per step, and a learning rate. The error is that of a rank's
first gradient.

Reference: Wen, Xu, Yan, Wu, Wang, Chen, Li, "TernGrad: ternary gradients to reduce communication in distributed deep
learning", NeurIPS 2017, arXiv 1705.07878.

Departs from the paper: a net of 26,122 parameters on 1,437 images in place of AlexNet and GoogLeNet on ImageNet; the
last layer is quantised too. Its model of performance is not reproduced.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, final

import torch

from thinwire.compressors.terngrad import TernGrad
from thinwire.core.exchange import Exchange
from thinwire.core.types import Key, Layout
from thinwire.exchange.all_reduce import AllReduce
from thinwire.exchange.shared_scale import SharedScale
from thinwire.lab.records import Row
from thinwire.lab.reproduce.panels import Line, Panel, draw
from thinwire.lab.reproduce.replicas import Plan, digits, gradient, start, train
from thinwire.lab.reproduce.study import Means, Run, Statement, Study

CLIPS = {"terngrad": 2.5, "no clip": None, "one scaler": None}
METHODS = ("float32", *CLIPS)
WORKERS = (2, 4)
RATES = (0.1, 0.2)  # float32 has less training loss at the second
PLANS = {f"{n} workers, lr {rate:g}": (n, rate) for rate in RATES for n in WORKERS}
IMAGES = 64  # of all workers, per step
DRAWS = 50
NEAR = 1.5  # points of accuracy that count as no loss
WHOLE = "one scaler"


def error(method: str, seed: int, images: int) -> float:
    """E|Q(g) - g|^2 / |g|^2 of the first gradient of a worker."""
    if method == "float32":
        return 0.0
    model, data = start(seed), digits()
    g, _ = gradient(model, list(model.parameters()), data.train_x[:images], data.train_y[:images])
    layout = Layout.flat(g.numel()) if method == WHOLE else Layout.of(model.named_parameters())
    q = TernGrad(CLIPS[method])
    drawn = [q.decode(q.encode(g, layout, Key(seed, step)), layout) for step in range(DRAWS)]
    return float(torch.stack([(some - g).square().sum() for some in drawn]).mean() / g.square().sum())


def _cases(rate: float) -> tuple[str, ...]:
    return tuple(case for case, (_, its) in PLANS.items() if its == rate)


def _keeps(rate: float) -> Statement:
    def test(at: Means) -> tuple[str, bool]:
        pairs = [(at[case, "terngrad"]["accuracy"] or 0, at[case, "float32"]["accuracy"] or 0) for case in cases]
        away = [100 * (mine - other) for mine, other in pairs]
        return ", ".join(f"{a:+.2f} points" for a in away), min(away) > -NEAR

    cases = _cases(rate)
    needs = tuple((case, method) for case in cases for method in ("float32", "terngrad"))
    published = "none on AlexNet, below 2% on average on GoogLeNet"
    return Statement(f"ternary gradients cost little or no accuracy, at lr {rate:g}", published, needs, test)


def _falls(field: str, better: str, worse: str, rate: float) -> Statement:
    def test(at: Means) -> tuple[str, bool]:
        pairs = [(at[case, better][field], at[case, worse][field]) for case in cases]
        told = ", ".join(" against ".join("lost" if x is None else f"{x:.2g}" for x in pair) for pair in pairs)
        return told, all(a is not None and (b is None or a < b) for a, b in pairs)

    cases = _cases(rate)
    what = "quantisation error" if field == "error" else f"training loss, at lr {rate:g}"
    name = {"no clip": "clipping", WHOLE: "one scaler per tensor (in place of one for all)"}[worse]
    needs = tuple((case, method) for case in cases for method in (better, worse))
    return Statement(f"{name} lowers the {what}", "improves convergence", needs, test)


@final
class Ternary(Study):
    """Three levels."""

    name: ClassVar[str] = "terngrad"
    paper: ClassVar[str] = "Wen et al. 2017, arXiv 1705.07878"
    claims: ClassVar[str] = (
        "Ternary gradients cost little or no accuracy; clipping and one scaler per layer help them converge."
    )
    cases: ClassVar[dict[str, tuple[str, ...]]] = dict.fromkeys(PLANS, METHODS)
    epochs: ClassVar[int | None] = 12
    main: ClassVar[str] = "accuracy"
    columns: ClassVar[dict[str, str]] = {
        "case": "",
        "method": "",
        "accuracy": ".2%",
        "least": ".2%",
        "most": ".2%",
        "loss": ".3g",
        "error": ".2f",
        "bits": ".2f",
        "seeds": "d",
    }
    heads: ClassVar[dict[str, str]] = {
        "bits": "bits sent per element and step",
        "loss": "training loss",
        "error": "squared error / squared norm",
    }
    statements: ClassVar[tuple[Statement, ...]] = (
        *map(_keeps, RATES),
        *(
            _falls(field, *pair, rate)
            for pair in (("terngrad", "no clip"), ("no clip", WHOLE))
            for field, rate in (("error", RATES[0]), *(("loss", rate) for rate in RATES))
        ),
    )

    def work(self, run: Run) -> list[Row]:
        """Train once."""
        n, lr = PLANS[run.case]
        how: Exchange = AllReduce() if run.method == "float32" else SharedScale(TernGrad(CLIPS[run.method]))
        plan = Plan(run.epochs, run.seed, n, IMAGES // n, lr=lr, whole=run.method == WHOLE)
        return [{"workers": n, "lr": lr, **train(how, plan), "error": error(run.method, run.seed, IMAGES // n)}]

    def plot(self, rows: Sequence[Row], path: Path) -> None:
        """Accuracy of every seed; 0 where the run was lost."""
        panels = []
        for case in PLANS:
            lines = []
            for i, name in enumerate(METHODS):
                mine = [row["accuracy"] or 0 for row in rows if (row["case"], row["method"]) == (case, name)]
                lines.append(Line("_", [i] * len(mine), mine, i, marks=True))
            panels.append(Panel(case, "", "test accuracy of each seed, 0 if lost", lines, ticks=METHODS))
        draw(panels, path)

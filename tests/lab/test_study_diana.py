"""DIANA's reproduction: the problem is what it says, and short runs show the difference."""

from __future__ import annotations

import pytest
import torch

from thinwire.lab.reproduce import diana
from thinwire.lab.reproduce.diana import CASES, METHODS, SLOW, Diana
from thinwire.lab.reproduce.logistic import Logistic
from thinwire.lab.reproduce.study import Means, Run, Statement


@pytest.mark.parametrize("by_label", [True, False])
def test_gradients_are_those_of_the_loss(by_label: bool) -> None:
    f = Logistic(4, 0.1, by_label=by_label)
    w = 0.1 * torch.randn(f.d, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mean, h = f.gradients(w).mean(0), 1e-5
    for at in (0, 100, 649):
        e = torch.zeros_like(w)
        e[at] = h
        assert float(mean[at]) == pytest.approx((f.loss(w + e) - f.loss(w - e)) / (2 * h), abs=1e-8)
    alone = f.gradients(f.optimum)
    assert alone.mean(0).norm() < 1e-10
    assert alone.norm(dim=1).min() > (0.5 if by_label else 0.02)
    assert f.gap(w) > 0


def test_sorted_workers_see_few_digits() -> None:
    seen = [(Logistic(8, 0.1, by_label=by).y.sum(1) > 0).sum(1) for by in (True, False)]
    assert seen[0].max() <= 3
    assert seen[1].min() == 10


def test_differences_go_on_where_gradients_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diana, "STEPS", 400)
    rows = {method: Diana().work(Run("largest, sorted", method, 0, 0)) for method in ("gd", "quantised", "diana")}
    assert all(len(curve) == 40 and curve[-1]["step"] == 400 for curve in rows.values())
    ends = {method: curve[-1]["gap"] for method, curve in rows.items()}
    assert 0 < ends["gd"] < ends["diana"] < 0.1 * ends["quantised"]
    assert ends["quantised"] > 3e-3
    assert rows["gd"][-1]["to_3"] < rows["diana"][-1]["to_3"] < 400
    assert rows["quantised"][-1]["to_3"] is None
    assert rows["diana"][-1]["message"] == pytest.approx(2 + 5 * 32 / 650 + 256 / 650, abs=0.02)


def test_rates_are_alike() -> None:
    for case in CASES:
        slower = {method: diana.channel(case, method)[1] for method in METHODS}
        assert slower["gd"] == 1 < slower["quantised"] == slower["diana"] == slower[SLOW] / 4
    assert diana.channel("length, sorted", "diana")[1] == pytest.approx(1 + 130**0.5 / 8)


def _judged(claim: str, at: Means) -> bool:
    (found,) = [s for s in Diana.statements if claim in s.claim]
    assert isinstance(found, Statement)
    return found.test(at)[1]


def test_statements_are_judged() -> None:
    place = ("largest, sorted", "diana")
    assert _judged("linear", {place: {"to_3": 100, "to_5": 200, "to_7": 310}})
    assert not _judged("linear", {place: {"to_3": 100, "to_5": 200, "to_7": 500}})
    assert not _judged("linear", {place: {"to_3": 100, "to_5": 200, "to_7": None}})
    assert not _judged("fewer bits", {place: {"sent": 9.0}, ("largest, sorted", "gd"): {"sent": 8.0}})

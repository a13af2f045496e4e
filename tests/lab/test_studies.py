"""Studies: tiny runs have the fields of recorded rows, statements can fail, pages are those of the recorded rows."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
import torch

from thinwire.cli.app import main
from thinwire.lab import figures
from thinwire.lab.records import FACTS, Row, read
from thinwire.lab.reproduce import REPRODUCTIONS, Settings, get
from thinwire.lab.reproduce.study import Run, Study
from thinwire.lab.reproduce.wilson import Wilson

STUDIES = {name: made for name, made in REPRODUCTIONS.items() if isinstance(made, Study)}
DATA, PAPERS = figures.ROOT / "benchmarks" / "data", figures.ROOT / "docs" / "papers"


@pytest.mark.parametrize("name", STUDIES)
def test_recorded_rows_are_whole(name: str) -> None:
    study, rows = STUDIES[name], read(DATA / f"{name}.csv")
    for case, methods in study.cases.items():
        for method in methods:
            mine = [row for row in rows if (row["case"], row["method"]) == (case, method)]
            assert {row["seed"] for row in mine} == set(range(study.seeds)), (case, method)
    assert all(trend.holds is not None for trend in study.trends(rows))


def _ran(name: str, case: str, method: str, epochs: int = 1) -> Row:
    """The last row of a run."""
    rows = STUDIES[name].work(Run(case, method, 0, epochs))
    kept = {
        key for key in read(DATA / f"{name}.csv")[0] if key not in (*FACTS, "task", "split", "case", "method", "seed")
    }
    assert set(rows[-1]) == kept
    assert "NaN" not in json.dumps(rows)
    return rows[-1]


def test_signs_stay_on_the_diagonal_and_feedback_leaves_it() -> None:
    signs, fed = (_ran("signsgd", "least squares", method)["loss"] for method in ("signsgd", "ef-signsgd"))
    assert signs >= 0.08 - 1e-6
    assert fed < 1e-4


def test_span_of_the_rows() -> None:
    data = Wilson(0)
    inside = data.a.T @ torch.randn(len(data.y), generator=torch.Generator().manual_seed(0))
    assert data.outside(inside) < 1e-6
    assert data.outside(torch.ones(data.d)) > 0.1
    best = torch.linalg.lstsq(data.a.double(), data.y.double()[:, None], driver="gelsd").solution[:, 0].float()
    assert data.loss(best) < 1e-10
    assert data.accuracy(best) == 1
    assert data.accuracy(torch.ones(data.d)) == pytest.approx(0.6, abs=0.1)


def _fake(study: Study, value: float) -> Sequence[Row]:
    """Recorded rows with one and the same main figure."""
    return [row | {study.main: value} for row in read(DATA / f"{study.name}.csv")]


@pytest.mark.parametrize("name", STUDIES)
def test_statements_can_fail(name: str) -> None:
    """Methods that are all alike show no difference."""
    study = STUDIES[name]
    assert any(trend.holds is False for trend in study.trends(_fake(study, 0.3)))
    few = [row for row in read(DATA / f"{name}.csv") if row["method"] == next(iter(study.cases.values()))[0]]
    assert any(trend.holds is None for trend in study.trends(few))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Settings(task="fashion"), "has its own data"),
        (Settings(epochs=3), "does not train in epochs"),
        (Settings(seeds=0), "--seeds 3"),
        (Settings(methods=("signsg",)), "did you mean 'signsgd'"),
    ],
)
def test_bad_settings(settings: Settings, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        get("signsgd").check(settings)


def test_recorded_rows_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "signsgd", "--from", str(DATA / "signsgd.csv"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["trends"]) == len(STUDIES["signsgd"].statements)

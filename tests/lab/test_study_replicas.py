"""Studies that train on the digits, 1-bit SGD, TernGrad and natural compression: tiny runs, and their parts."""

from __future__ import annotations

import json

import pytest
import torch

from thinwire.compressors.natural import Natural
from thinwire.compressors.scaled_sign import ScaledSign
from thinwire.exchange.all_reduce import AllReduce
from thinwire.lab import figures
from thinwire.lab.records import FACTS, Row, read
from thinwire.lab.reproduce import get
from thinwire.lab.reproduce.natural import even, needed, spread, vector
from thinwire.lab.reproduce.one_bit import CASES, best, exchange
from thinwire.lab.reproduce.replicas import Plan, gradient, move, start, train
from thinwire.lab.reproduce.study import Run, Study
from thinwire.lab.reproduce.terngrad import error

DATA = figures.ROOT / "benchmarks" / "data"


def _ran(name: str, case: str, method: str, epochs: int = 1) -> Row:
    """The row of a run, with the fields of recorded ones."""
    study = get(name)
    assert isinstance(study, Study)
    (row,) = study.work(Run(case, method, 0, epochs))
    kept = read(DATA / f"{name}.csv")[0].keys() - {*FACTS, "task", "split", "case", "method", "seed"}
    assert row.keys() == kept
    assert "NaN" not in json.dumps(row)
    return row


def test_one_bit_learns_more_with_feedback() -> None:
    fed, none = (_ran("one-bit", "lr 0.1", method, 3) for method in ("feedback", "none"))
    assert fed["loss"] < 0.8 * none["loss"]
    assert fed["bits"] == none["bits"] < 3
    assert len({exchange(method) for method in ("feedback", "printed", "none")}) == 3


def test_cold_start_is_float32_at_first() -> None:
    row = train(exchange("cold start"), Plan(2, lr=0.1, cold=1))
    assert 25 < row["bits"] < 26  # half of the steps at 48 bits
    plain, cold = (train(how, Plan(1, lr=0.1, cold=1)) for how in (AllReduce(), exchange("none")))
    assert cold == plain


def test_best_rate_is_that_of_the_least_loss() -> None:
    losses = dict(zip(CASES, (0.3, None, 0.1, 0.2), strict=True))
    assert best({(case, "none"): {"loss": loss} for case, loss in losses.items()}, "none") == (CASES[2], "none")


def test_ternary_run() -> None:
    row = _ran("terngrad", "2 workers, lr 0.1", "terngrad")
    assert 2 < row["bits"] < 3
    assert 0.3 < row["error"] < error("no clip", 0, 32) < error("one scaler", 0, 32)
    assert error("float32", 0, 32) == 0


def test_natural_runs() -> None:
    worst = _ran("natural", "all 4/3", "natural")
    assert worst["error"] == pytest.approx(1 / 8, rel=0.02)
    assert worst["ratio"] == pytest.approx(32 / 9, rel=0.01)
    four = _ran("natural", "Gaussian, d=1024", "s=4")
    assert four["error"] == pytest.approx(four["even"], rel=0.05)
    assert four["error"] < 0.5 * four["same"]
    assert four["needed"] in (7, 8, 9)
    assert 3.5 < _ran("natural", "training", "natural")["ratio"] < 32 / 9


def test_spread_finds_a_bias() -> None:
    x = vector("Gaussian, d=1024", 0)
    assert spread(Natural(), x, 0)[1] == pytest.approx(1, abs=0.3)
    assert spread(ScaledSign(), x, 0)[1] > 100  # it does not draw: the mean error is the error


def test_even_levels_for_a_variance() -> None:
    x = vector("gradient, d=1024", 1)
    assert needed(even(20, x, 0), x, 0) == 20
    assert needed(0.0, x, 0) == 127
    assert torch.equal(x, vector("gradient, d=1024", 1))


def test_training_is_plain_sgd_where_nothing_is_lost() -> None:
    """Four workers with 16 images each equal one with 64."""
    four, one = train(AllReduce(), Plan(1)), train(AllReduce(), Plan(1, workers=1, batch=64))
    assert four["loss"] == pytest.approx(one["loss"], rel=1e-4)
    assert four["steps"] == 1437 // 64
    assert four["bits"] == pytest.approx(48)


def test_a_lost_run_is_a_row() -> None:
    row = train(AllReduce(), Plan(1, lr=1e6))
    assert row["accuracy"] is None
    assert "NaN" not in json.dumps(row)


def test_gradient_is_that_of_differences() -> None:
    model = start(0).double()
    params: list[torch.Tensor] = list(model.parameters())
    images, labels = torch.linspace(-1, 1, 128).view(2, 1, 8, 8).double(), torch.tensor([3, 7])
    grad, before = gradient(model, params, images, labels)
    move(params, grad, 1e-6)
    assert (gradient(model, params, images, labels)[1] - before) / 1e-6 == pytest.approx(float(grad @ grad), rel=1e-3)

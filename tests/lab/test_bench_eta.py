"""`thinwire bench eta`: what its rows and its summary say."""

from __future__ import annotations

import pytest
import torch

import thinwire as tw
from thinwire.cli.app import main
from thinwire.exchange.mix import Mix
from thinwire.lab import bench_eta
from thinwire.lab.bench_eta import Quadratics, summary
from thinwire.lab.records import Row


def run(name: str, steps: int = 40) -> Row:
    mix = tw.method(name).exchange
    assert isinstance(mix, Mix)
    return bench_eta.run(mix, 4, True, 0.1, steps)


def test_gradients_vanish_at_the_optimum_on_average() -> None:
    task = Quadratics(4, differ=True)
    grads = task.grads(task.optimum.repeat(4, 1))
    assert grads.norm(dim=1).min() > 0.1
    assert grads.mean(0).norm() < 1e-4
    alike = Quadratics(4, differ=False)
    assert torch.equal(alike.c[0], alike.c[3])
    torch.testing.assert_close(alike.optimum, alike.c[0], rtol=1e-3, atol=1e-3)


def test_a_run() -> None:
    near, far = run("choco-sgd:compressor=(qsgd:bits=4),eta=0.8"), run("choco-sgd:compressor=(qsgd:bits=4),eta=0.05")
    assert near["error"] < far["error"]
    assert near["error"] < near["error_ranks"]
    assert near["eta"] == 0.8
    lost = run("choco-sgd:compressor=(randomk:ratio=0.1),eta=1.0", 100)
    assert (lost["error"], lost["error_ranks"]) == (None, None)


def test_the_eta_of_a_row_is_that_of_its_steps() -> None:
    row = run("deepsqueeze:compressor=scaled-sign")
    how = tw.method("deepsqueeze:compressor=scaled-sign").exchange
    assert isinstance(how, Mix)
    assert how.step(4, 0) < row["eta"] <= how.step(4, 1)


def test_summary() -> None:
    head: Row = {"graph": "ring", "ranks": "differ", "method": "choco-sgd", "compressor": "identity"}
    errors = [(None, 0.7, 0.3, 0.9), (0.1, 0.1, 0.4, 0.6), (0.5, 0.5, 0.2, 0.8), (1.0, None, None, None)]
    rows = [head | dict(zip(("given", "eta", "error", "error_ranks"), row, strict=True)) for row in errors]
    mean = {"error": 0.3, "best_eta": 0.5, "best_error": 0.2, "times": pytest.approx(1.5)}
    own = {"error_ranks": 0.9, "best_eta_ranks": 0.1, "best_error_ranks": 0.6, "times_ranks": pytest.approx(1.5)}
    assert summary(rows) == [head | {"eta": 0.7} | mean | own]


def test_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "eta", "--steps", "1"]) == 2
    assert "write --lr 0.05 --steps 160" in capsys.readouterr().err

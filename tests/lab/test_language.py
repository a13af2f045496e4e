"""The language model over slow links: its corpus, its rates, its table, and a run between two hosts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from thinwire.cli.app import app, main
from thinwire.lab import corpus, records
from thinwire.lab.language import ENDS, Job, _rate
from thinwire.lab.language_table import page, summary
from thinwire.lab.records import Row


def test_the_corpus_is_cut_once_and_read_anywhere() -> None:
    found = corpus.load()
    assert len(found.train) > 5_000_000
    assert len(found.held_out) / len(found.train) == pytest.approx(1 / (corpus.HELD_OUT - 1), rel=0.05)
    some = corpus.windows(found.train, 4, 16, seed=3)
    assert some.shape == (4, 17)
    assert torch.equal(some, corpus.windows(found.train, 4, 16, seed=3))
    assert not torch.equal(some, corpus.windows(found.train, 4, 16, seed=4))


def test_a_folder_without_sources_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="write --data"):
        corpus.load(tmp_path)


def test_the_rate_rises_and_falls() -> None:
    rates = [_rate(step, 100) for step in range(101)]
    assert rates[9] == max(rates) == 1.0
    assert rates[100] == pytest.approx(ENDS)
    assert rates[10:] == sorted(rates[10:], reverse=True)


def row(method: str, seed: int, held_out: float, seconds: float, *, extrapolated: bool = False) -> Row:
    common = {"hosts": 4, "rate": "100mbit", "params": 10, "steps": 5, "bytes_sent": 2_000_000}
    return {
        **common,
        "method": method,
        "seed": seed,
        "held_out": held_out,
        "seconds": seconds,
        "extrapolated": extrapolated,
    }


def test_losses_and_seconds_are_compared_with_ddp_of_the_same_seeds(tmp_path: Path) -> None:
    rows = [
        row("ddp", 0, 2.0, 100.0, extrapolated=True),
        row("ddp", 1, 4.0, 100.0, extrapolated=True),
        row("mine", 0, 2.02, 10.0),
    ]
    ddp, mine = summary(rows)
    assert (ddp["seconds"], ddp["over_ddp"]) == ("100.0*", 0.0)
    assert mine["over_ddp"] == pytest.approx(0.01)
    assert mine["sooner"] == pytest.approx(10.0)
    records.save(tmp_path / "rows.csv", rows)
    assert "| `mine` | 1 | 2.0200 | +1.00% | 10.0 | 2.0 | 10.0 |" in page(tmp_path / "rows.csv")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--device", "tpu"], "write --device cpu"),
        (["--device", "cpu", "--width", "60"], "a multiple of 64"),
        (["--device", "cpu", "--steps", "100"], "write --steps 300"),
        (["--device", "cpu", "--timed", "-1"], "write --timed 20"),
        (["--device", "cpu", "--method", "diluco"], "diluco"),
        (["--device", "cpu", "--method", "torchft diloco-5 fp8"], "needs a GPU"),
        (["--device", "cpu", "--method", "torchft diloco-0"], "write 'torchft diloco-5'"),
    ],
)
def test_refusals(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "language", *words]) == 2
    assert told in capsys.readouterr().err


def test_two_hosts_train_and_the_mean_gradient_is_that_of_one_process(tmp_path: Path, root: None) -> None:
    words = ["--hosts", "2", "--device", "cpu", "--width", "64", "--layers", "1", "--batch", "1"]
    words += ["--steps", "2", "--every", "1", "--method", "ddp", "--method", "sgd", "--save", str(tmp_path / "l.csv")]
    assert CliRunner().invoke(app, ["bench", "language", *words]).exit_code == 0
    ddp, sgd = records.read(tmp_path / "l.csv")
    assert sgd["held_out"] == pytest.approx(ddp["held_out"], rel=1e-5)
    assert (ddp["extrapolated"], sgd["extrapolated"]) == (True, False)
    assert sgd["bytes_sent"] > 2 * 4 * sgd["params"]
    assert Job("100mbit").shape.words == corpus.SYMBOLS

"""`thinwire race --stragglers`: real processes over shaped links, and the clock beside them."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import pytest

from thinwire.cli.app import main
from thinwire.lab.stragglers.course import contestants

RACE = ["race", "--stragglers", "slow"]


@pytest.mark.long
def test_processes_and_the_clock(root: None, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = [*RACE, "--hosts", "2", "--clock", "2", "--clock", "3", "--seconds", "1.2", "--seeds", "1", "--lr", "0.2"]
    words += ["--method", "sgd", "--method", "asgd", "--json", "--save", str(tmp_path / "rows.csv")]
    assert main([*words, "--curves", str(tmp_path / "points.csv")]) == 0
    document = json.loads(capsys.readouterr().out)
    rows = {(row["method"], row["where"], row["workers"]): row for row in document["rows"]}
    assert len(rows) == len(document["rows"]) == 6
    sgd, asgd = rows["sgd", "processes", 2], rows["asgd", "processes", 2]
    # Worker 1 takes 250 ms per step; nobody is ahead of it, or the other one goes on in 50.
    assert sgd["fastest"] == sgd["slowest"] <= 4
    assert asgd["slowest"] <= 4 < asgd["fastest"] <= 24
    assert asgd["staleness_max"] >= 1
    # The same model after as many steps as on the clock.
    losses = [
        {at[0]: loss for at, loss in zip(row["curves"]["steps"], row["curves"]["loss"], strict=True)}
        for row in (sgd, rows["sgd", "clock", 2])
    ]
    common = sorted(set(losses[0]) & set(losses[1]))
    assert common[-1] >= 2
    assert [losses[0][n] for n in common] == pytest.approx([losses[1][n] for n in common], rel=1e-4)
    assert [line["method"] for line in document["summary"]["processes"]["2"]] == ["sgd", "asgd"]
    with (tmp_path / "points.csv").open() as file:
        assert {point["workers"] for point in csv.DictReader(file)} == {"2"}
    assert main([*RACE, "--from", str(tmp_path / "rows.csv")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "2 workers in real processes, and on the clock" in shown
    assert "3 workers on the clock" in shown


def test_tune(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    monkeypatch.setattr("thinwire.lab.stragglers.steps.FEWEST", 0)
    monkeypatch.setattr("thinwire.lab.stragglers.steps.MOST", 1)
    words = [*RACE, "--tune", "--clock", "2", "--target", "0.2", "--seconds", "1", "--method", "asgd"]
    assert main([*words, "--save", str(tmp_path / "steps.csv")]) == 0
    assert "one worker 5 times slower, on the clock" in capsys.readouterr().out
    with (tmp_path / "steps.csv").open() as file:
        assert {(row["lr"], row["where"]) for row in csv.DictReader(file)} == {("0.1", "clock"), ("0.2", "clock")}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--stragglers", "slwo"], "unknown kind of stragglers 'slwo'; did you mean 'slow'"),
        (["--stragglers", "slow:by=3"], "has no setting 'by'"),
        (["--stragglers", "slow:times=-1"], "write --stragglers slow:times=5"),
        (["--stragglers", "stalls:probability=2"], "write --stragglers stalls:probability=0.05,times=10"),
        (["--task", "fashion"], "write --task digits"),
        (["--hosts", "1"], "write --hosts 4"),
        (["--hosts", "90"], "2 to 89 can race"),
        (["--clock", "1"], "write --hosts 4, or --clock 16"),
        (["--clock", "5"], "no step size is recorded for sgd on 5 workers"),
        (["--rate", "fast"], "write a number and kbit, mbit or gbit"),
        (["--method", "asdg"], "unknown method 'asdg'; did you mean"),
        (
            ["--method", "softsync"],
            "find one with thinwire race --tune --stragglers slow --clock 4 --method softsync",
        ),
        (["--method", "asgd", "--lr", "-1"], "write --lr 0.1"),
        (["--target", "1.5"], "write --target 0.93"),
        (["--seconds", "0.5"], "write --seconds 12"),
        (["--seed", "-1"], "seeds from 0 up"),
        (["--steps", "20"], "leave --steps, --data and --out out"),
        (["--tune", "--lr", "0.1"], "leave --lr, --seed and --plot out"),
        (["--plot", "plot.txt"], "plot.txt is not a plot"),
        (["--from", "rows.csv", "--save", "other.csv"], "leave it out to race"),
    ],
)
def test_bad_input(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RACE, *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert "Traceback" not in err


def test_the_clock_belongs_to_stragglers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["race", "--clock", "16"]) == 2
    assert "write --stragglers slow" in capsys.readouterr().err


def test_without_root(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("shutil.which", lambda name: name)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main([*RACE, "--hosts", "4", "--clock", "4"]) == 2
    assert "or --hosts 0 to race on the clock alone" in capsys.readouterr().err


def test_who_races() -> None:
    assert contestants(4)[:2] == ("sgd", "backup-workers:spares=1")
    assert contestants(64)[1] == "backup-workers:spares=6"
    assert len(contestants(16)) == 9

"""`thinwire race`: real processes over shaped links; rows, curves and a table that agree with each other."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import pytest
from interrupt import ctrl_c

from thinwire.cli.app import main
from thinwire.core.method import METHODS
from thinwire.lab.launch import Say
from thinwire.lab.net import reaper
from thinwire.lab.race import TESTS, Ended, Run, lost

SHORT = ["race", "--hosts", "2", "--rate", "2gbit", "--target", "0.3", "--steps", "15", "--seeds", "1"]
TWO = ["--method", "ddp", "--method", "ef-signsgd"]


def test_rows(root: None, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("rows.csv", "points.csv", "race.svg", "race.html")}
    kept = ["--save", files["rows.csv"], "--curves", files["points.csv"]]
    drawn = ["--plot", files["race.svg"], "--out", files["race.html"]]
    assert main([*SHORT, *TWO, "--lr", "0.05", "--json", *map(str, [*kept, *drawn])]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["environment"]["command"]
    ddp, sign = document["rows"]
    assert [row["method"] for row in (ddp, sign)] == ["ddp", "ef-signsgd"]
    for row in (ddp, sign):
        curves = row["curves"]
        assert len(set(map(len, curves.values()))) == 1
        assert curves["step"] == [5.0 * (n + 1) for n in range(len(curves["step"]))]
        assert (row["steps"], row["seconds"]) == (curves["step"][-1], curves["seconds"][-1])
        assert (row["hosts"], row["rate"], row["target"], row["lr"]) == (2, "2gbit", 0.3, 0.05)
        assert row["accuracy"] == pytest.approx(sum(curves["accuracy"][-TESTS:]) / TESTS)
        assert row["reached"] == (row["accuracy"] >= 0.3)
        assert 0 < row["step_ms_p20"] <= row["step_ms_p50"] <= row["step_ms_p80"]
        assert sorted(curves["bytes_sent"]) == curves["bytes_sent"]
    # Two hosts: each sends every element once, with 4.6% of headers; of 32 bits or of 1.
    bits = [8 * row["bytes_sent"] / row["steps"] / row["params"] for row in (ddp, sign)]
    assert 32 < bits[0] < 35
    assert 1 < bits[1] < 2.2
    first, second = document["summary"]
    assert first["over_ddp"] == 1.0
    if ddp["reached"] and sign["reached"]:
        assert second["over_ddp"] == pytest.approx(ddp["seconds"] / sign["seconds"])
    with files["points.csv"].open() as file:
        points = list(csv.DictReader(file))
    assert [float(point["test_accuracy"]) for point in points] == ddp["curves"]["accuracy"] + sign["curves"][
        "accuracy"
    ]
    assert files["race.html"].read_text().count("<svg") == 3
    assert files["race.svg"].stat().st_size > 1000
    assert main([*SHORT, "--from", str(files["rows.csv"])]) == 0
    assert "ef-signsgd" in capsys.readouterr().out
    mine = f"thinwire-{os.getpid()}-"
    assert not [path.name for path in reaper.NAMESPACES.iterdir() if path.name.startswith(mine)]


def test_tune(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    monkeypatch.setattr("thinwire.cli.race.GRID", (0.05, 0.1))
    words = ["race", "--tune", "--hosts", "2", "--target", "0.2", "--steps", "15", "--method", "sgd"]
    assert main([*words, "--save", str(tmp_path / "steps.csv")]) == 0
    assert "seed 100" in capsys.readouterr().out
    with (tmp_path / "steps.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["lr"] for row in rows] == ["0.05", "0.1"]
    assert {(row["rate"], row["bytes_sent"], row["seed"]) for row in rows} == {("", "", "100")}


def test_a_race_that_is_stopped_leaves_the_runs_that_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def stopped(program: object, workers: int, some: list[Run], *, hear: Say, timeout: float) -> None:
        hear(Ended(lost(some[0], workers)))
        raise KeyboardInterrupt

    monkeypatch.setattr("thinwire.cli.race.launch", stopped)
    path = tmp_path / "steps.csv"
    assert main(["race", "--tune", "--method", "sgd", "--save", str(path)]) == 130
    with path.open() as file:
        assert [row["lr"] for row in csv.DictReader(file)] == ["0.0125"]


def test_one_that_is_not_finite_loses_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: list[list[float]] = []

    def launched(program: object, workers: int, some: list[Run], *, hear: Say, timeout: float) -> list[object]:
        started.append([run.step.lr for run in some])
        if any(run.step.lr == 0.1 for run in some):
            raise RuntimeError("rank 0: the model is not finite in step 3: weight")
        rows = [{**lost(run, workers), "accuracy": 0.5} for run in some]
        for row in rows:
            hear(Ended(row))
        return [rows]

    monkeypatch.setattr("thinwire.cli.race.launch", launched)
    monkeypatch.setattr("thinwire.cli.race.GRID", (0.05, 0.1, 0.2))
    path = tmp_path / "steps.csv"
    assert main(["race", "--tune", "--method", "sgd", "--save", str(path)]) == 0
    assert started == [[0.05, 0.1, 0.2], [0.05], [0.1], [0.2]]
    with path.open() as file:
        rows = [(row["lr"], row["accuracy"]) for row in csv.DictReader(file)]
    assert rows == [("0.05", "0.5"), ("0.1", "0.0"), ("0.2", "0.5")]


def test_a_method_without_a_recorded_step_size_starts_with_that_of_ddp(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[Run] = []

    def raced(every: list[Run], hosts: int, rate: str, file: object) -> list[object]:
        started.extend(every)
        return [{**lost(run, hosts), "bytes_sent": 1} for run in every]

    monkeypatch.setattr("thinwire.cli.race._raced", raced)
    words = ["--method", "int4", "--method", "ddp", "--method", "signsgd", "--method", "diloco:every=20"]
    assert main(["race", "--hosts", "2", "--seeds", "1", *words, "--steps", "400"]) == 0
    assert [(run.method, run.step.lr, run.step.momentum) for run in started] == [
        ("int4", 0.05, 0.9),
        ("ddp", 0.05, 0.9),
        ("signsgd", METHODS.parse("signsgd").recipe.lr, 0.0),
        ("diloco:every=20", 0.05, 0.9),
    ]
    err = capsys.readouterr().err
    assert "no step size is recorded for int4, diloco:every=20 on digits: DDP's 0.05 is taken" in err
    assert "diloco:every=20: 400 steps are 20 rounds of 20, and the outer momentum needs about 50" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task", "digit"], "unknown task 'digit'; did you mean 'digits'"),
        (["--hosts", "1"], "write --hosts 4"),
        (["--hosts", "45"], "2 to 44 can share digits"),
        (["--rate", "fast"], "write a number and kbit, mbit or gbit"),
        (["--rate", "200kbit"], "a float32 step would take 516 s; write --rate 100mbit"),
        (["--method", "qsdg"], "unknown method 'qsdg'; did you mean 'qsgd'"),
        (["--target", "1.5"], "write --target 0.95"),
        (["--target", "0"], "write --target 0.95"),
        (["--steps", "14"], "14 steps are too few for 3 tests"),
        (["--seeds", "0"], "write --seeds 3"),
        (["--seed", "-1"], "seeds from 0 up"),
        (["--lr", "-0.1"], "write --lr 0.05"),
        (["--lr", "0.1", "--tune"], "leave --lr out"),
        (["--plot", "plot.txt"], "plot.txt is not a plot"),
        (["--data", "/nowhere"], "leave --data out"),
        (["--from", "/nowhere/rows.csv"], "/nowhere/rows.csv"),
        (["--from", "rows.csv", "--plot", "plot.svg"], "leave it out to race"),
    ],
)
def test_bad_input(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SHORT, *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert "Traceback" not in err


def test_without_root(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("shutil.which", lambda name: name)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main([*SHORT, "--task", "text", "--lr", "0.1"]) == 2
    assert "needs root; write sudo thinwire race --task text" in capsys.readouterr().err


def test_ctrl_c_is_quiet_and_leaves_no_host(root: None) -> None:
    mine = f"thinwire-{ctrl_c([*SHORT, *TWO, '--lr', '1e-9', '--steps', '100000'], after=5)}-"
    assert not [path.name for path in reaper.NAMESPACES.iterdir() if path.name.startswith(mine)]

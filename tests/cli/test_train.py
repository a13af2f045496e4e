"""The commands that train: real processes, short runs."""

from __future__ import annotations

import csv
import json
import time
from pathlib import Path

import pytest
from interrupt import ctrl_c
from ranks import as_torchrun

from thinwire.cli.app import main
from thinwire.lab import records
from thinwire.lab.demo import forecast
from thinwire.lab.train import Job

TRIED = ["sgd", "qsgd:bits=4", "ef-signsgd", "local-sgd:every=4"]
SHORT = ["--epochs", "1", "--workers", "2"]


def test_demo_with_a_forecast(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    files = ["--out", str(tmp_path / "new" / "demo.html"), "--save", str(tmp_path / "rows.csv")]
    forecast = ["--forecast", "--rate", "50mbit"]
    assert main(["demo", *SHORT, "--methods", *TRIED, "--json", *forecast, *files]) == 0
    out, err = capsys.readouterr()
    rows = json.loads(out)["rows"]
    assert [row["method"] for row in rows] == TRIED
    for row in rows:
        assert row["accuracy_low"] <= row["accuracy"] <= row["accuracy_high"]
        assert row["accuracy"] > 0.2
        assert (row["steps"], row["tested"], row["timing"], row["rate"]) == (44, 360, "forecast", "50mbit")
        assert row["replicas_equal"]
        assert row["curves"]["seconds"][-1] == pytest.approx(row["seconds"])
        assert row["curves"]["loss"][-1] == row["loss"]
        assert "wire_s" not in row  # of loopback
    sgd, qsgd, sign, local = rows
    assert sgd["ratio"] == pytest.approx(1, rel=1e-3)
    assert 7 < qsgd["ratio"] < 8
    assert 20 < sign["ratio"] < 32
    assert local["ratio"] == pytest.approx(4, rel=1e-2)
    assert local["bits_per_element"] == pytest.approx(32 / 4, rel=1e-2)
    assert sgd["bytes_sent"] / qsgd["bytes_sent"] == pytest.approx(qsgd["ratio"], rel=1e-2)
    # A link of 50 Mbit/s takes 97 ms for the float32 gradient of a step; here a step takes some.
    assert sgd["faster"] == 1
    assert 44 * 8 * 605e3 / 50e6 < sgd["seconds"] < 44 * 8 * 605e3 / 50e6 + sgd["seconds_without_link"]
    assert 1.5 < qsgd["faster"] < 8
    assert qsgd["faster"] == sgd["seconds"] / qsgd["seconds"]
    assert "loss" in err
    assert "seconds will be a forecast: --forecast" in err
    with (tmp_path / "rows.csv").open() as file:
        assert [row["method"] for row in csv.DictReader(file)] == [row["method"] for row in rows]
    page = (tmp_path / "new" / "demo.html").read_text()
    assert f"--rate 50mbit --forecast --methods {' '.join(TRIED)}" in page
    assert "no measurement but a forecast" in page
    assert page.count("<svg") == 3


def test_every_method_has_a_forecast() -> None:
    """Also those whose messages the clock cannot foresee: the demo fails before it trains, or not at all."""
    row = {"task": "digits", "seconds": 1.32, "steps": 132, "workers": 4, "encode_s": 0.0, "decode_s": 0.0}
    row |= {"bytes_sent": 66_000_000, "curves": {"step": [1.0]}}
    for method in ("sgd", "asgd", "ad-psgd", "marina"):
        (made,) = forecast([{**row, "method": method}], "50mbit")
        assert made["timing"] == "forecast"
        if method != "sgd":
            assert made["seconds"] == pytest.approx(1.32 + 8 * 66 / 50)


def test_demo_over_a_link(root: None, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["--rate", "500mbit", "--optimizer", "adamw", "--lr", "0.004", "--methods", "sgd", "int4"]
    files = ["--out", str(tmp_path / "demo.html"), "--save", str(tmp_path / "rows.csv")]
    assert main(["demo", *SHORT, *words, *files]) == 0
    out = capsys.readouterr().out
    assert "measured over network namespaces" in " ".join(out.split())
    assert max(map(len, out.splitlines()[:-1])) <= 80
    rows = [line.split() for line in out.splitlines() if line.startswith("AdamW +")]
    assert [row[2] for row in rows] == ["float32", "int4"]
    sgd, int4 = records.read(tmp_path / "rows.csv")
    assert (sgd["optimizer"], sgd["lr"], sgd["rate"], sgd["faster"]) == ("adamw", 0.004, "500mbit", 1)
    assert sgd["bytes_sent"] / 500e6 * 8 < sgd["seconds"]
    assert int4["bytes_sent"] < sgd["bytes_sent"] / 6


def test_demo_says_why_it_forecasts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[list[Job]] = []

    def trained(jobs: list[Job], names: list[str], workers: int, hosts: object = None) -> list[object]:
        assert hosts is None
        asked.append(jobs)
        raise OSError("enough")

    monkeypatch.setattr("thinwire.cli.demo.train_local", trained)
    monkeypatch.setattr("shutil.which", lambda name: name)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert main(["demo"]) == 2
    assert "seconds will be a forecast: a slow link between processes needs root" in capsys.readouterr().err
    pairs = [(job.optimizer, job.method, job.rate) for job in asked[0]]
    assert ("sgd", "sgd", None) in pairs
    assert ("adamw", "int4", None) in pairs
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert main(["demo"]) == 2
    assert "seconds will be a forecast: a slow link between processes needs iproute2" in capsys.readouterr().err


def train() -> None:
    assert main(["train", "--epochs", "1", "--json", "--optimizer", "adamw", "--lr", "0.004"]) == 0


def test_train_under_torchrun() -> None:
    first, second = as_torchrun(train, 2)
    (row,) = json.loads(first)["rows"]
    assert second == ""  # only rank 0 prints
    assert row["workers"] == 2
    assert (row["optimizer"], row["lr"]) == ("adamw", 0.004)
    assert row["replicas_equal"]


def test_bench_step(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "step", "--local", "--params", "40000", "--repeats", "2", "--method", "qsgd:bits=4", "--json"]
    assert main(words) == 0
    rows = {row["method"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert list(rows) == ["sgd", "qsgd:bits=4"]
    assert rows["sgd"]["tx_bits_per_param"] == pytest.approx(32, rel=0.01)
    assert 4 < rows["qsgd:bits=4"]["tx_bits_per_param"] < 4.5
    for row in rows.values():
        assert row["params"] == 40_000
        assert row["step_ms_p20"] <= row["step_ms"] <= row["step_ms_p80"]
        assert row["ddp_ms"] > 0
        assert row["wire_ms"] > 0
    assert rows["qsgd:bits=4"]["encode_ms"] > 0


def test_bench_accuracy(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["bench", "accuracy", *SHORT, "--seeds", "2", "--method", "bf16", "--save", str(tmp_path / "rows.csv")]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "points" in out
    with (tmp_path / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["method"], row["seed"]) for row in rows] == [
        ("sgd", "0"),
        ("sgd", "1"),
        ("bf16", "0"),
        ("bf16", "1"),
    ]
    assert all(row["task"] == "digits" for row in rows)


def test_ctrl_c_is_quiet_and_leaves_nobody(tmp_path: Path) -> None:
    demo = ctrl_c(["demo", "--epochs", "500", "--out", str(tmp_path / "x.html")], after=2)
    time.sleep(1)
    assert not [pid for pid in _group(demo) if _state(pid) != "Z"]  # there may be no parent to reap the dead


def _group(number: int) -> list[int]:
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if _fields(pid)[2:3] == [str(number)]]


def _state(pid: int) -> str:
    return (_fields(pid) or ["Z"])[0]


def _fields(pid: int) -> list[str]:
    """State, parent, group, ... of a process; empty once it is gone."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []

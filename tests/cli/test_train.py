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

TRIED = ["sgd", "qsgd:bits=4", "ef-signsgd", "local-sgd:every=4"]
SHORT = ["--epochs", "1", "--workers", "2"]


def test_demo(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    files = ["--out", str(tmp_path / "new" / "demo.html"), "--save", str(tmp_path / "rows.csv")]
    assert main(["demo", *SHORT, "--methods", *TRIED, "--json", *files]) == 0
    out, err = capsys.readouterr()
    rows = json.loads(out)["rows"]
    assert [row["method"] for row in rows] == TRIED
    for row in rows:
        assert 0.2 < row["accuracy"] <= 1
        assert row["seconds"] > 0
        assert row["steps"] == 44
        assert row["replicas_equal"]
    sgd, qsgd, sign, local = rows
    assert sgd["ratio"] == pytest.approx(1, rel=1e-3)
    assert 7 < qsgd["ratio"] < 8
    assert 20 < sign["ratio"] < 32
    assert local["ratio"] == pytest.approx(4, rel=1e-2)
    assert local["bits_per_element"] == pytest.approx(32 / 4, rel=1e-2)
    assert sgd["bytes_sent"] / qsgd["bytes_sent"] == pytest.approx(qsgd["ratio"], rel=1e-2)
    assert "loss" in err
    with (tmp_path / "rows.csv").open() as file:
        assert [row["method"] for row in csv.DictReader(file)] == [row["method"] for row in rows]
    page = (tmp_path / "new" / "demo.html").read_text()
    assert f"--methods {' '.join(TRIED)}" in page
    assert page.count("<svg") == 3


def train() -> None:
    assert main(["train", "--epochs", "1", "--json"]) == 0


def test_train_under_torchrun() -> None:
    first, second = as_torchrun(train, 2)
    (row,) = json.loads(first)["rows"]
    assert second == ""  # only rank 0 prints
    assert row["workers"] == 2
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

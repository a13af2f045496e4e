"""`thinwire bench step --hosts`: real processes over shaped links; rows that agree with each other."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import pytest

from thinwire.cli.app import main
from thinwire.lab.bench_hosts import BASELINES
from thinwire.lab.net import reaper

SHORT = ["bench", "step", "--hosts", "2", "--rate", "200mbit", "--params", "65536", "--repeats", "1"]


@pytest.mark.long
def test_rows(root: None, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    methods = ["--method", "qsgd:bits=4", "--method", "local-sgd:every=3"]
    assert main([*SHORT, *methods, "--save", str(tmp_path / "rows.csv"), "--json"]) == 0
    rows = {row["method"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert list(rows) == [*BASELINES, "qsgd:bits=4", "local-sgd:every=3"]
    for row in rows.values():
        assert (row["hosts"], row["rate"], row["params"]) == (2, "200mbit", 65536)
        assert 3 <= row["steps"] <= 30
        assert 0 < row["step_ms_p20"] <= row["step_ms"] <= row["step_ms_p80"]
        assert row["wire_bound_ms"] == pytest.approx(65536 * row["tx_bits_per_param"] / 200e6 * 1e3)
        assert row["wire_share"] == pytest.approx(row["wire_bound_ms"] / row["step_ms"])
        assert row["speedup_over_ddp"] == pytest.approx(rows["ddp"]["step_ms"] / row["step_ms"])
    # Two hosts: each sends every element once, with 4.6% of headers, acknowledgements and one barrier per step.
    bits = {name: row["tx_bits_per_param"] for name, row in rows.items()}
    assert bits["no communication"] < 0.2
    assert 33 < bits["ddp"] < 35
    assert 16.5 < bits["ddp fp16"] < 18
    assert bits["ddp powersgd-4"] < 3
    assert 4.1 < bits["qsgd:bits=4"] < 5.5
    assert 33 / 3 < bits["local-sgd:every=3"] < 35 / 3 + 0.5
    assert rows["local-sgd:every=3"]["steps"] % 3 == 0
    assert rows["qsgd:bits=4"]["encode_ms"] > 0
    assert rows["ddp"]["encode_ms"] is None
    with (tmp_path / "rows.csv").open() as file:
        assert [row["method"] for row in csv.DictReader(file)] == list(rows)
    mine = f"thinwire-{os.getpid()}-"
    assert not [path.name for path in reaper.NAMESPACES.iterdir() if path.name.startswith(mine)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--local"], "write thinwire bench step --local, or thinwire bench step --hosts 4 --rate 1gbit"),
        (["--hosts", "1"], "write --hosts 4"),
        (["--rate", "fast"], "write a number and kbit, mbit or gbit"),
        (["--latency", "2"], "--latency 2ms"),
        (["--params", "0"], "positive numbers"),
        (["--repeats", "0"], "positive numbers"),
        (["--budget", "0"], "positive numbers"),
        (["--computing", "1s"], "write --model resnet50 --computing 800ms"),
        (["--model", "gpt2", "--computing", "1s", "--batch", "2"], "takes the place of --batch"),
        (["--model", "gpt2", "--computing", "fast"], "write a number and us, ms or s: --computing 800ms"),
        (["--method", "qsdg"], "unknown method 'qsdg'; did you mean 'qsgd'"),
        (
            ["--rate", "100kbit", "--params", "25165824"],
            "a float32 step would take 8053 s; write --params 750000",
        ),
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
    assert main(SHORT) == 2
    assert "needs root" in capsys.readouterr().err

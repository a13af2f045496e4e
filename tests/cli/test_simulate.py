"""`thinwire simulate`: rows by shapes and with numbers, a trace, and one sentence for bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from thinwire.cli.app import main
from thinwire.core.clock import Span
from thinwire.core.trace import read_trace, write_trace


def rows(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert main(["simulate", *arguments, "--json"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["rows"]
    return found


def test_rows_by_shapes(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("sgd", "topk", "--workers", "4", "--steps", "3", "--rate", "100mbit", "--racks", "2")
    sgd, topk = rows(capsys, *arguments, "--stragglers", "lognormal:0.1")
    asked = [sgd[name] for name in ("model", "rate", "latency", "racks", "oversubscription", "stragglers", "seed")]
    assert asked == ["resnet50", "100mbit", "1ms", 2, 1, "lognormal:0.1", 0]
    assert sgd["binds"] == "link"
    assert sgd["step_s"] > 5 * topk["step_s"] > 0
    assert sgd["step_s_p20"] <= sgd["step_s_p50"] <= sgd["step_s_p80"]
    assert sgd["saves_s"] == max(sgd[f"saves_{what}_s"] for what in ("link", "latency", "processor", "computing"))
    assert (sgd["bits_per_element"], list(topk["bits_per_element"])) == ({}, ["topk"])


def test_rows_with_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = rows(capsys, "ssp", "--task", "digits", "--workers", "2", "--steps", "2")
    assert (row["task"], row["rate"]) == ("digits", "1gbit")
    assert row["bytes_per_step"] > 0
    assert 0 < row["accuracy"] < 1
    (row,) = rows(capsys, "qsgd", "--task", "digits", "--workers", "2", "--steps", "3", "--fail", "1@150ms")
    assert row["stopped"].startswith("rank 1 died at 0.15 s")


def test_a_trace_and_a_death(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    assert (
        main(["simulate", "qsgd", "--workers", "3", "--steps", "3", "--fail", "1@0.25s", "--trace", str(file)]) == 0
    )
    assert "qsgd stopped after" in capsys.readouterr().out
    assert json.loads(file.read_text())["traceEvents"]


def test_a_trace_beside_that_of_another_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    real, both = tmp_path / "rank1.json", tmp_path / "both.json"
    write_trace(real, {1: [Span("encode", 5.0, 5.1, 0, 0), Span("wire", 5.1, 5.4, 0, 0)]})
    asked = ["qsgd", "--workers", "2", "--steps", "1", "--encode", "1", "--trace", str(both), "--beside", str(real)]
    assert main(["simulate", *asked]) == 0
    capsys.readouterr()
    events = read_trace(both)
    names = {one["pid"]: one["args"]["name"] for one in events if one["name"] == "process_name"}
    assert names == {0: "worker 0, simulated", 1: "worker 1, simulated", 2: "worker 1"}
    exchanged = [one for one in events if one["name"] in ("encode", "decode", "wire")]
    first = {real: min(one["ts"] for one in exchanged if (one["pid"] == 2) is real) for real in (False, True)}
    assert first[True] == pytest.approx(first[False])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["ssp"], "thinwire simulate METHOD --task digits"),
        (["--model", "resnet51"], "unknown model 'resnet51'; did you mean 'resnet50' or 'resnet152'?"),
        (["--fail", "x"], "write the rank and the time, --fail 3@2s"),
        (["--fail", "3@soon"], "time='soon': write a number and us, ms or s: --fail 3@2s"),
        (["--fail", "9@1s"], "there is no rank 9 among 8"),
        (["--stragglers", "lognorm:1"], "did you mean 'lognormal'"),
        (["--stragglers", "lognormal"], "write --stragglers lognormal:0.3"),
        (["--stragglers", "constant:3"], "too many numbers, or too few; write --stragglers lognormal:0.3"),
        (["--stragglers", "constant:1.5,2"], "1.5 is no rank"),
        (["--stragglers", "exponential", "--seed", "-1"], "seed=-1: write seed=0"),
        (["--oversubscription", "4"], "write --racks 4 --oversubscription 4"),
        (["--task", "digits", "--seconds", "1", "--drop-dead"], "--seconds, --drop-dead: for shapes alone"),
        (["--racks", "9"], "write racks=8 or less"),
        (["--seconds", "0"], "write how long a step computes"),
        (["--steps", "0"], "write --steps 10"),
        (["--workers", "-1"], "write --workers 8, or another number from 1 on"),
        (["--encode", "nan"], "write nanoseconds per element, such as --encode 1.5"),
        (["--save", "/proc/none/rows.csv"], "/proc/none/rows.csv cannot be written (No such file or directory)"),
        (["qsgd", "--trace", "."], ". cannot be written (Is a directory); write the name of a file"),
        (["--task", "digits", "--workers", "300"], "write --workers 256 or less"),
        (["sgd", "qsgd", "--trace", "t.json"], "a trace shows one method"),
        (["qsgd", "--beside", "rank0.json"], "--beside rank0.json: write --trace both.json"),
        (["qsgd", "--trace", "t.json", "--beside", "rank0.json"], "rank0.json cannot be read (No such file"),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: list[str],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["simulate", *arguments]) == 2
    said = capsys.readouterr().err
    assert sentence in " ".join(said.split())


def test_errors_are_printed_as_they_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--stragglers", "lognormal:-1"]) == 2
    assert "--stragglers lognormal:-1: write" in " ".join(capsys.readouterr().err.split())

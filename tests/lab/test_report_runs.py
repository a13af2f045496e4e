"""What a report is made from: every kind of file, and one sentence for files that are not of these kinds."""

from __future__ import annotations

import csv
import itertools
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from thinwire.cli.app import main
from thinwire.lab import records
from thinwire.lab.report import read, read_all

DATA = Path(__file__).parents[2] / "benchmarks" / "data"


def write(path: Path, value: Any) -> Path:
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def test_a_document_of_a_command(tmp_path: Path) -> None:
    document = {"environment": {"torch": "2"}, "rows": [{"method": "sgd"}], "trends": [{"claim": "x"}], "n": 1}
    run = read(write(tmp_path / "run.json", document))
    assert run.rows == [{"method": "sgd"}]
    assert run.tables["trends"] == [{"claim": "x"}]
    assert run.tables["other"] == [{"n": 1}]
    assert run.environments == [{"torch": "2"}]


def test_other_json(tmp_path: Path) -> None:
    assert read(write(tmp_path / "a.json", [1, {"b": 2}])).rows == [{"value": 1}, {"b": 2}]
    assert read(write(tmp_path / "a.json", {"a": 1, "b": [1, 2]})).rows == [{"a": 1, "b": [1, 2]}]
    assert read(write(tmp_path / "a.json", {"x": [{"b": 2}]})).tables == {"x": [{"b": 2}]}
    (row,) = read(write(tmp_path / "a.json", '[{"loss": NaN}]')).rows
    assert math.isnan(row["loss"])


def test_csv_with_rows_of_two_machines(tmp_path: Path) -> None:
    text = "date,device,commit,method,bits,unbiased,omega\n1,a,12345678,sgd,32,True,\n1,b,12345678,qsgd,4.5,False,x\n"
    run = read(write(tmp_path / "run.CSV", text))
    assert run.rows == [
        {"method": "sgd", "bits": 32, "unbiased": True, "omega": None},
        {"method": "qsgd", "bits": 4.5, "unbiased": False, "omega": "x"},
    ]
    assert [facts["device"] for facts in run.environments] == ["a", "b"]
    assert run.environments[0]["commit"] == "12345678"


def test_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for folder in ("slow", "fast"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "step.json", [1])
    runs = read_all([tmp_path / "slow" / "step.json", tmp_path / "fast" / "step.json"])
    assert [run.name for run in runs] == ["slow/step.json", "fast/step.json"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("run.json", None, "there is no file"),
        ("run.json", "", "is empty"),
        ("run.json", " \n", "is empty"),
        ("run.json", "<html>", "is not JSON"),
        ("run.json", '{"rows": [', "is not JSON"),
        ("run.json", '{"environment": {"a": 1}, "rows": []}', "holds no rows"),
        ("run.json", "[]", "holds no rows"),
        ("run.json", "{}", "holds no rows"),
        ("run.json", "[{}]", "holds no rows"),
        ("run.json", "3", "holds one int but no rows"),
        ("run.json", "[" * 100_000, "is not JSON"),
        ("run.json", "\x00\x01", "is not JSON"),
        ("run.csv", "", "holds no rows"),
        ("run.csv", "method,bits\n", "holds no rows"),
        ("run.csv", "method,bits\nsgd\n", "line 2: more or fewer fields"),
        ("run.csv", "method,bits\nsgd,1,2\n", "line 2: more or fewer fields"),
    ],
)
def test_bad_files_are_one_sentence_and_status_2(
    name: str, text: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        write(tmp_path / name, text)
    out = tmp_path / "report.html"
    assert main(["report", str(tmp_path / name), "--out", str(out)]) == 2
    printed, said = capsys.readouterr()
    assert printed == ""
    assert message in said
    assert "Traceback" not in said
    assert not out.exists()


def test_bytes_that_are_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.json").write_bytes(b"\xff\xfe\x80")
    assert main(["report", str(tmp_path / "run.json")]) == 2
    assert "is not text" in capsys.readouterr().err


def test_a_run_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write(tmp_path / "run.json", [1])
    assert main(["report", str(run), "--out", str(run)]) == 2
    assert "write --out report.html" in capsys.readouterr().err
    assert run.read_text() == "[1]"
    assert main(["report"]) == 2


def test_report_of_every_recorded_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Their first hundred rows."""
    files = []
    for path in sorted(DATA.glob("*.csv")):
        with path.open() as file:
            files.append(write(tmp_path / path.name, "".join(itertools.islice(file, 101))))
    out = tmp_path / "new" / "report.html"
    assert main(["report", *map(str, files), "--out", str(out), "--title", "All <of> it", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["page"] == str(out)
    assert facts["runs"] == len(files)
    assert facts["rows"] == sum(len(records.load(path)) for path in files)
    assert facts["bytes"] == out.stat().st_size
    text = out.read_text()
    assert "<h1>All &lt;of&gt; it</h1>" in text
    assert all(path.name in text for path in files)
    assert main(["report", str(files[0]), "--out", str(out)]) == 0
    assert "1 run, " in capsys.readouterr().out


def test_a_document_says_its_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["topology", "ring", "--json"]
    monkeypatch.setattr(sys, "argv", ["/home/someone/bin/thinwire", *words, "a b"])
    assert main(words) == 0
    document = capsys.readouterr().out
    assert json.loads(document)["environment"]["command"] == "thinwire topology ring --json 'a b'"
    assert main(["report", str(write(tmp_path / "run.json", document)), "--out", str(tmp_path / "r.html")]) == 0
    text = (tmp_path / "r.html").read_text()
    assert "<pre><code>thinwire topology ring --json &#x27;a b&#x27;</code></pre>" in text
    assert "someone" not in text
    for program in ("/home/someone/thinwire/cli/app.py", "/home/someone/thinwire/__main__.py"):
        monkeypatch.setattr(sys, "argv", [program, "demo"])
        assert records.command() == "thinwire demo"


def test_csv_columns_are_stable(tmp_path: Path) -> None:
    records.save(tmp_path / "rows.csv", [{"method": "sgd"}])
    with (tmp_path / "rows.csv").open() as file:
        assert next(csv.reader(file)) == [*records.FACTS, "method"]
    with (DATA / "demo.csv").open() as file:
        assert next(csv.reader(file))[: len(records.FACTS)] == list(records.FACTS)

"""The command line: rows, exit status, one sentence for bad input."""

from __future__ import annotations

import csv
import json
import runpy
import sys
from pathlib import Path

import pytest

import thinwire
from thinwire.cli.app import main
from thinwire.lab import quantisers


def test_compress_rows(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["bench", "compress", "--json", "--save", str(tmp_path / "rows.csv")]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    rows = {row["method"]: row for row in document["rows"]}
    assert len(rows) == len(quantisers.IDS)
    assert rows["identity"]["nmse"] == 0
    assert 7.5 < rows["qsgd:bits=4"]["ratio"] < 8
    assert rows["qsgd:bits=4"]["nmse"] < rows["qsgd:bits=2"]["nmse"]
    assert document["environment"]["thinwire"] == thinwire.__version__
    with (tmp_path / "rows.csv").open() as file:
        saved = list(csv.DictReader(file))
    assert [row["method"] for row in saved] == list(rows)
    assert saved[0]["commit"]
    assert "rows written" in err


def test_compress_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "compress"]) == 0
    out = capsys.readouterr().out
    assert "qsgd:bits=4" in out
    assert "38,282 elements" in out


@pytest.mark.parametrize("command", [["compress"], ["rate", "--size", "2000"]], ids=lambda command: command[0])
def test_compressors_that_are_named_are_compared_alone(
    capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    assert main(["bench", *command, "--json", "--method", "block-topk:k=2", "--method", "drive"]) == 0
    assert {row["method"] for row in json.loads(capsys.readouterr().out)["rows"]} == {"block-topk:k=2", "drive"}


def test_methods(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    names = {row["method"].partition(":")[0] for row in rows}
    assert {"sgd", "qsgd", "ecq-sgd", "terngrad", "one-bit", "natural"} <= names
    assert all(row["about"].endswith(".") for row in rows)
    by_name = {row["method"]: row for row in rows if row["axis"] == "method"}
    assert by_name["qsgd"]["year"] == 2017
    assert by_name["qsgd"]["arxiv"] == "1610.02132"
    assert by_name["ecq-sgd"]["paper"].startswith("Error compensated quantized SGD")
    assert (by_name["ecq-sgd"]["exchange"], by_name["ecq-sgd"]["memory"]) == ("scatter-gather", "ef")
    assert by_name["ecq-sgd"]["signal"] == "grad"
    assert by_name["ef-signsgd"]["contraction"]
    assert by_name["sgd"]["bits_per_element"] == 32
    assert by_name["sgd"]["optimizer"] == "SGD, momentum 0.9"
    assert by_name["dgc"]["optimizer"] == "SGD, no momentum"
    assert "large batches" in by_name["laq"]["note"]
    assert not by_name["sgd"]["note"]


def test_methods_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods"]) == 0
    out = capsys.readouterr().out
    assert "Alistarh" in out
    assert "terngrad:clip=2.5" in out
    assert "dgc: SGD, no momentum\n" in out
    assert "times the lr; for full gradients or large batches" in out


@pytest.mark.parametrize("backend", ["cpu", "all"])
def test_bench_kernels(capsys: pytest.CaptureFixture[str], backend: str) -> None:
    arguments = ["bench", "kernels", "--size", "5000", "--repeats", "2", "--threads", "1", "--backend", backend]
    assert main([*arguments, "--method", "qsgd:bits=4", "--method", "natural", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["kernel"] for row in rows} == {
        "encode",
        "encode+checksum",
        "decode_add",
        "decode_add+checksum",
        "encode_ef",
    }
    for row in rows:
        assert {"kernel", "method", "backend", "threads", "gbps", "copy_gbps", "ratio"} <= set(row)
        assert row["ms_p50"] > 0
        assert row["ratio"] >= 0  # three decimals, and the reference may be 2000 times slower than a copy
    backends = {row["backend"] for row in rows}
    assert ("reference" in backends) == (backend == "all")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "compress", "--method", "qsdg"], "unknown compressor 'qsdg'; did you mean 'qsgd'"),
        (["bench", "kernels", "--method", "qsdg"], "unknown compressor 'qsdg'; did you mean 'qsgd'"),
        (["bench", "kernels", "--method", "cast"], "has no kernel of its own to time; write one of"),
        (["bench", "kernels", "--backend", "tpu"], "no kernels called 'tpu' on this machine"),
        (["bench", "kernels", "--size", "0"], "positive numbers"),
        (["bench", "kernels", "--threads", "-1"], "positive numbers"),
        (["bench", "kernels", "--method", "terngrad:clip=abc"], "clip is a number or none"),
        (["bench", "compress", "--save", "/"], "Is a directory"),
        (["bench", "step"], "write thinwire bench step --local"),
        (["bench", "step", "--local", "--params", "0"], "positive numbers"),
        (["bench", "step", "--local", "--workers", "0"], "write --workers 4"),
        (
            ["bench", "step", "--local", "--planned", "--batch", "2"],
            "--batch, --planned: only with --hosts; leave them out",
        ),
        (["bench", "step", "--hosts", "2", "--budget", "inf"], "positive numbers"),
        (["bench", "plan", "--hosts", "2,x"], "--hosts 2,x: between how many? write --hosts 2,4,8"),
        (["bench", "rate", "--size", "9" * 26], "is larger than any number of a command"),
        (["bench", "kernels", "--save", "/"], "/ cannot be written (Is a directory)"),
        (["bench", "eta", "--lr", "inf"], "write --lr 0.05"),
        (["reproduce", "qsgd", "--from", "/dev/null"], "/dev/null has no rows of qsgd; write thinwire reproduce"),
        (["reproduce", "qsgd", "--from", "/nowhere.csv"], "/nowhere.csv: No such file or directory; write the name"),
        (["bench", "step", "--local", "--device", "tpu"], "write --device cpu or --device cuda"),
        (["bench", "step", "--local", "--method", "qsdg"], "unknown method 'qsdg'; did you mean 'qsgd'"),
        (["bench", "accuracy", "--seeds", "0"], "write --seeds 3"),
        (["demo", "--methods", "sgd", "qsdg"], "unknown method 'qsdg'; did you mean 'qsgd'"),
        (["demo", "--task", "digts"], "unknown task 'digts'; did you mean 'digits'"),
        (["demo", "--out", "/"], "Is a directory"),
        (["train", "--method", "qsgd:bits=99"], "bits"),
        (["train", "--task", "fashion", "--data", "/nowhere"], "Fashion-MNIST is not in /nowhere"),
        (["train", "--data", "/nowhere"], "the digits come with scikit-learn; leave --data out"),
        (["train", "--workers", "0"], "write --workers 4"),
        (["train", "--workers", "100"], "1 to 89 workers"),
        (["train", "--epochs", "0"], "write --epochs 1 or more"),
        (["train", "--optimizer", "adm"], "unknown optimizer 'adm'; did you mean 'adamw'"),
        (["train", "--lr", "0"], "lr=0.0 does not step; write --lr 0.05"),
        (["train", "--method", "one-bit-adam", "--optimizer", "sgd"], "leave --optimizer sgd out"),
        (["demo", "--rate", "fast"], "write a number and kbit, mbit or gbit"),
        (["demo", "--optimizer", "sgdd"], "did you mean 'sgd'"),
        (["train", "--seed", "-1"], "write --seed 0, or another number that is not negative"),
        (["race", "--lr", "nan"], "lr=nan does not step; write --lr 0.05"),
        (["race", "--stragglers", "slow", "--hosts", "0", "--clock", "4", "--seconds", "inf"], "write --seconds 12"),
        (["demo", "--jsn"], "No such option"),
        (["dmeo"], "No such command"),
    ],
)
def test_bad_input_is_one_sentence_and_status_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert "Traceback" not in err


def test_python_m_thinwire_is_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["thinwire", "train", "--method", "qsdg"])
    monkeypatch.delitem(sys.modules, "thinwire.__main__", raising=False)  # another test has imported every module
    with pytest.raises(SystemExit) as end:
        runpy.run_module("thinwire", run_name="__main__")
    assert end.value.code == 2
    assert "thinwire: unknown method 'qsdg'; did you mean 'qsgd'" in capsys.readouterr().err


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == thinwire.__version__
    assert main(["--help"]) == 0
    assert "bench" in capsys.readouterr().out


def test_rate(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plot = tmp_path / "rate.svg"
    assert main(["bench", "rate", "--size", "20000", "--json", "--plot", str(plot)]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["source"] for row in rows} == {"gaussian", "laplace", "gradient"}
    assert "<svg" in plot.read_text()
    by_name = {row["method"]: row for row in rows if row["source"] == "gaussian"}
    assert by_name["qsgd:levels=4,norm=l2+rans"]["bits_per_element"] < 0.9
    assert by_name["qsgd:levels=4,norm=l2"]["nmse"] == by_name["qsgd:levels=4,norm=l2+rans"]["nmse"]
    for row in by_name.values():  # one sample of a Gaussian may lie a little below; float32 is exact
        assert row["nmse"] >= 0.98 * row["shannon_nmse"] or row["bits_per_element"] > 30
    assert main(["bench", "rate", "--plot", "rate.txt"]) == 2
    assert "write --plot rate.svg" in capsys.readouterr().err

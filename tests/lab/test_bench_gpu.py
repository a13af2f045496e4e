"""The benchmark on a GPU, here with plain torch on the CPU and a clock that always says the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from thinwire import Layout, compressors
from thinwire.cli.app import main
from thinwire.core.compressor import FusedCompressor
from thinwire.lab import bench_gpu, figures, records
from thinwire.lab.records import Row

N = 4096
PASSES = {"encode", "encode_ef", "decode_add", "mean8"}


def clock(run: bench_gpu.Run) -> Callable[[], float]:
    run()
    return lambda: 1e-3


def rows(*methods: str) -> list[Row]:
    return list(bench_gpu.bench(N, methods, ["reference"], 2, torch.device("cpu"), clock))


def test_bytes_of_a_pass() -> None:
    payload = compressors.get("qsgd:bits=4").nbytes(Layout.flat(N))
    found = {row["kernel"]: row for row in rows("qsgd:bits=4")}
    expected = {"encode": 4 * N, "encode_ef": 12 * N, "decode_add": 8 * N, "mean8": 4 * N + 7 * payload}
    assert {kernel: row["bytes"] - payload for kernel, row in found.items()} == expected
    for row in found.values():
        assert row["ratio"] == pytest.approx(row["bytes"] / (8 * N), abs=1e-3)
        assert (row["device"], row["backend"], row["ms_p50"]) == ("cpu", "reference", 1.0)


def test_long_and_ragged_blocks_are_read_twice() -> None:
    one, two = rows("qsgd:bits=4,block=512"), rows("qsgd:bits=4,block=1024")
    extra = {b["kernel"]: b["bytes"] - a["bytes"] for a, b in zip(one, two, strict=True)}
    fewer = -4 * (N // 1024)  # scales
    assert extra == {
        "encode": 4 * N + fewer,
        "encode_ef": 8 * N + fewer,
        "decode_add": fewer,
        "mean8": 8 * fewer,
    }
    twice = {
        "qsgd:bits=4,block=none": True,
        "one-bit": True,
        "terngrad": True,
        "natural": False,
        "float:block=32": False,
    }
    for text, expected in twice.items():
        c = compressors.get(text)
        assert isinstance(c, FusedCompressor)
        assert bench_gpu.read_twice(c, Layout.flat(N)) == expected, text


def test_every_default_has_rows() -> None:
    names = [m for m in bench_gpu.METHODS if m != "hadamard:block=65536"]
    found = {(row["method"], row["kernel"]): row["ratio"] for row in rows(*names)}
    assert {method for method, _ in found} == set(names)
    for method in ("float:format=e2m1,block=32", "one-bit", "int:bits=8"):
        assert {kernel for m, kernel in found if m == method} == PASSES
    for of, kernel, ratio in (
        ("hadamard:block=1024", "hadamard", 1.0),
        ("dct:chunk=64", "dct", 1.0),
        ("topk:ratio=0.01", "topk", 1.0),
        ("block-topk", "block_topk", 1.0),
        ("rans:bits=4", "rans_decode", 0.25),
    ):
        assert found[of, kernel] == ratio


def test_tables_with_and_without_rows(tmp_path: Path) -> None:
    for page in (figures.kernels_gpu, figures.alone_gpu):
        assert page(tmp_path).startswith("No rows yet: `thinwire bench kernels --device cuda --save")
    assert "times them" in figures.gpu_line(tmp_path)
    records.save(tmp_path / "kernels-cuda.csv", rows("qsgd:bits=4", "topk:ratio=0.01"))
    assert "\n| `qsgd:bits=4` | 0.56 | 1.56 | 1.06 | 1.0" in figures.kernels_gpu(tmp_path)
    assert "| topk | `topk:ratio=0.01` | 1.000 | 0 | 1.00 |" in figures.alone_gpu(tmp_path)
    assert "on cpu the passes of `qsgd:bits=4` move memory at 0.56 to 1.56 of the speed" in figures.gpu_line(tmp_path)


def test_refusals(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "kernels", "--device", "cuda", "--threads", "1"]) != 0
    assert "leave --threads out" in capsys.readouterr().err
    assert main(["bench", "kernels", "--device", "tpu"]) != 0
    assert "no GPU called 'tpu' on this machine" in capsys.readouterr().err
    if not torch.cuda.is_available():
        assert main(["bench", "kernels", "--device", "cuda"]) != 0
        assert "no GPU called 'cuda' on this machine" in capsys.readouterr().err
    with pytest.raises(ValueError, match="has no kernel of its own to time"):
        rows("cast")

"""`thinwire bench checksum`: the checksums it compares, the damage it does, and the recorded rows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from thinwire.cli.app import main
from thinwire.compressors import Qsgd
from thinwire.kernels.spec import COVERED, HEADER
from thinwire.lab import bench_checksum
from thinwire.lab.bench_checksum import KINDS, crc32c, summary, weighted
from thinwire.lab.records import read

DATA = Path(__file__).parents[2] / "benchmarks" / "data" / "checksum.csv"


def test_checksums() -> None:
    """That of a real payload, and CRC-32C's usual check value."""
    data = Qsgd(bits=4).encode(torch.randn(1000)).data.numpy()[None]
    assert weighted(data).tobytes() == data[0, COVERED:HEADER].tobytes()
    text = np.zeros((1, HEADER + 12), np.uint8)
    text[0, :9] = np.frombuffer(b"123456789", np.uint8)
    assert crc32c(text, np.array([9])) == [0xE3069283]


@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_done(kind: str) -> None:
    draw = np.random.default_rng(0)
    data = draw.integers(0, 256, (200, 544)).astype(np.uint8)
    before = data.copy()
    KINDS[kind](data, draw)
    assert (data != before).any(1).mean() > 0.8
    flips = np.unpackbits(data ^ before, axis=1).sum(1)
    if kind[0] in "123" and "flipped" in kind:
        assert set(flips) <= {int(kind[0]), int(kind[0]) - 2}


def test_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "checksum", "--mutations", "1000", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["kind"] for row in rows] == list(KINDS)
    assert 700 < sum(row["changed"] for row in rows) < 1100
    assert all(row["sum_missed"] == row["crc32c_missed"] == 0 for row in rows)
    assert main(["bench", "checksum", "--mutations", "0"]) == 2


def test_nothing_recorded_was_missed() -> None:
    """Every kind together: the low 16 bits are right about as often as those of a perfect hash."""
    rows = read(DATA)
    assert {row["kind"] for row in rows} == set(bench_checksum.KINDS)
    assert sum(row["sum_missed"] for row in rows) == 0
    changed, low = (sum(row[name] for row in summary(rows)) for name in ("changed", "sum_low16"))
    assert changed > 800_000
    assert abs(low - changed / 65536) < 4 * (changed / 65536) ** 0.5

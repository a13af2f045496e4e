"""Tasks: idx files, splits, and who gets which images."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import pytest
import torch

from thinwire.lab import idx, tasks


def write(path: Path, shape: tuple[int, ...], magic: bytes = b"\0\0\x08", extra: bytes = b"") -> Path:
    body = bytes(i % 251 for i in range(torch.Size(shape).numel()))
    head = magic + bytes([len(shape)]) + struct.pack(f">{len(shape)}I", *shape)
    path.write_bytes(gzip.compress(head + body + extra))
    return path


def test_idx_is_read(tmp_path: Path) -> None:
    x = idx.read(write(tmp_path / "x.gz", (3, 4, 5)))
    assert x.shape == (3, 4, 5)
    assert x.dtype == torch.uint8
    assert x.flatten().tolist() == list(range(60))


def test_idx_refuses_what_it_is_not(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="starts with 00000903, not with 000008"):
        idx.read(write(tmp_path / "kind.gz", (1, 2, 3), magic=b"\0\0\x09"))
    with pytest.raises(ValueError, match=r"declares \(2, 3\), 6 bytes, and holds 7"):
        idx.read(write(tmp_path / "long.gz", (2, 3), extra=b"\0"))
    (tmp_path / "short.gz").write_bytes(gzip.compress(b"\0\0\x08\x03\0\0"))
    with pytest.raises(ValueError, match="ends inside its header"):
        idx.read(tmp_path / "short.gz")
    (tmp_path / "plain.gz").write_bytes(b"not gzip at all")
    with pytest.raises(ValueError, match="not a whole gzip file"):
        idx.read(tmp_path / "plain.gz")
    whole = write(tmp_path / "cut.gz", (50, 50)).read_bytes()
    (tmp_path / "cut.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="not a whole gzip file"):
        idx.read(tmp_path / "cut.gz")


def test_digits_are_those_of_scikit_learn(monkeypatch: pytest.MonkeyPatch, long: bool) -> None:
    x, y = tasks.digits()
    assert x.shape == (1797, 1, 8, 8)
    assert y.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert int((16 * x).sum()) == 561_718
    assert (16 * x[0, 0, 0]).tolist() == [0, 0, 5, 13, 9, 1, 0, 0]
    assert y[:10].tolist() == list(range(10))
    if long:  # importing scikit-learn takes two seconds
        monkeypatch.setattr(tasks, "find_spec", lambda _: None)
        for a, b in zip((x, y), tasks.digits(), strict=True):
            assert torch.equal(a, b)


def test_fashion_from_a_folder(tmp_path: Path) -> None:
    task = tasks.get("fashion")
    with pytest.raises(FileNotFoundError, match="dataset-fashion-mnist"):
        task.locate(tmp_path)
    for name, shape in zip(tasks.FILES, ((6, 28, 28), (6,), (2, 28, 28), (2,)), strict=True):
        write(tmp_path / name, shape)
    data = task.load(task.locate(tmp_path))
    assert data.train_x.shape == (6, 1, 28, 28)
    assert data.test_y.tolist() == [0, 1]
    assert task.model()(data.test_x).shape == (2, 10)
    write(tmp_path / tasks.FILES[1], (5,))
    with pytest.raises(ValueError, match="for 5 labels"):
        task.load(tmp_path)


def test_digits() -> None:
    task = tasks.get("digits")
    data, again = task.load(None), task.load(None)
    assert (len(data.train_x), len(data.test_x)) == (task.images, 360)
    assert torch.equal(data.test_x, again.test_x)
    assert 0 <= float(data.train_x.min()) < float(data.train_x.max()) == 1
    sizes = [p.numel() for p in task.model().parameters()]
    assert sum(n for n in sizes if n > 10_000) > 0.98 * sum(sizes)


def test_ranks_share_every_epoch() -> None:
    def taken(epoch: int, seed: int = 0) -> list[list[list[int]]]:
        return [[b.tolist() for b in tasks.batches(100, 8, rank, 3, seed, epoch)] for rank in range(3)]

    ranks = taken(0)
    assert [len(steps) for steps in ranks] == [4, 4, 4]
    every = [i for steps in ranks for step in steps for i in step]
    assert len(set(every)) == len(every) == 96
    assert taken(0) == ranks
    assert taken(1) != ranks
    assert taken(0, seed=1) != ranks

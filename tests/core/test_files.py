"""tw.save: killed or out of space while it saves, the file is the new one or the one before."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import threading
import time
from pathlib import Path

import pytest
import torch

import thinwire as tw

SIZE = 100_000


def whole(path: Path) -> float:
    """The number that a file holds in every place; an error if it is not whole."""
    x = torch.load(path)["x"]
    assert x.numel() == SIZE
    assert bool((x == x[0]).all())
    return float(x[0])


def saves_for_ever(path: Path) -> None:
    for number in range(1, 1_000_000):
        tw.save({"x": torch.full((SIZE,), float(number % 1000))}, path)


def test_killed_while_it_saves(tmp_path: Path) -> None:
    """After every kill there is a whole file, and the next process saves over what the last one left."""
    path, delays = tmp_path / "ckpt.pt", torch.rand(8, generator=torch.Generator().manual_seed(0)) / 50
    tw.save({"x": torch.zeros(SIZE)}, path)
    context = multiprocessing.get_context("fork")
    for delay in delays.tolist():
        before = path.stat().st_mtime_ns
        child = context.Process(target=saves_for_ever, args=(path,))
        child.start()
        while path.stat().st_mtime_ns == before:  # it has begun
            assert child.is_alive()
            time.sleep(0.001)
        time.sleep(delay)
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        assert whole(path) > 0
    assert {file.name for file in tmp_path.iterdir()} <= {"ckpt.pt", "ckpt.pt.part"}


def test_a_full_disk_leaves_the_file_before(tmp_path: Path) -> None:
    path = tmp_path / "ckpt.pt"
    tw.save({"x": torch.ones(SIZE)}, path)
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            tw.save({"x": torch.full((SIZE,), 2.0)}, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert whole(path) == 1
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_saved_leaves_the_file_before(tmp_path: Path) -> None:
    path = tmp_path / "ckpt.pt"
    tw.save({"x": torch.ones(SIZE)}, path)
    with pytest.raises((TypeError, AttributeError), match="pickle"):
        tw.save({"lock": threading.Lock()}, path)
    assert whole(path) == 1
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_goes_on_pointing_to_the_file(tmp_path: Path) -> None:
    path, link = tmp_path / "ckpt.pt", tmp_path / "latest.pt"
    link.symlink_to(path)
    tw.save({"x": torch.full((SIZE,), 3.0)}, link)
    assert link.is_symlink()
    assert whole(path) == 3


def test_several_at_once_do_not_mix(tmp_path: Path) -> None:
    """As where all ranks of a host save to one path by mistake."""
    path = tmp_path / "ckpt.pt"
    writers = [
        threading.Thread(target=tw.save, args=({"x": torch.full((SIZE,), float(number))}, path))
        for number in range(4)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert whole(path) in range(4)
    assert list(tmp_path.iterdir()) == [path]

"""What `launch` leaves behind when it is interrupted, and work that processes share."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import time
from typing import Any

import pytest

from thinwire.lab import launch
from thinwire.lab.launch import Say, _Rank
from thinwire.lab.reproduce.parallel import each


def _nothing(say: Say) -> None:
    del say


def test_ctrl_c_while_ranks_start_stops_them_quietly(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    started: list[_Rank] = []
    start = _Rank.start

    def start_and_interrupt(*args: Any) -> _Rank:
        started.append(start(*args))
        os.kill(os.getpid(), signal.SIGINT)
        return started[-1]

    monkeypatch.setattr(_Rank, "start", start_and_interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start jobs that ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            launch.outcomes(_nothing, 2)
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(started) == 2
    assert all(rank.process.exitcode is not None for rank in started)
    deadline = time.monotonic() + 20
    while multiprocessing.active_children() and time.monotonic() < deadline:
        time.sleep(0.05)  # one whose start was cut short ends by itself
    assert not multiprocessing.active_children()
    assert "Traceback" not in capfd.readouterr().err


def test_processes_keep_the_order() -> None:
    assert list(each(math.sqrt, [4.0, 9.0, 16.0], 2)) == list(each(math.sqrt, [4.0, 9.0, 16.0], 1)) == [2, 3, 4]

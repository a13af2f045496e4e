"""Ctrl-C for a running command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

STARTS = 60.0  # seconds in which a command on a busy machine has imported torch and started a process


def children(pid: int) -> list[str]:
    """The processes that a process has started and that still run."""
    return [word for task in Path(f"/proc/{pid}/task").glob("*/children") for word in task.read_text().split()]


def ctrl_c(words: Sequence[str], after: float) -> int:
    """Interrupt `thinwire WORDS` some seconds after it has started processes; it must end as it should, quietly.

    Returns its id.
    """
    command = [sys.executable, "-m", "thinwire.cli.app", *words]
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job would ignore it
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        signal.signal(signal.SIGINT, handler)
        try:
            patience = time.monotonic() + STARTS
            while not children(running.pid) and time.monotonic() < patience and running.poll() is None:
                time.sleep(0.05)
            time.sleep(after)
            os.killpg(running.pid, signal.SIGINT)  # as a terminal does: to everybody
            out, err = running.communicate(timeout=30)
        except BaseException:
            os.killpg(running.pid, signal.SIGKILL)
            raise
    assert running.returncode == 130, err
    assert out == ""
    assert "Traceback" not in err
    return running.pid

"""Ctrl-C for a running command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence


def ctrl_c(words: Sequence[str], after: float) -> int:
    """Interrupt `thinwire WORDS` after some seconds; it must end as it should and print nothing. Returns its id."""
    command = [sys.executable, "-m", "thinwire.cli.app", *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        time.sleep(after)
        os.killpg(running.pid, signal.SIGINT)  # as a terminal does: to everybody
        out, err = running.communicate(timeout=30)
    assert running.returncode == 130, err
    assert out == ""
    assert "Traceback" not in err
    return running.pid

"""torchrun starts a run again when a rank is killed, and it ends with the bits of a run that went through."""

from __future__ import annotations

import os
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from ranks import as_torchrun

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "faults.md"


def recipe(path: Path) -> tuple[dict[str, str], list[str]]:
    """What the page says: the environment and the command, with a file of its own."""
    line = next(
        line for line in PAGE.read_text().splitlines() if "examples/restart.py" in line and "torchrun" in line
    )
    setting, _, *arguments = line.split()
    name, value = setting.split("=")
    command = [sys.executable, "-m", "torch.distributed.run", *arguments, str(path)]
    return {**os.environ, name: value, "OMP_NUM_THREADS": "1"}, command


def killed(path: Path, victims: Mapping[str, int]) -> str:
    """What the run prints when a worker is killed each time that a line begins with one of these."""
    env, command = recipe(path)
    with subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as launcher:
        assert launcher.stdout is not None
        out = ""
        for line in launcher.stdout:
            out += line
            for start, victim in victims.items():
                if line.startswith(start):
                    tasks = Path(f"/proc/{launcher.pid}/task").glob("*/children")
                    workers = sorted(int(pid) for task in tasks for pid in task.read_text().split())
                    os.kill(workers[victim], signal.SIGKILL)
        error = launcher.communicate(timeout=60)[1]
    assert launcher.returncode == 0, error
    return out


def script(path: str) -> None:
    sys.argv = ["restart.py", path]
    runpy.run_path(str(ROOT / "examples" / "restart.py"), run_name="__main__")


@pytest.mark.long
@pytest.mark.timeout(200)
def test_a_killed_rank_is_started_again_from_the_checkpoint(tmp_path: Path) -> None:
    """First rank 1 is killed, then rank 0."""
    whole = as_torchrun(script, 2, str(tmp_path / "whole.pt"))[0].rsplit("weights ", 1)[1]
    out = killed(tmp_path / "killed.pt", {"attempt 0  step 100 ": 1, "attempt 1  step 800 ": 0})
    (start,) = re.findall(rf"started at step (\d+); weights {whole}", out)
    assert int(start) >= 800
    assert "attempt 2 " in out

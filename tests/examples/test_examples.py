"""Every example runs in real processes, as its first lines say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(name: str) -> str:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, f"examples/{name}"], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["plain_loop.py", "ddp_hook.py"])
def test_loops_learn_and_replicas_stay_equal(name: str) -> None:
    out = run(name)
    losses = [float(v) for v in re.findall(r"loss ([0-9.]+)", out)]
    assert losses[-1] < 0.3 * losses[0]
    assert "replicas bitwise equal: True" in out


def test_resumed_run_equals_the_whole_one() -> None:
    out = run("amp_resume.py")
    losses = [float(v) for v in re.findall(r"loss ([0-9.]+)", out)]
    assert losses[-1] < 0.3 * losses[0]
    assert "resumed run bitwise equal: True" in out


def test_every_example_is_tested() -> None:
    here = Path(__file__).read_text()
    assert all(path.name in here for path in (ROOT / "examples").glob("*.py"))


def test_readme_shows_the_lines_of_the_example() -> None:
    readme = (ROOT / "README.md").read_text()
    added = re.findall(r"^\+(.+)$", readme, re.MULTILINE)
    assert len(added) == 2
    example = (ROOT / "examples" / "plain_loop.py").read_text()
    for line in added:
        assert line.strip() in example

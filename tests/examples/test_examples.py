"""Every example runs in real processes, as its first lines say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(120)
def test_plain_loop_learns_and_replicas_stay_equal() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, "examples/plain_loop.py"], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    losses = [float(v) for v in re.findall(r"loss ([0-9.]+)", done.stdout)]
    assert losses[-1] < 0.3 * losses[0]
    assert "replicas bitwise equal: True" in done.stdout


def test_readme_shows_the_lines_of_the_example() -> None:
    readme = (ROOT / "README.md").read_text()
    added = re.findall(r"^\+(.+)$", readme, re.MULTILINE)
    assert len(added) == 6
    example = (ROOT / "examples" / "plain_loop.py").read_text()
    for line in added:
        assert line.strip() in example

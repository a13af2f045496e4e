"""Every example runs in real processes, with what torchrun would give them; in `make test-fsdp`, by torchrun too."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from ranks import as_torchrun

ROOT = Path(__file__).parents[2]


def torchrun(name: str) -> str:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, f"examples/{name}"], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def script(name: str) -> None:
    runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")


def run(name: str) -> str:
    first, *others = as_torchrun(script, 2, name)
    assert others == [""]
    return first


LONG = bool(os.environ.get("THINWIRE_LONG"))


@pytest.mark.parametrize(
    ("name", "how"), [("plain_loop.py", run), ("ddp_hook.py", run), *[("plain_loop.py", torchrun)] * LONG]
)
def test_loops_learn_and_replicas_stay_equal(name: str, how: Callable[[str], str]) -> None:
    out = how(name)
    losses = [float(v) for v in re.findall(r"loss ([0-9.]+)", out)]
    assert losses[-1] < 0.3 * losses[0]
    assert "replicas bitwise equal: True" in out


@pytest.mark.skipif(not LONG, reason="four processes; `make test-fsdp` has it")
def test_shards_inside_nodes_and_an_exchange_between_them() -> None:
    first, *others = as_torchrun(script, 4, "fsdp.py")
    assert others == [""] * 3
    losses = [float(v) for v in re.findall(r"loss ([0-9.]+)", first)]
    assert losses[-1] < 0.3 * losses[0]
    assert "replicas bitwise equal: True" in first


def test_resumed_run_equals_the_whole_one() -> None:
    out = run("amp_resume.py")
    losses = [float(v) for v in re.findall(r"loss ([0-9.]+)", out)]
    assert losses[-1] < 0.3 * losses[0]
    assert "resumed run bitwise equal: True" in out


def test_every_example_is_tested() -> None:
    """In this folder, or where frameworks are installed."""
    files = [*Path(__file__).parent.glob("*.py"), ROOT / "tests" / "frameworks" / "test_pages.py"]
    text = "".join(path.read_text() for path in files)
    assert all(path.name in text for path in (ROOT / "examples").glob("*.py"))


def test_readme_shows_the_lines_of_the_example() -> None:
    readme = (ROOT / "README.md").read_text()
    added = re.findall(r"^\+(.+)$", readme, re.MULTILINE)
    assert len(added) == 2
    example = (ROOT / "examples" / "plain_loop.py").read_text()
    for line in added:
        assert line.strip() in example

"""Every example runs in real processes: one under torchrun, the others with what torchrun would give them."""

from __future__ import annotations

import os
import re
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest
from ranks import as_torchrun, endings

ROOT = Path(__file__).parents[2]


def launched(name: str, out: str) -> None:
    """torchrun's own main; what its ranks say goes to files."""
    from torch.distributed import run  # noqa: PLC0415

    os.chdir(ROOT)
    for number, kind in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{out}.{kind}", os.O_WRONLY | os.O_CREAT), number)
    run.main(["--standalone", "--nproc-per-node", "2", f"examples/{name}"])


def torchrun(name: str, folder: Path) -> str:
    """As the command, in a process that has imported torch already; its ranks are new ones."""
    (end,) = endings(launched, 1, name, str(folder / "said"))
    assert not end.error, end.error + (folder / "said.err").read_text()
    return (folder / "said.out").read_text()


def script(name: str) -> None:
    runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")


def run(name: str, folder: Path) -> str:
    first, *others = as_torchrun(script, 2, name)
    assert others == [""]
    return first


@pytest.mark.parametrize(("name", "how"), [("plain_loop.py", torchrun), ("ddp_hook.py", run)])
def test_loops_learn_and_replicas_stay_equal(name: str, how: Callable[[str, Path], str], tmp_path: Path) -> None:
    out = how(name, tmp_path)
    losses = [float(v) for v in re.findall(r"loss ([0-9.]+)", out)]
    assert losses[-1] < 0.3 * losses[0]
    assert "replicas bitwise equal: True" in out


def test_resumed_run_equals_the_whole_one(tmp_path: Path) -> None:
    out = run("amp_resume.py", tmp_path)
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

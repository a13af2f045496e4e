"""The script on each page of docs/integrations runs as its first line says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import thinwire as tw

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "integrations"


def whole_script(page: str) -> str:
    """The one script of a page."""
    scripts = re.findall(
        r"^```python\n(\"\"\"(?:torchrun|python) .*?)^```$", (FOLDER / page).read_text(), re.MULTILINE | re.DOTALL
    )
    assert len(scripts) == 1, page
    found: str = scripts[0]
    return found


def run(page: str, folder: Path) -> str:
    """What the script prints, started with its own first line, in a folder of its own."""
    script = whole_script(page)
    (folder / "train.py").write_text(script)
    words = script.split('"""')[1].split()
    assert words[0] == "torchrun"
    assert words[-1] == "train.py"
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *words[1:]],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def losses(printed: str) -> tuple[float, float]:
    first, last = re.findall(r"loss ([0-9.]+) -> ([0-9.]+)", printed)[0]
    return float(first), float(last)


@pytest.mark.parametrize("package", ["transformers", "accelerate", "lightning"])
def test_the_script_learns_and_resumes(package: str, tmp_path: Path, needs: Callable[[str], None]) -> None:
    needs(package)
    printed = run(f"{package}.md", tmp_path)
    first, last = losses(printed)
    assert last < 0.8 * first
    assert "resumed run bitwise equal: True" in printed


def test_the_script_that_logs_writes_what_it_says(tmp_path: Path, needs: Callable[[str], None]) -> None:
    needs("tensorboard")
    needs("wandb")
    printed = run("logging.md", tmp_path)
    ratio = float(re.findall(r"([0-9.]+) times less", printed)[0])
    assert 3 < ratio < 9
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: PLC0415

    read = EventAccumulator(str(tmp_path / "runs"))
    read.Reload()
    assert {"loss", "thinwire/bytes_sent", "thinwire/ratio", "thinwire/nmse"} <= {*read.Tags()["scalars"]}
    sent = [(row.step, row.value) for row in read.Scalars("thinwire/bytes_sent")]
    assert [step for step, _ in sent] == [9, 19, 29]
    assert 0 < sent[0][1] < sent[1][1] < sent[2][1]
    assert read.Scalars("thinwire/ratio")[-1].value == pytest.approx(ratio, abs=0.06)
    assert list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))


def test_replicas_of_torchft_agree_and_resume(tmp_path: Path, needs: Callable[[str], None]) -> None:
    needs("torchft")
    (tmp_path / "train.py").write_text(whole_script("torchft.md"))
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    anchors = []
    for resume in ([], ["resume"]):
        lighthouse = tw.integrations.torchft.lighthouse(quorum=2)
        address = f"http://localhost:{lighthouse.address().rsplit(':', 1)[1]}"
        replicas = [
            subprocess.Popen(
                [sys.executable, "train.py", address, name, *resume],
                cwd=tmp_path,
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for name in ("north", "south")
        ]
        try:
            for replica in replicas:
                printed, complaints = replica.communicate(timeout=140)
                assert replica.returncode == 0, complaints
                anchors += re.findall(r"anchor ([0-9a-f]{8}) of a crew of 2", printed)
                first, last = losses(printed)
                assert last < first
        finally:
            for replica in replicas:
                replica.kill()
            lighthouse.shutdown()
    assert len(anchors) == 4
    assert len({*anchors}) == 1


def test_ray_train(tmp_path: Path, needs: Callable[[str], None]) -> None:
    """The page shows the example, which starts Ray on this machine."""
    needs("ray")
    script = ROOT / "examples" / "ray_train.py"
    assert f"```python\n{script.read_text()}```" in (FOLDER / "ray.md").read_text()
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    env |= {"RAY_AUTH_MODE": "disabled"}  # it would leave a token in the home folder
    env |= {"RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "200"}  # a busy machine takes longer than 60 s
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    first, last = losses(done.stdout)
    assert last < 0.8 * first
    assert "resumed run bitwise equal: True" in done.stdout


def test_every_page_is_run_by_some_test() -> None:
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    for page in FOLDER.glob("*.md"):
        assert f'"{page.name}"' in tests or f'"{page.stem}"' in tests, page.name

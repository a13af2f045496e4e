from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fences import ROOT

SITE = ROOT / "build" / "site"
collect_ignore = ["prelude.py"]  # for ranks, which have a process group


def _newest() -> float:
    sources = [*(ROOT / "docs").rglob("*"), *ROOT.glob("*.md"), *(ROOT / "thinwire").rglob("*.py")]
    styles = (ROOT / "thinwire" / "lab" / "site").glob("*.[cs][sv][sg]")
    return max(path.stat().st_mtime for path in (*sources, *styles) if path.is_file())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test that wants the site waits for it to be built, which counts as the test's own time."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def site() -> Path:
    """The site in build/site; it is built where it is missing, or older than one of its sources."""
    pytest.importorskip("sphinx", reason="Sphinx is not installed: make docs, or pip install -e '.[docs]'")
    index = SITE / "index.html"
    if not index.exists() or index.stat().st_mtime < _newest():
        command = [sys.executable, "-m", "thinwire.lab.site"]  # as `make docs`; warnings of pytest are not Sphinx's
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
        assert done.returncode == 0, done.stderr
    return SITE

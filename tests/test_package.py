"""The shape of the repository: file sizes, no work at import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_no_source_file_is_over_400_lines() -> None:
    sources = [p for kind in ("py", "h", "cpp") for p in (ROOT / "thinwire").rglob(f"*.{kind}")]
    sources += list((ROOT / "tests").rglob("*.py"))
    assert len(sources) > 50
    for path in sources:
        assert len(path.read_text().splitlines()) <= 400, path


def test_import_does_not_load_the_extension_or_start_threads() -> None:
    code = (
        "import sys, threading, thinwire; "
        "assert 'thinwire.kernels.cpu._cpu' not in sys.modules; assert threading.active_count() == 1"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

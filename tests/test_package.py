"""The shape of the repository: file sizes, no work at import."""

from __future__ import annotations

import shutil
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


def test_a_clone_without_the_compiled_module_says_what_to_do(tmp_path: Path) -> None:
    """As after `pip install .` where Python starts inside the clone; finders of an editable install are taken out."""
    shutil.copytree(
        ROOT / "thinwire", tmp_path / "thinwire", ignore=shutil.ignore_patterns("*.so", "lab", "__pycache__")
    )
    code = (
        "import sys; sys.meta_path[:] = [f for f in sys.meta_path if isinstance(f, type)]; sys.path.insert(0, '.'); "
        "import thinwire, torch; thinwire.compressors.get('qsgd:bits=4').encode(torch.zeros(8))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(
        f"ImportError: {tmp_path}/thinwire/kernels/cpu holds the sources of thinwire's C++ kernels and"
    )
    assert last.endswith("if you ran `pip install .`, or write `pip install -e .` in the clone")
    assert "circular" not in done.stderr

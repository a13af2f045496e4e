"""Layouts as keys."""

from __future__ import annotations

import subprocess
import sys

from thinwire import Layout


def test_a_layout_hashes_the_same_in_every_process() -> None:
    """Its hash is kept, and pickled with it."""
    code = "from thinwire import Layout; print(hash(Layout(('weight', 'bias'), ((3, 2), (3,)))))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert int(run.stdout) == hash(Layout(("weight", "bias"), ((3, 2), (3,))))

"""What the interpreter runs also compiles for a GPU, whether there is one or not: every kernel of the package.

`compiled.py` fails where one does not compile or wants more shared memory than there is, where it launches one of
them nowhere, so that a new kernel must be added to it, and where `Ready` would start another variant than Triton.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")


@pytest.mark.long
@pytest.mark.timeout(200)
def test_kernels_compile() -> None:
    here = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    made = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "compiled.py")],
        env=here,
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr

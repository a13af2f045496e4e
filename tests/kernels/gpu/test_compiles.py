"""What the interpreter runs also compiles for a GPU, whether there is one or not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
WANTED = {
    *("encode", "decode", "segments", "sums", "seals", "verdicts"),
    *(
        "join",
        "split",
        "count_few",
        "count_symbols",
        "model",
        "push_chunks",
        "start_rares",
        "pick_rares",
        "lay",
        "place",
    ),
    *("pack_plain", "read", "fill_slots", "pop_chunks", "find_rares", "put_rares", "unpack_plain"),
}


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
    assert {line.split()[0] for line in made.stdout.splitlines()} >= WANTED

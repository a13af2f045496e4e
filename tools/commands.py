"""Commands that are quiet unless they fail."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


def output(command: Sequence[str | Path], cwd: Path, env: Mapping[str, str]) -> str:
    """Run a command and return what it prints; where it fails, show that and end."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\n{' '.join(words)} failed; its last words are above")
    return done.stdout.strip()

"""The commands `ip` and `tc`: whether this machine can run a lab, and one call of each."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

VARIABLE = "THINWIRE_IPROUTE2"


def check() -> None:
    """Raise an OSError that says what to do where a lab cannot be built."""
    if sys.platform != "linux":
        raise OSError(
            f"the network lab is made of Linux network namespaces, and this is {sys.platform}; "
            "write thinwire bench step --local"
        )
    _supply()
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if missing:
        raise FileNotFoundError(
            f"the network lab needs the command {' and '.join(missing)}; write apt-get install iproute2, or "
            f"{VARIABLE}=<the folder that they are in>"
        )
    if os.geteuid() != 0:
        raise PermissionError(
            "the network lab makes network namespaces, and that needs root; write sudo thinwire bench step --hosts 4 "
            "--rate 1gbit, or thinwire bench step --local"
        )


def call(*words: str) -> str:
    """Run one command; if it fails, raise an OSError with its message."""
    _supply()
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip() or f'ended with status {done.returncode}'}")
    return done.stdout


def _supply() -> None:
    """Look for the commands in the folder that the environment names, if it names one, before the PATH."""
    folder, path = os.environ.get(VARIABLE), os.environ.get("PATH", os.defpath)
    if folder and folder not in path.split(os.pathsep):
        os.environ["PATH"] = f"{folder}{os.pathsep}{path}"

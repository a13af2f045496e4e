"""Remove the namespaces of one lab, with the processes left in them. Run as a program it is the guardian.

The guardian reads from a pipe whose other end only the lab's process holds. Nothing is ever written; the end of the
file shows that the process has ended, in whatever way. It runs by its path and imports the standard library alone, so
that it starts in milliseconds and is small.

A lab is called thinwire-PID-START-TAG: the process that owns it, when that started (in clock ticks after boot, since
numbers are reused), and a random word. Its namespaces are called LAB-0, LAB-1, ... and LAB-bridge.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

NAMESPACES = Path("/run/netns")
LAB = re.compile(r"(thinwire-(\d+)-(\d+)-[0-9a-f]+)-\w+")


def remove(lab: str) -> None:
    """Kill the processes in the lab's namespaces and delete these; those that are gone already are ignored."""
    names = [path.name for path in _namespaces() if path.name.startswith(f"{lab}-")]
    for name in names:
        for word in _ip("netns", "pids", name).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(word), signal.SIGKILL)
        _ip("netns", "del", name)


def sweep() -> list[str]:
    """Remove the labs whose owner is dead, and return their names."""
    labs = {found[1]: found for path in _namespaces() if (found := LAB.fullmatch(path.name))}
    dead = [lab for lab, found in labs.items() if started(int(found[2])) != int(found[3])]
    for lab in dead:
        remove(lab)
    return dead


def started(pid: int) -> int:
    """When a process started, in clock ticks after boot; 0 if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[19])


def _namespaces() -> list[Path]:
    return sorted(NAMESPACES.iterdir()) if NAMESPACES.is_dir() else []


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=False).stdout


if __name__ == "__main__":
    sys.stdin.read()
    remove(sys.argv[1])

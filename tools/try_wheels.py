"""Install what `make wheels` left in dist/ where there is no compiler, and use it: `make try-wheels`.

The wheel of every Python that is named goes into a virtual environment of its own, whose programs see an empty PATH.
The sdist then goes into the first of them, where it must fall back on the reference kernels and say so.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from commands import output

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
UNSEEN = ("PATH", "CC", "CXX", "PYTHONPATH", "VIRTUAL_ENV")


def alone(*command: str | Path, cwd: Path) -> str:
    """Run a program that finds no other program, and return what it prints."""
    clean = {name: value for name, value in os.environ.items() if name not in UNSEEN} | {"PATH": str(cwd / "empty")}
    return output(command, cwd, clean)


def environment(python: str, packages: list[str], place: Path) -> Path:
    """A virtual environment with what thinwire requires; its Python."""
    subprocess.run([python, "-m", "venv", place], check=True)
    run = place / "bin" / "python"
    alone(run, "-m", "pip", "install", "--quiet", "--upgrade", "pip", cwd=place)
    alone(run, "-m", "pip", "install", "--quiet", *packages, cwd=place)
    return run


def main() -> None:
    """Try all of them; the first that fails ends the program."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", action="append", help="a Python; may be repeated (default: this one)")
    parser.add_argument("--torch", default="torch==2.13.0", help="what pip is to install (default: %(default)s)")
    parser.add_argument("--no-sdist", action="store_true", help="leave the sdist alone")
    given = parser.parse_args()
    sdists = sorted(DIST.glob("thinwire-*.tar.gz"))
    if not sdists:
        sys.exit("there is nothing in dist/: run `make wheels` first")
    packages = [given.torch, "numpy>=1.26", "typer>=0.15", "rich>=13"]
    for place, python in enumerate(given.python or [sys.executable]):
        with tempfile.TemporaryDirectory() as folder:
            inside = Path(folder)
            run = environment(python, packages, inside / "venv")
            smoke = shutil.copy(ROOT / "tools" / "smoke.py", inside)
            pip = (run, "-m", "pip", "install", "--quiet", "--no-deps", "--force-reinstall", "--no-cache-dir")
            alone(*pip, "--no-index", "--find-links", DIST, "--only-binary", "thinwire", "thinwire", cwd=inside)
            print(alone(run, smoke, "compiled", cwd=inside), flush=True)
            if place == 0 and not given.no_sdist:
                alone(*pip, sdists[-1], cwd=inside)
                print(alone(run, smoke, "reference", cwd=inside), flush=True)


if __name__ == "__main__":
    main()

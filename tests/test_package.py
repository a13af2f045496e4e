"""The shape of the repository: file sizes, no work at import."""

from __future__ import annotations

import ast
import importlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
ORDER = [
    "kernels",
    "core",
    "codecs",
    "comm",
    "memory",
    "sync",
    "topology",
    "compressors",
    "server",
    "exchange",
    "methods",
    "optim",
    "engine",
    "sim",
    "planning",
    "integrations",
    "thinwire",  # the package itself, whose names are the public ones
    "lab",
    "cli",
]
"""The folders of thinwire, each of which may import those above it."""


def test_no_source_file_is_over_400_lines() -> None:
    sources = [p for kind in ("py", "h", "cpp") for p in (ROOT / "thinwire").rglob(f"*.{kind}")]
    sources += list((ROOT / "tests").rglob("*.py"))
    assert len(sources) > 50
    for path in sources:
        assert len(path.read_text().splitlines()) <= 400, path


def test_every_module_can_be_imported() -> None:
    for path in sorted((ROOT / "thinwire").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        try:
            importlib.import_module(name)
        except ImportError as error:
            if "write pip install 'thinwire[" not in str(error):  # an adapter, whose framework is not installed
                raise


def test_a_clone_without_the_compiled_module_is_imported_and_then_says_what_to_do(tmp_path: Path) -> None:
    """As after `pip install .` where Python starts inside the clone; finders of an editable install are taken out.

    Importing thinwire does not load the compiled module, which would fail here, and starts no thread.
    """
    shutil.copytree(
        ROOT / "thinwire", tmp_path / "thinwire", ignore=shutil.ignore_patterns("*.so", "lab", "__pycache__")
    )
    code = (
        "import sys; sys.meta_path[:] = [f for f in sys.meta_path if isinstance(f, type)]; sys.path.insert(0, '.'); "
        "import thinwire, threading, torch; print(thinwire.__file__, threading.active_count(), flush=True); "
        "assert not any('kernels.cpu._' in name for name in sys.modules); "
        "thinwire.compressors.get('qsgd:bits=4').encode(torch.zeros(8))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.stdout.split() == [f"{tmp_path}/thinwire/__init__.py", "1"], done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(
        f"ImportError: {tmp_path}/thinwire/kernels/cpu holds the sources of thinwire's C++ kernels and"
    )
    assert last.endswith("if you ran `pip install .`, or write `pip install -e .` in the clone")
    assert "circular" not in done.stderr


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All below a node, without their expressions, in which nothing is imported."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for child in getattr(node, name, ()):
            yield child
            yield from statements(child)


def imports(path: Path) -> list[tuple[int, str]]:
    """(line, folder) of all imports from thinwire in a file, wherever in it they stand, and those for types too."""
    out = []
    for node in statements(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write the whole name, `from thinwire...`"
            inside = node.module == "thinwire"
            names = [f"thinwire.{a.name}" for a in node.names] if inside else [node.module or ""]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            first, _, rest = name.partition(".")
            if first == "thinwire":
                folder = rest.partition(".")[0]
                out.append((node.lineno, folder if folder in ORDER else "thinwire"))
    return out


def test_folders_import_only_what_is_below_them() -> None:
    """Including imports inside functions and for types alone: a cycle of those is a cycle of ideas still."""
    folders = {p.name for p in (ROOT / "thinwire").iterdir() if (p / "__init__.py").exists()}
    assert folders == {*ORDER} - {"thinwire"}, "put a new folder where it belongs in ORDER"
    for path in sorted((ROOT / "thinwire").rglob("*.py")):
        place = path.relative_to(ROOT / "thinwire").parts
        roots = {"__init__.py": "thinwire", "__main__.py": "cli"}  # `python -m thinwire` is the command line
        here = place[0] if len(place) > 1 else roots.get(place[0], path.stem)
        for line, folder in imports(path):
            if folder != here:
                assert ORDER.index(folder) < ORDER.index(here), (
                    f"{path}:{line}: {here} imports {folder}, which is above it. Move what both need to the lower "
                    "folder, have it passed in, or ask for a fact of the base class in core"
                )

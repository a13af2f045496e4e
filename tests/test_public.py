"""Public names: 33 at most, and the pages use no others."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

import thinwire as tw
from thinwire.compressors import COMPRESSORS
from thinwire.core.config import TYPES
from thinwire.core.method import METHODS
from thinwire.topology import TOPOLOGIES

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").glob("*.py"))]
GROUPS = {
    registry.group for registry in (METHODS, COMPRESSORS, TOPOLOGIES, TYPES)
}  # of entry points: no Python names
WHEN_USED = ("integrations",)  # a namespace that is imported by its own name, and not with thinwire
CHAIN = re.compile(r"(?<![\w/-])(?:tw|thinwire)((?:\.[A-Za-z_]\w*)+)")
IMPORT = re.compile(r"from thinwire([\w.]*) import \(?([\w, ]+)")


def used(text: str) -> list[str]:
    """Dotted names below thinwire, in imports and in use."""
    imported = [
        f"{module}.{name.split(' as ')[0].strip()}"
        for module, names in IMPORT.findall(text)
        for name in names.split(",")
    ]
    return [*imported, *(chain for chain in CHAIN.findall(text) if f"thinwire{chain}" not in GROUPS)]


def stranger(chain: str) -> str:
    """The first part of a dotted name that is not public; '' where all are."""
    here: object = tw
    if chain.split(".")[1] in WHEN_USED:
        return ""
    for part in chain.strip(".").split("."):
        if not isinstance(here, ModuleType):
            break  # what an object has is its own affair
        if part not in (*here.__all__, "__version__"):
            return part
        here = getattr(here, part)
    return ""


def test_there_are_at_most_33_names_and_dir_shows_them() -> None:
    assert len(tw.__all__) == len({*tw.__all__}) <= 33
    assert [name for name in dir(tw) if not name.startswith("_")] == sorted(tw.__all__)
    for name in tw.__all__:
        assert getattr(tw, name) is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_use_public_names_alone(page: Path) -> None:
    found = {chain: stranger(chain) for chain in used(page.read_text())}
    assert not {chain: part for chain, part in found.items() if part}
    assert found or page.name in ("decisions.md", "slow-links.md", "wire-format.md")


def test_what_is_internal_would_be_found() -> None:
    text = "write `tw.engine.attach(m)`; from thinwire.core.types import Key; `tw.sync.Param()`; thinwire/lab/rate.py"
    assert [stranger(chain) for chain in used(text)] == ["core", "engine", "core", ""]
    assert used("the group `thinwire.topologies`") == []


def test_a_method_from_its_id() -> None:
    assert tw.method("ecq-sgd:levels=2,code=huffman") == tw.methods.ecq_sgd(levels=2, code="huffman")
    made = tw.methods.qsgd(bits=8)
    assert tw.method(made) is made
    assert tw.method(made.id) == made
    with pytest.raises(ValueError, match="unknown method 'qsdg'; did you mean 'qsgd'"):
        tw.method("qsdg:bits=4")
    with pytest.raises(ValueError, match="method 'qsgd' has no setting 'bit'; did you mean 'bits'"):
        tw.method("qsgd:bit=4")
    with pytest.raises(ValueError, match=r'got 4; write tw.method\("qsgd:bits=4"\) or tw.methods.qsgd\(bits=4\)'):
        tw.method(4)  # type: ignore[arg-type]

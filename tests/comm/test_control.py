"""Control messages are values, which run no code on those who read them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from nets import said
from ranks import on_ranks

from thinwire.comm import control

ROOT = Path(__file__).parents[2]
PICKLED = re.compile(r"(gather|broadcast|scatter|send|recv)(_object|_object_list)$")
FOLDERS = ("thinwire", "examples", "benchmarks", "docs", "tools")


def test_no_pickle_travels_between_ranks_and_no_file_is_read_as_one() -> None:
    """Hosts that train together may be strangers, and checkpoints may come from elsewhere."""
    sources = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    assert len(sources) > 500
    wrong = [f"{path.relative_to(ROOT)}:{line}" for path in sources for line in _unsafe(ast.parse(path.read_text()))]
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    wrong += [
        f"{page.relative_to(ROOT)}: {line}"
        for page in pages
        for line in page.read_text().splitlines()
        if "torch.load(" in line and "weights_only=True" not in line
    ]
    assert not wrong


def _unsafe(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            named = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            loads = ast.unparse(node.func) == "torch.load" and named.get("weights_only") != "True"
            if loads or PICKLED.search(node.func.attr):
                yield node.lineno
        elif isinstance(node, ast.Constant) and "torch.load(f)" in str(node.value):
            yield node.lineno


def told() -> tuple[list[object], list[object], str]:
    """Words of different lengths; then rank 1 announces more than there can be."""
    rank = dist.get_rank()
    group = dist.new_group([1, 2])
    words = control.gathered({"rank": rank, "text": "x" * rank, "far": float("inf")})
    first = [control.of_first(f"rank {rank}"), control.of_first([rank, None], group) if rank else None]
    control.MOST = 10
    return words, first, said(lambda: control.gathered("x" * 20 if rank == 1 else ""))


def test_ranks_tell_each_other_json() -> None:
    for rank, (words, first, refused) in enumerate(on_ranks(told, 3)):
        assert words == [{"rank": r, "text": "x" * r, "far": float("inf")} for r in range(3)]
        assert first == ["rank 0", [1, None] if rank else None]
        assert "rank 1 announces a message of 22 bytes" in refused


@pytest.mark.parametrize("value", [torch.zeros(1), {1, 2}])
def test_what_json_has_not_is_an_error_here(value: object) -> None:
    with pytest.raises(TypeError, match="JSON serializable"):
        control.gathered(value)

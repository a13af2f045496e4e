"""Every block of code in the pages runs: as a doctest, on four ranks, or as a script under torchrun.

Doctests are run by `make test`. Blocks that only make sense in another package's training loop are compiled here, and
what they use of thinwire is looked up; the tests of that adapter run them.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
import traceback
from pathlib import Path

import pytest
import torch.distributed as dist
from fences import ROOT, Block, blocks, pages
from ranks import on_ranks

import thinwire

RANKS = 4
OURS = {"thinwire", "torch", "numpy", *sys.stdlib_module_names}
ELSEWHERE = {
    "docs/integrations/": "the page is a whole script, which `make test-frameworks` runs beside the framework",
    "docs/fsdp.md": "it needs a sharded model on a mesh, and often GPUs: examples/fsdp.py is run by `make test`",
}
"""Pages whose code is run by tests of their own, and is compiled here."""
PRELUDE = Path(__file__).with_name("prelude.py")
CODE = [block for path in pages() for block in blocks(path) if block.language in ("python", "diff")]
VARIES = re.compile(r"(loss|error) [0-9.e-]+")


def source(block: Block) -> str:
    """The Python of a block; of a difference, what comes out of it."""
    if block.language == "python":
        return block.text
    return "".join(f"{line[1:]}\n" for line in block.text.splitlines() if not line.startswith("-"))


def how(block: Block) -> str:
    """doctest, torchrun, compiled or ranks."""
    if block.text.lstrip().startswith(">>> "):
        return "doctest"
    if block.note.startswith(("torchrun", "compiled")):
        return block.note.partition("=")[0].partition(",")[0]
    if foreign(block) or reason(block):
        return "compiled"
    return "torchrun" if "init_process_group(" in block.text else "ranks"


def reason(block: Block) -> str:
    """Why a block is not run here, as its page or the comment above it says."""
    elsewhere = [why for page, why in ELSEWHERE.items() if block.page.startswith(page)]
    return elsewhere[0] if elsewhere else block.note.partition("compiled, because ")[2]


def foreign(block: Block) -> set[str]:
    """Packages that a block imports, other than torch and ours."""
    found = set()
    for node in ast.walk(ast.parse(source(block))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found - OURS


def of(kind: str) -> list[Block]:
    return [block for block in CODE if how(block) == kind]


def each(found: list[Block]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("block", found, ids=[block.id for block in found])


def run_blocks(found: list[Block], folder: str) -> list[str]:
    """On one rank: what each block raised, or ''."""
    os.chdir(folder)
    out = []
    for block in found:
        space: dict[str, object] = {"__name__": "page"}
        exec(compile(PRELUDE.read_text(), str(PRELUDE), "exec"), space)
        text = source(block)
        try:
            if used_without_being_made(text, "wire"):
                exec("wire = tw.attach(model, optimizer, tw.methods.qsgd(bits=4))\ntrain()", space)
            exec(compile("\n" * block.line + text, block.page, "exec", dont_inherit=True), space)
            if not re.search(r"\bas wire\b", text):
                exec("train(); wire.detach() if 'wire' in globals() else None", space)
        except Exception:
            out.append(traceback.format_exc(limit=-3))
        else:
            out.append("")
        dist.barrier()
    return out


def used_without_being_made(text: str, name: str) -> bool:
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name) and node.id == name]
    return bool(found) and all(isinstance(node.ctx, ast.Load) for node in found)


@pytest.fixture(scope="module")
def raised(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """By block, what it raised on each rank. One world runs all of them, one after the other."""
    found = of("ranks")
    ends = on_ranks(run_blocks, RANKS, found, str(tmp_path_factory.mktemp("blocks")), timeout=500)
    return {block.id: [end[i] for end in ends] for i, block in enumerate(found)}


@each(of("ranks"))
def test_a_block_runs_on_four_ranks(block: Block, raised: dict[str, list[str]]) -> None:
    assert raised[block.id] == [""] * RANKS, (
        "a short block runs after tests/site/prelude.py; write a comment `<!-- code: torchrun=2 -->` above a whole "
        "script, or `<!-- code: compiled, because ... -->` above what cannot be run here"
    )


@each(of("torchrun"))
def test_a_script_runs_and_prints_what_the_page_says(block: Block, tmp_path: Path) -> None:
    ranks = block.note.partition("=")[2] or "2"
    (tmp_path / "train.py").write_text(block.text)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks, "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    after = [one for one in blocks(ROOT / block.page) if one.line > block.line and one.note.startswith("output")]
    if after:
        assert VARIES.sub("", done.stdout) == VARIES.sub("", after[0].text)


@each(of("compiled"))
def test_a_block_for_elsewhere_compiles_and_uses_what_is_there(block: Block) -> None:
    assert foreign(block) or reason(block), "say why it is not run: <!-- code: compiled, because ... -->"
    tree = ast.parse(source(block))
    compile(tree, block.page, "exec")
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith(("tw.", "thinwire.")):
            here: object = thinwire
            parts = ast.unparse(node).split("(")[0].split(".")[1:]
            for part in parts if parts[0] != "integrations" else []:
                here = getattr(here, part)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("thinwire"):
            folder = ROOT.joinpath(*str(node.module).split("."))
            assert all((folder / f"{alias.name}.py").exists() or folder.exists() for alias in node.names) or (
                folder.with_suffix(".py").exists()
            ), ast.unparse(node)


@each(of("doctest"))
def test_a_doctest_has_examples_alone(block: Block) -> None:
    """`make test` runs them, unless a line stands before the first example and is taken for its output."""
    assert block.text.endswith("\n\n") or not block.text.rstrip().splitlines()[-1].startswith("```")
    assert re.match(r"(>>> |\n)", block.text)


def test_other_blocks_are_data() -> None:
    known = {"", "bash", "sh", "console", "text", "diff", "python", "toml"}
    found = [block for path in pages() for block in blocks(path)]
    assert {block.language for block in found} <= known, "write a test for a new language here"
    assert len(of("doctest")) > 15
    assert len(of("ranks")) > 7
    for block in found:
        if block.language == "toml":
            assert tomllib.loads(block.text)

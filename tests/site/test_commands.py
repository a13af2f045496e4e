"""Commands in the pages exist: their options are parsed, files and targets are looked for. Nothing is run."""

from __future__ import annotations

import re
import shlex
import tomllib
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
import typer
from fences import ROOT, blocks, pages

from thinwire.cli.app import app

SHELL = ("", "bash", "sh", "console")
SPAN = re.compile(r"`((?:sudo )?thinwire [a-z][^`]*|make [a-z-]+|python benchmarks/[^`]*)`", re.DOTALL)
USAGE = cast(
    "type[Exception]", typer.BadParameter.__mro__[1]
)  # the error of arguments, which typer gives no name of its own
KNOWN = re.compile(r"(?:[A-Z_]+=\S+ |sudo |do )*(?:\S*/)?(?:thinwire|make|python3?|torchrun|pip)\s")
VARIABLE = re.compile(r"^[A-Z_]+=")
YOURS = ("train.py",)
"""What the reader has saved under this name."""
PLACE = re.compile(r"^[A-Z]+(\.\.\.)?$|^\.\.\.$")


def commands(path: Path) -> list[str]:
    """Lines of shell blocks, joined where they go on, and code in the text that is a command."""
    said = [block for block in blocks(path) if block.language in SHELL]
    lines = [line for block in said for line in block.text.replace("\\\n", " ").splitlines()]
    plain = "\n".join(line for line in path.read_text().splitlines() if not line.startswith("```"))
    return [*lines, *(" ".join(span.split()) for span in SPAN.findall(plain))]


def wrong(command: str) -> str:
    """Why a command cannot be right; '' where it can, or where it is none of those that we know."""
    if not KNOWN.match(command.strip()):
        return ""
    words = shlex.split(command.replace("$kind", "slow").replace("[", "").replace("]", ""), comments=True)
    while words and (words[0] in ("sudo", "do") or VARIABLE.match(words[0])):
        words = words[1:]
    if not words:
        return ""
    name, given = words[0].rpartition("/")[2], words[1:]
    if name == "thinwire":
        return unparsed(given)
    if name == "make":
        return "" if all(f"\n{target}:" in (ROOT / "Makefile").read_text() for target in given) else f"make {given}"
    if name in ("python", "python3") and given[0].endswith(".py") and given[0] not in YOURS:
        return missing(given[0], given[1:])
    if name == "torchrun":
        scripts = [word for word in given if word.endswith(".py")]
        return "" if all(script in YOURS or (ROOT / script).exists() for script in scripts) else f"no {scripts}"
    if name == "pip":
        return unknown_extra(command)
    return ""


@cache
def root() -> Any:
    """The command `thinwire`, as typer parses it."""
    return typer.main.get_command(app)


def unparsed(given: list[str]) -> str:
    """What typer says about the arguments of `thinwire`, which are parsed and not run; README.md stands for NAMES."""
    command = root()
    words = ["README.md" if PLACE.match(word) else word.partition("|")[0] for word in given]
    while below := getattr(command, "commands", None):  # a group of commands
        if not words:
            return ""
        name, *words = words
        if name not in below:
            return f"there is no command {name!r}"
        command = below[name]
    try:
        command.make_context(command.name, words)
    except typer.Exit:
        return ""
    except USAGE as error:
        said = str(error)  # a text may name a command without its arguments, or an option without its value
        return "" if type(error).__name__ == "MissingParameter" or "requires an argument" in said else said
    return ""


def missing(script: str, given: list[str]) -> str:
    path = ROOT / script
    if not path.exists():
        return f"there is no {script}"
    text = path.read_text()
    return next(
        (f"{script} has no {word}" for word in given if word.startswith("--") and f'"{word}"' not in text), ""
    )


def unknown_extra(command: str) -> str:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = [name for group in re.findall(r"(?:thinwire|\.)\[([\w,-]+)\]", command) for name in group.split(",")]
    return next((f"there is no extra {name!r}" for name in asked if name not in extras), "")


@pytest.mark.parametrize("path", pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_can_be_given(path: Path) -> None:
    assert {command: why for command in commands(path) if (why := wrong(command))} == {}


def test_there_are_many_commands_and_wrong_ones_would_be_found() -> None:
    assert sum(len(commands(path)) for path in pages()) > 60
    assert wrong("thinwire bench step --hosts 4") == wrong("sudo thinwire race --task digits") == wrong("ls -l") == ""
    assert "No such option: --host" in wrong("thinwire bench step --host 4")
    assert wrong("thinwire trane") == "there is no command 'trane'"
    assert "no_such" in wrong("make no_such")
    assert wrong("python benchmarks/none.py") == "there is no benchmarks/none.py"
    assert wrong("pip install 'thinwire[docs,nothing]'") == "there is no extra 'nothing'"

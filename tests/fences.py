"""Fenced code in Markdown pages, and the comments above it that say how it is tried.

A comment `<!-- code: ... -->` on a line of its own is for the block below it; a reader of the page does not see it:

    <!-- code: torchrun=2 -->                        a whole script, which torchrun starts on two ranks
    <!-- code: compiled, because it needs ... -->    it is not run, for this reason

`<!-- output: ... -->` stands above what such a script prints.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^( *)```(.*)$")
NOTE = re.compile(r"^<!-- (code|output): (.+) -->$")


class Block(NamedTuple):
    page: str
    line: int
    language: str
    text: str
    note: str  # what the comment above says, with "output" before it where it is one

    @property
    def id(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """Every page of the site that is written by hand."""
    return [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(path: Path) -> list[Block]:
    """All fenced blocks of a page, in order."""
    found: list[Block] = []
    note, start, opened, lines = "", 0, "", list[str]()
    indent = language = ""
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        fence = FENCE.match(line)
        if start:
            if fence and not fence[2] and fence[1] == indent:
                text = "\n".join(lines) + "\n"
                found.append(Block(str(path.relative_to(ROOT)), start, language, text, opened))
                start = 0
            else:
                lines.append(line.removeprefix(indent))
        elif fence:
            indent, language, start, opened, lines = fence[1], fence[2].strip(), number, note, []
            note = ""
        elif said := NOTE.match(line):
            note = said[2] if said[1] == "code" else f"output: {said[2]}"
        elif line:
            note = ""
    assert not start, f"{path}:{start}: the block does not end"
    return found

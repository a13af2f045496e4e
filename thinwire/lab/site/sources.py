"""The folder that Sphinx reads: docs/ as it is, README.md as the first page, CHANGELOG.md, and the reference.

Files in docs/ are plain Markdown, to be read on their own; what the site needs beside them, tables of contents above
all, is written here and nowhere else.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from thinwire.lab.site.nav import layout
from thinwire.lab.site.reference import pages

ROOT = Path(__file__).resolve().parents[3]
LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")
FENCED = re.compile(r"(^ *```.*?^ *```)", re.DOTALL | re.MULTILINE)
LAST = re.compile(r"\n\n+( *```)$")  # the empty line that ends a doctest
IMAGES = (".png", ".svg")


def write(folder: Path, root: Path = ROOT) -> None:
    """Fill an empty folder with the sources of the site."""
    docs = root / "docs"
    for path in sorted(docs.rglob("*")):
        to = folder / path.relative_to(docs)
        if path.suffix == ".md":
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_text(relinked(path.read_text(), str(path.relative_to(root).parent)))
        elif path.suffix in IMAGES:
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, to)
    made = pages()
    for name, text in made.items():
        to = folder / f"{name}.md"
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(text)
    (folder / "changelog.md").write_text(relinked((root / "CHANGELOG.md").read_text(), "."))
    there = {str(path.relative_to(docs).with_suffix("")) for path in docs.rglob("*.md")}
    home = relinked((root / "README.md").read_text(), ".")
    (folder / "index.md").write_text(f"{home}\n{contents({*there, 'api/index', 'changelog'})}")


def relinked(text: str, folder: str) -> str:
    """Links of a file in `folder` of the repository, as they are where the pages lie in the site.

    >>> relinked("[a](docs/papers/qsgd.md#steps), [b](CHANGELOG.md), [c](https://x.org/y)", ".")
    '[a](papers/qsgd.md#steps), [b](changelog.md), [c](https://x.org/y)'
    >>> relinked("[home](../../README.md), [other](laq.md)", "docs/papers")
    '[home](../index.md), [other](laq.md)'
    """

    def moved(found: re.Match[str]) -> str:
        target = found[2]
        if "://" in target:
            return found[0]
        return f"{found[1]}{_moved(target, folder)}{found[3]}"

    parts = FENCED.split(text)
    return "".join(LAST.sub(r"\n\1", part) if FENCED.match(part) else LINK.sub(moved, part) for part in parts)


def _moved(target: str, folder: str) -> str:
    steps: list[str] = []
    for step in [*Path(folder).parts, *target.split("/")]:
        if step == "..":
            steps.pop()
        elif step != ".":
            steps.append(step)
    where = {"README.md": ["index.md"], "CHANGELOG.md": ["changelog.md"]}.get("/".join(steps), steps)
    inside = where[1:] if where[0] == "docs" else where
    up = len(Path(folder).parts) - 1
    here = list(Path(folder).parts[1:])
    while here and inside and here[0] == inside[0]:
        here, inside, up = here[1:], inside[1:], up - 1
    return "/".join([*[".."] * max(up, 0), *inside])


def contents(made: set[str]) -> str:
    """The navigation: one hidden table of contents per section."""
    out = []
    for section, found in layout(made):
        lines = [f"{section.titles[page]} <{page}>" if page in section.titles else page for page in found]
        if lines:
            out += ["```{toctree}", ":hidden:", f":caption: {section.title}", "", *lines, "```", ""]
    return "\n".join(out)

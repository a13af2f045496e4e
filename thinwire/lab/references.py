"""Papers, read from the `Reference:` paragraph of a module's docstring."""

from __future__ import annotations

import re
from dataclasses import dataclass
from inspect import cleandoc

PARAGRAPH = re.compile(r"^Reference: (.+?)(?:\n\n|\Z)", re.DOTALL | re.MULTILINE)
TITLE = re.compile(r'"([^"]+)"')
YEAR = re.compile(r"(?<!\d)((?:19|20)\d\d)(?![\d.]\d)")  # not the start of an arXiv number
AUTHOR = re.compile(r"([A-Z][\w-]+)(?:,| et al\.)")
ARXIV = re.compile(r"arXiv (\d\d)(\d\d\.\d{4,5})")


@dataclass(frozen=True)
class Reference:
    """A title (or what replaces it), the first author, a year and an arXiv number, as far as given."""

    paper: str | None = None
    author: str | None = None
    year: int | None = None
    arxiv: str | None = None


def reference(doc: str | None) -> Reference:
    """The first paper of the paragraph.

    >>> reference("QSGD.\\n\\nReference: Alistarh et al., NeurIPS 2017, arXiv 1610.02132, algorithm 1.")
    Reference(paper='Alistarh et al., NeurIPS 2017', author='Alistarh', year=2017, arxiv='1610.02132')
    """
    found = PARAGRAPH.search(cleandoc(doc or ""))
    if not found:
        return Reference()
    text = " ".join(found[1].split())
    title, author, year, arxiv = TITLE.search(text), AUTHOR.match(text), YEAR.search(text), ARXIV.search(text)
    when = int(year[1]) if year else 2000 + int(arxiv[1]) if arxiv else None
    paper = title[1].rstrip(",") if title else text.partition(", arXiv")[0].rstrip(".")
    return Reference(paper, author and author[1], when, arxiv[1] + arxiv[2] if arxiv else None)

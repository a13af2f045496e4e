"""Which page stands where in the site. A page of docs/ that no section names is refused, so that none is lost."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Section:
    """A heading of the navigation, and its pages in order: names or patterns relative to docs/, without `.md`.

    A name that matches no file is left out. `titles` replaces a page's own heading where that is long for a column.
    """

    title: str
    pages: tuple[str, ...]
    titles: dict[str, str] = field(default_factory=dict)


SECTIONS = (
    Section("Start here", ("installing", "getting-started", "choosing", "planning")),
    Section(
        "Tutorials",
        ("slow-links", "regions", "simulating", "extending"),
        {"slow-links": "Slow links", "regions": "Across regions"},
    ),
    Section(
        "Guides",
        (
            "training",
            "your-optimizer",
            "fsdp",
            "integrations",
            "integrations/*",
            "overlap",
            "faults",
            "membership",
            "gossip",
            "stragglers",
            "proximal",
            "low-precision",
        ),
        {"stragglers": "Stragglers", "proximal": "ADMM and proximal methods", "low-precision": "Low precision"},
    ),
    Section(
        "Reference", ("api/index", "wire-format", "architecture", "decisions", "changelog"), {"changelog": "Changes"}
    ),
    Section("Papers, run again", ("papers/*",)),
)
"""`api/*` and `changelog` are made when the site is built."""


class NavError(ValueError):
    """A page is in no section, or in two."""


def layout(made: set[str]) -> list[tuple[Section, list[str]]]:
    """The sections with the pages that are there; `made` are all pages, such as `papers/qsgd`.

    >>> [pages for _, pages in layout({"choosing", "training", "papers/laq", "papers/qsgd"})]
    [['choosing'], [], ['training'], [], ['papers/laq', 'papers/qsgd']]
    >>> layout({"choosing", "new-page"})
    Traceback (most recent call last):
    thinwire.lab.site.nav.NavError: docs/new-page.md is in no section: name it in SECTIONS of thinwire/lab/site/nav.py
    """
    placed: list[tuple[Section, list[str]]] = []
    seen: set[str] = set()
    for section in SECTIONS:
        named = [sorted(page for page in made if Path(page).match(pattern)) for pattern in section.pages]
        pages = [page for several in named for page in several if _depth(page, section)]
        if twice := seen & set(pages):
            raise NavError(f"docs/{min(twice)}.md is in two sections of thinwire/lab/site/nav.py")
        seen |= set(pages)
        placed.append((section, pages))
    if lost := made - seen:
        raise NavError(f"docs/{min(lost)}.md is in no section: name it in SECTIONS of thinwire/lab/site/nav.py")
    return placed


def _depth(page: str, section: Section) -> bool:
    """Whether a pattern names as many folders as the page has: `Path.match` compares from the right."""
    return any(Path(page).match(pattern) and page.count("/") == pattern.count("/") for pattern in section.pages)

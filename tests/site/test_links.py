"""Over the built site: links, anchors and images lead somewhere, nothing is fetched, every name is documented."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from thinwire.lab.site.names import Names
from thinwire.lab.site.nav import NavError, layout

FETCHED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "object": "data"}
FAR = re.compile(r"""(?:url\(|@import\s+)["']?(?:https?:)?//""")


@dataclass
class Page(HTMLParser):
    """What a page has and what it points to."""

    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)
    without_alt: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given["id"]} if "id" in given else set()
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if given.get(FETCHED.get(tag, "")):
            self.fetched.append(given[FETCHED[tag]])
        if tag == "img" and not given.get("alt", "").strip():
            self.without_alt.append(given.get("src", ""))


@cache
def read(path: Path) -> Page:
    page = Page()
    page.feed(path.read_text())
    return page


def broken(path: Path, link: str) -> str:
    """Why a link of a page leads nowhere; '' where it leads somewhere, or out of the site."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return "" if parts.scheme in ("https", "http", "mailto", "data") else f"{link}: what is {parts.scheme}?"
    to = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not to.is_file():
        return f"{link}: there is no such file"
    anchor = unquote(parts.fragment)
    return f"{link}: there is no such anchor" if anchor and anchor not in read(to).ids else ""


def html(site: Path) -> list[Path]:
    found = sorted(site.rglob("*.html"))
    assert len(found) > 40
    return found


def test_links_anchors_and_images_lead_somewhere(site: Path) -> None:
    wrong = [
        f"{path.relative_to(site)}: {why}"
        for path in html(site)
        for link in {*read(path).links, *read(path).fetched}
        if (why := broken(path, link))
    ]
    assert wrong == []


def test_a_broken_link_would_be_found(site: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text('<h1 id="here">x</h1><img src="a.png"><script src="https://cdn.example/x.js"></script>')
    assert broken(page, "#here") == broken(page, "page.html#here") == broken(page, "https://example.org") == ""
    assert broken(page, "#there") == "#there: there is no such anchor"
    assert broken(page, "other.html") == "other.html: there is no such file"
    assert read(page).without_alt == ["a.png"]
    assert read(page).fetched == ["a.png", "https://cdn.example/x.js"]


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for path in html(site):
        assert [link for link in read(path).fetched if urlsplit(link).netloc] == [], path
        assert not FAR.search(path.read_text()), path
    for path in site.rglob("*.css"):
        assert not FAR.search(path.read_text()), path
    assert FAR.search("@import url('https://fonts.example/css')")


def test_images_have_alternative_text(site: Path) -> None:
    assert {str(path): read(path).without_alt for path in html(site) if read(path).without_alt} == {}
    assert sum(len(read(path).fetched) for path in html(site)) > 100


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    names = Names()
    ids = {one for path in (site / "api").glob("*.html") for one in read(path).ids}
    paths = {names.home[id(name.value)] for several in names.spaces.values() for name in several}
    assert len(paths) > 200
    assert paths - ids == set()
    text = (site / "api" / "thinwire.html").read_text()
    assert all(f'id="thinwire.Wire.{name}"' in text for name in ("stats", "plan", "no_sync", "state_dict", "detach"))


def test_every_page_is_in_the_navigation(site: Path) -> None:
    """`make docs` refuses a page that no section names; here the pages are looked for in what it made."""
    made = {str(path.relative_to(site)) for path in html(site)} - {"genindex.html", "search.html", "py-modindex.html"}
    linked = {link.partition("#")[0] for link in read(site / "index.html").links}
    linked |= {f"api/{link.partition('#')[0]}" for link in read(site / "api" / "index.html").links}
    linked |= {f"api/{link.partition('#')[0]}" for link in read(site / "api" / "methods.html").links}
    linked |= {f"api/{link.partition('#')[0]}" for link in read(site / "api" / "compressors.html").links}
    assert made - linked == {"index.html"} - linked
    with pytest.raises(NavError, match=r"docs/integrations/new/deep\.md is in no section"):
        layout({"training", "integrations/new/deep"})
    assert layout({"integrations/lightning"})[2][1] == ["integrations/lightning"]

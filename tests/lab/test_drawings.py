"""Plots of the docs: each is drawn from committed rows, and each that a page shows is among them."""

from __future__ import annotations

import re
from pathlib import Path

from thinwire.lab.drawings import drawings
from thinwire.lab.figures import ROOT

SHOWN = re.compile(r"!\[[^]]*\]\(([^)]+)\)")


def test_every_plot_of_the_docs_is_drawn_from_rows() -> None:
    docs, shown = ROOT / "docs", set()
    for page in (ROOT / "README.md", *docs.glob("**/*.md")):
        for link in SHOWN.findall(page.read_text()):
            shown.add((page.parent / link).resolve().relative_to(docs).as_posix())
    made = drawings(ROOT / "benchmarks" / "data")
    assert shown == set(made)
    assert all((docs / name).stat().st_size > 5000 for name in made)


def test_a_plot_is_drawn(tmp_path: Path) -> None:
    made = drawings(ROOT / "benchmarks" / "data")
    for name in ("race-digits.png", "papers/signsgd.png"):
        made[name](tmp_path / "plot.png")
        assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")

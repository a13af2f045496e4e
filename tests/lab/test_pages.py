"""The page of every reproduction is the one that its committed rows make."""

from __future__ import annotations

import pytest

from thinwire.lab import figures
from thinwire.lab.records import read
from thinwire.lab.reproduce import REPRODUCTIONS, Reproduction
from thinwire.lab.reproduce.study import Study


@pytest.mark.parametrize("made", REPRODUCTIONS.values(), ids=lambda made: made.name)
def test_page_is_that_of_the_rows(made: Reproduction) -> None:
    page = figures.ROOT / "docs" / "papers" / f"{made.name}.md"
    text, sections = page.read_text(), made.page(read(figures.ROOT / "benchmarks" / "data" / f"{made.name}.csv"))
    assert set(sections) == set(made.sections)
    for section, told in sections.items():
        assert f"<!-- table: {made.name}-{section} -->\n\n{told}\n\n<!-- end -->" in text, "run `make figures`"
    assert f"]({made.name}.png)" in text
    assert page.with_suffix(".png").stat().st_size > (5_000 if isinstance(made, Study) else 10_000)

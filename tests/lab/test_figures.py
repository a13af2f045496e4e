"""Tables in README and docs are the ones that the committed rows make."""

from __future__ import annotations

from thinwire.lab import figures


def test_tables_are_up_to_date() -> None:
    pages = list(figures.pages())
    assert len(pages) >= 2
    for page, old, new in pages:
        assert old == new, f"{page.name} is out of date: run `make figures`"

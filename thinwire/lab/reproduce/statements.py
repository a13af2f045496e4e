"""Published statements beside what was measured, as a table of a page."""

from __future__ import annotations

from collections.abc import Sequence

from thinwire.lab.markdown import table
from thinwire.lab.reproduce.base import Trend


def statements(trends: Sequence[Trend]) -> str:
    """One line per statement."""
    body = [[t.place, t.claim, t.published, t.measured, VERDICTS[t.holds]] for t in trends]
    return table(["where", "statement", "published", "here", "holds"], body, left=5)


VERDICTS = {True: "yes", False: "**no**", None: "not run"}

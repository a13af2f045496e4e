"""The tables of a page, and where its figures were measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def table(head: Sequence[str], body: Sequence[Sequence[str]], left: int = 1) -> str:
    """A Markdown table; the first `left` columns are words, the others numbers."""
    rule = ["---" if i < left else "---:" for i in range(len(head))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *body))


def where(row: Mapping[str, Any], command: str) -> str:
    """The command, machine, versions, date and commit under a table."""
    return (
        f"\n\n`{command}` on {row['device']} ({row['cores']} cores), torch {row['torch']}, "
        f"{row['date']}, commit {row['commit']}."
    )

"""The tables of a page, and where its figures were measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

RIVALS = {
    "no communication": "no communication",
    "ddp": "DDP",
    "ddp fp16": "DDP, fp16 hook",
    "ddp powersgd-4": "DDP, PowerSGD hook, rank 4",
}


def contestant(name: str) -> str:
    """Method ids as code, DDP's hooks in words."""
    return RIVALS.get(name, f"`{name}`")


def table(head: Sequence[str], body: Sequence[Sequence[str]], left: int = 1) -> str:
    """A Markdown table; the first `left` columns are words, the others numbers."""
    rule = ["---" if i < left else "---:" for i in range(len(head))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *body))


def where(row: Mapping[str, Any], command: str, *, cores: bool = True) -> str:
    """The command, machine, versions, date and commit under a table. A GPU is named without the host's cores."""
    count = f" ({row['cores']} cores)" if cores else ""
    return f"\n\n`{command}` on {row['device']}{count}, torch {row['torch']}, {row['date']}, commit {row['commit']}."

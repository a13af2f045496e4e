"""Words: how numbers and names are written on the page, always escaped."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from html import escape
from typing import Any, TypeGuard

LONGEST = 90  # characters of a cell
LARGEST = 10**300  # what JSON calls a number may be anything
UNITS = ("B", "kB", "MB", "GB", "TB")


def bytes_of(n: float) -> str:
    """`n` bytes in a unit that leaves at most three figures before the point.

    >>> bytes_of(141_000_000), bytes_of(512)
    ('141 MB', '512 B')
    """
    if not math.isfinite(n):
        return f"{n}"
    power = min(max(0, (len(f"{abs(n):.0f}") - 1) // 3), len(UNITS) - 1)
    return f"{n / 1000**power:.3g} {UNITS[power]}"


def number(n: float) -> str:
    """Four figures, with commas in large numbers.

    >>> number(25165824), number(0.98333333), number(2017), number(1.5e-7)
    ('25,165,824', '0.9833', '2017', '1.5e-07')
    """
    if not math.isfinite(n):
        return f"{n}"
    if 1e4 <= abs(n) < 1e15:
        return f"{n:,.0f}"
    return f"{n}" if isinstance(n, int) else f"{n:.4g}"


def ms(value: float) -> str:
    """Milliseconds, with tenths where they matter."""
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def count(n: Any, word: str) -> str:
    """How many of something.

    >>> count(1, "run"), count(1200, "row")
    ('1 run', '1200 rows')
    """
    return f"{plain(n)} {word}" if n == 1 else f"{plain(n)} {word}s"


def is_number(value: Any) -> TypeGuard[float]:
    """Whether it is a number to compute with: a float, or an int that fits into one, but not a bool."""
    if isinstance(value, bool):
        return False
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < LARGEST)


def plain(value: Any) -> str:
    """Any value of a row as text."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if is_number(value):
        return number(value)
    return value if isinstance(value, str) else json.dumps(value)


def cell(name: str, value: Any) -> str:
    """The HTML that stands in the table for field `name`."""
    if is_number(value) and math.isfinite(value):
        kinds = [write for part, write in FIELDS.items() if name.startswith(part)]
        return escape((kinds[0] if kinds else number)(value))
    text = plain(value)
    if name == "method" and isinstance(value, str):
        return f"<code>{breaking(text)}</code>"
    if len(text) <= LONGEST:
        return escape(text)
    return f'<span title="{escape(text)}">{escape(text[: LONGEST - 4])} ...</span>'


def breaking(name: str) -> str:
    """A method's id as HTML that may break after its punctuation.

    >>> breaking("qsgd:bits=4,norm=l2")
    'qsgd:<wbr>bits=4,<wbr>norm=l2'
    """
    return re.sub(r"(?<=[:,+(])(?=.)", "<wbr>", escape(name, quote=False).replace("&", "\0")).replace("\0", "&")


def heading(name: str) -> str:
    """A field's name as words."""
    return escape(name.replace("_", " "))


def same(values: Mapping[str, Any]) -> str:
    """A line on what all rows have in common; empty if that is nothing."""
    said = ", ".join(f"{heading(name)} {cell(name, value)}" for name, value in values.items() if value is not None)
    return f'<p class="note">In all rows: {said}.</p>' if said else ""


FIELDS: dict[str, Callable[[float], str]] = {
    "accuracy": lambda v: f"{v:.2%}",
    "bytes": bytes_of,
}

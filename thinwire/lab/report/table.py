"""Tables that sort: a button in every heading, and a key beside every cell, so that the script reads no units."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, final

from thinwire.lab.records import Row
from thinwire.lab.report.words import cell, heading, is_number, plain, same

LONG = 40  # rows above which a table also scrolls up and down
LEFT_OUT = "curves"  # it is drawn instead


@final
@dataclass(frozen=True)
class Column:
    """`label` and `cells` are HTML; `keys` are what rows are sorted by, None for an empty cell."""

    label: str
    cells: Sequence[str]
    keys: Sequence[Any]

    @property
    def side(self) -> str:
        """The class of a column with nothing but numbers."""
        there = [key for key in self.keys if key is not None]
        return ' class="n"' if there and all(map(is_number, there)) else ""


def column(name: str, values: Sequence[Any]) -> Column:
    """A field of the rows."""
    return Column(heading(name), [cell(name, value) for value in values], [_key(value) for value in values])


def table(columns: Sequence[Column], label: str, classes: Sequence[str] = ()) -> str:
    """A table in a box that scrolls; the first column heads the rows. `classes` are those of the rows."""
    head = "".join(f'<th scope="col"{one.side}><button type="button">{one.label}</button></th>' for one in columns)
    lines = []
    for number in range(len(columns[0].cells)):
        marked = f' class="{classes[number]}"' if classes else ""
        first, *others = (
            f'{one.side} data-key="{escape(_text(one.keys[number]))}">{one.cells[number]}' for one in columns
        )
        body = "".join(f"<td{other}</td>" for other in others)
        lines.append(f'<tr{marked}><th scope="row"{first}</th>{body}</tr>')
    rows = "\n".join(lines)
    size = "wide long" if len(lines) > LONG else "wide"
    return (
        f'<div class="{size}" role="region" aria-label="{escape(label)}" tabindex="0"><table>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table></div>"
    )


def generic(rows: Sequence[Row], label: str) -> str:
    """A table of any rows. What is the same in all rows stands above it, once; a single row is shown upright."""
    names = [name for name in dict.fromkeys(key for row in rows for key in row) if name != LEFT_OUT]
    values = {name: [row.get(name) for row in rows] for name in sorted(names, key=lambda name: name != "method")}
    if len(rows) == 1:
        cells = [cell(name, rows[0][name]) for name in values]
        return table(
            [column("field", list(values)), Column("value", cells, [_key(rows[0][n]) for n in values])], label
        )
    common = [name for name in names if len(set(map(plain, values[name]))) == 1]
    columns = [column(name, values[name]) for name in values if name not in common]
    return same({name: values[name][0] for name in common}) + (table(columns, label) if columns else "")


def _key(value: Any) -> Any:
    """Numbers are sorted by size, everything else by its text."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    return value if is_number(value) else plain(value)


def _text(key: Any) -> str:
    """A key as the script reads it; what is missing comes last there."""
    if key is None:
        return ""
    return f"{key}".replace("inf", "Infinity") if isinstance(key, float) else str(key)

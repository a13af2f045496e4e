"""Series: one colour per method on the whole page, for light and dark; after ten methods, dashes are added."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from thinwire.lab.report.words import breaking

HERE = Path(__file__).parent
COLOURS = (  # light, dark; the first is the text's own
    ("#1c1c1c", "#f0f0f0"),
    ("#0072b2", "#5ab4f0"),
    ("#d55e00", "#ff8a3c"),
    ("#008a63", "#2fd0a0"),
    ("#b5489a", "#ef8ccf"),
    ("#a77600", "#e8c34a"),
    ("#6b4fc8", "#ab98ff"),
    ("#8a5a3c", "#cfa07c"),
    ("#5f7a00", "#b4d645"),
    ("#c2263f", "#ff7185"),
)


@final
@dataclass(frozen=True)
class Series:
    """The methods of a page in their order."""

    names: tuple[str, ...]

    @classmethod
    def of(cls, methods: Iterable[Any]) -> Series:
        """Every method once, in order of appearance."""
        return cls(tuple(dict.fromkeys(str(name) for name in methods)))

    def mark(self, method: Any) -> str:
        """The method's class on the page; empty for a method without colour."""
        return f"s{self.names.index(str(method))}" if str(method) in self.names else ""

    def named(self, method: Any) -> str:
        """The method with its colour before it: HTML."""
        key = f'<span class="key {self.mark(method)}"></span>'
        return f'<span class="named">{key}<code>{breaking(str(method))}</code></span>'

    @property
    def style(self) -> str:
        """The page's style sheet with these colours."""
        light, dark = (" ".join(f"--c{i}: {pair[mode]};" for i, pair in enumerate(COLOURS)) for mode in (0, 1))
        sheet = (HERE / "page.css").read_text().replace("/*light*/", light).replace("/*dark*/", dark)
        rules = [_rules(i) for i in range(len(self.names))]
        return sheet + "\n".join(rules) + "\n"


def _rules(i: int) -> str:
    turn = i // len(COLOURS)
    dashes = f" stroke-dasharray: {3 + 2 * turn} {1 + turn};" if turn else ""
    return (
        f".s{i} {{ --c: var(--c{i % len(COLOURS)});{dashes} }}\n"
        f"body:has(.line.s{i}):has(tr.s{i}:hover, .entry.s{i}:hover) .line:not(.s{i}) {{ opacity: .15; }}"
    )

"""Line plots as SVG text that takes its colours from the page: one path per line, with the class of its series."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 380, 270
LEFT, RIGHT, TOP, BOTTOM = 46, 14, 30, 42
LETTER = 6.5  # the approximate width of a letter of a tick


@dataclass(frozen=True)
class Line:
    """A name and points, and the class that gives the colour. On a log axis only positive coordinates show."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    mark: str = ""


@dataclass(frozen=True)
class Axis:
    """The label under or beside an axis, its scale, and how its numbers are written."""

    label: str
    log: bool = False
    write: Callable[[float], str] = field(default=lambda v: f"{v:g}")


def plot(title: str, lines: Sequence[Line], across: Axis, up: Axis) -> str:
    """An <svg> of all lines on one pair of axes."""
    points = [list(_shown(line, across, up)) for line in lines]
    every = [p for part in points for p in part] or [(1.0, 1.0), (2.0, 2.0)]
    x = _Scale.over([p[0] for p in every], across, LEFT, WIDTH - RIGHT)
    y = _Scale.over([p[1] for p in every], up, HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
        f'<text class="title" x="{LEFT}" y="16">{escape(title)}</text>',
        *_grid(x, y, across, up),
        f'<text class="label" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}">{escape(across.label)}</text>',
    ]
    for line, part in zip(lines, points, strict=True):
        d = "M" + "L".join(f"{x(a):.1f} {y(b):.1f}" for a, b in part) if part else ""
        parts.append(f'<path class="line {line.mark}" d="{d}"><title>{escape(line.name)}</title></path>')
    return "\n".join([*parts, "</svg>"])


def _shown(line: Line, across: Axis, up: Axis) -> Iterator[tuple[float, float]]:
    for a, b in zip(line.x, line.y, strict=True):
        if math.isfinite(a) and math.isfinite(b) and (a > 0 or not across.log) and (b > 0 or not up.log):
            yield a, b


@dataclass(frozen=True)
class _Scale:
    """From numbers to places on the page."""

    low: float
    high: float
    log: bool
    start: float
    stop: float

    @classmethod
    def over(cls, values: Sequence[float], axis: Axis, start: float, stop: float) -> _Scale:
        low, high = min(values), max(values)
        if not axis.log:
            low = min(low, 0.0)
        if low == high:
            low, high = (low / 2, high * 2) if axis.log else (low, low + 1)
        return cls(low, high, axis.log, start, stop)

    def __call__(self, value: float) -> float:
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        part = ((math.log(value) if self.log else value) - low) / (high - low)
        return self.start + part * (self.stop - self.start)

    @property
    def ticks(self) -> list[float]:
        """Round numbers: on a log scale powers of ten, with others between them when few; otherwise equal steps."""
        if not self.log:
            rough = (self.high - self.low) / 5
            unit = 10 ** math.floor(math.log10(rough))
            step = next(m * unit for m in (1, 2, 5, 10) if m * unit >= rough)
            return [n * step for n in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        decades = math.log10(self.high / self.low)
        between = (1, 2, 5) if decades < 1.5 else (1, 3) if decades < 3 else (1,)
        return [t for p in powers for m in between if self.low <= (t := m * 10.0**p) <= self.high]


def _grid(x: _Scale, y: _Scale, across: Axis, up: Axis) -> Iterator[str]:
    for t in y.ticks:
        yield f'<path class="grid" d="M{LEFT} {y(t):.1f}H{WIDTH - RIGHT}"/>'
        yield f'<text class="tick end" x="{LEFT - 6}" y="{y(t) + 4:.1f}">{escape(up.write(t))}</text>'
    end = -math.inf
    for t in x.ticks:
        yield f'<path class="grid" d="M{x(t):.1f} {TOP}V{HEIGHT - BOTTOM}"/>'
        text = across.write(t)
        half = LETTER * len(text) / 2
        middle = min(x(t), WIDTH - half)
        if middle - half > end:  # so that numbers do not run into each other
            end = middle + half + LETTER
            yield f'<text class="tick middle" x="{middle:.1f}" y="{HEIGHT - BOTTOM + 16}">{escape(text)}</text>'

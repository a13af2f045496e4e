"""Bars: where the time of a step goes, and bits per element; text and boxes, so that a phone can show them."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from thinwire.lab.report.charts import MARKS, PARTS, Chart, split
from thinwire.lab.report.groups import Group
from thinwire.lab.report.series import Series
from thinwire.lab.report.words import ms

SUMS = (
    "The upper bar is the step. The lower bar is its parts, each summed over threads that work at the same time, so "
    "that together they may exceed the step."
)


def time_bars(charts: Sequence[Chart], series: Series) -> str:
    """The step above, its parts below, and ticks for what it is compared with; all charts have one scale."""
    parted = any(name in split(part) for chart in charts for part in chart.parts for name in PARTS)
    note = f'<p class="note">{escape(SUMS)}</p>' if parted else ""
    lengths = [value for chart in charts for part in chart.parts for value in _lengths(split(part))]
    top = max(1e-9, *lengths) if lengths else 1.0
    return _side_by_side([_time_chart(chart, series, top) for chart in charts]) + note


def bit_bars(charts: Sequence[Chart], series: Series) -> str:
    """One bar per method; all charts have one scale."""
    made = []
    top = (
        max((part.finite("bits_per_element") or 0.0 for chart in charts for part in chart.parts), default=0.0) or 1.0
    )
    for chart in charts:
        values = [part.finite("bits_per_element") or 0.0 for part in chart.parts]
        lines = [
            _line(chart.name(part, series), _whole(part, value / top, series), f"{value:.2f}")
            for part, value in zip(chart.parts, values, strict=True)
        ]
        made.append(_chart(chart.title, "", lines))
    return _side_by_side(made)


def _lengths(times: dict[str, float]) -> list[float]:
    """What is drawn of a step: the step, its marks, and its parts in a row."""
    return [*times.values(), sum(times.get(name, 0.0) for name in PARTS)]


def _time_chart(chart: Chart, series: Series, top: float) -> str:
    splits = [split(part) for part in chart.parts]
    pieces, marks = ([name for name in names if any(name in one for one in splits)] for names in (PARTS, MARKS))
    lines = []
    for part, one in zip(chart.parts, splits, strict=True):
        inner = "".join(
            f'<i class="p-{name}" style="width: {_percent(one[name] / top)}"></i>' for name in pieces if name in one
        )
        ticks = "".join(
            f'<i class="tick m-{name}" style="left: {_percent(one[name] / top)}"></i>'
            for name in marks
            if name in one
        )
        below = f'<span class="pieces">{inner}</span>' if inner else ""
        said = ", ".join(f"{name} {ms(one[name])}" for name in pieces if name in one)
        drawn = _whole(part, one["step"] / top, series) + below + ticks
        lines.append(_line(chart.name(part, series), drawn, f"{ms(one['step'])} ms", said))
    legend = [f'<span><i class="box p-{name}"></i>{name}</span>' for name in pieces]
    legend += [f'<span><i class="box tick m-{name}"></i>{escape(MARKS[name])}</span>' for name in marks]
    return _chart(chart.title, f'<p class="legend">{"".join(legend)}</p>', lines)


def _side_by_side(made: Sequence[str]) -> str:
    return f'<div class="charts">{"".join(made)}</div>' if made else ""


def _chart(title: str, legend: str, lines: Sequence[str]) -> str:
    head = f"<h3>{escape(title)}</h3>" if title else ""
    return f'<div>{head}{legend}<ul class="bars">\n' + "\n".join(lines) + "</ul></div>"


def _line(name: str, drawn: str, value: str, said: str = "") -> str:
    small = f"<small>{escape(said)}</small>" if said else ""
    return (
        f'<li><span class="name">{name}</span>'
        f'<span class="track" aria-hidden="true">{drawn}</span><span class="value">{escape(value)}</span>{small}</li>'
    )


def _whole(part: Group, share: float, series: Series) -> str:
    return f'<i class="whole {series.mark(part.method)}" style="width: {_percent(share)}"></i>'


def _percent(share: float) -> str:
    return f"{100 * min(1.0, max(0.0, share)):.2f}%"

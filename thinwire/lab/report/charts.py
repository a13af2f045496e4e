"""Charts: which lines of the files may be compared as bars, with one chart for each file and setting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from thinwire.lab.report.groups import Group
from thinwire.lab.report.runs import Run
from thinwire.lab.report.series import Series
from thinwire.lab.report.words import cell, plain

PARTS = ("compute", "encode", "wire", "decode")
MARKS = {"ddp_ms": "DDP's step", "wire_bound_ms": "its bytes at the link's full rate"}
PLACE = ("task", "split", "kind", "source", "workers", "hosts", "rate", "latency", "params", "epochs")
WITHIN = ("label", "lr", "eta")  # what may differ between bars of one chart
MOST = 40  # bars of one chart; with more, a table is clearer
SAME_BITS = ("method", "compressor", "label", *(name for name in PLACE if name != "kind"))


@final
@dataclass(frozen=True)
class Chart:
    """Bars beside each other; the title says how this chart differs from the others."""

    title: str
    parts: Sequence[Group]

    def name(self, part: Group, series: Series) -> str:
        """The method, with as many settings as it takes to tell its bars apart: HTML."""
        peers = [other for other in self.parts if other.method == part.method]
        told: list[str] = []
        for name in WITHIN:
            if len({plain([other.settings[field] for field in told]) for other in peers}) < len(peers):
                told.append(name)
        said = ", ".join(cell(name, part.settings[name]) for name in told if part.settings[name] is not None)
        return series.named(part.method) + (f" <small>{said}</small>" if said else "")


def times(parts: Sequence[Group]) -> list[Chart]:
    """Charts of a step's time."""
    return _charts(parts, lambda part: bool(split(part)))


def bits(parts: Sequence[Group], runs: Sequence[Run]) -> list[Chart]:
    """Charts of bits per element, including rows that are not in the summary."""
    known = {id(row) for part in parts for row in part.rows}
    rows = [(run.name, row) for run in runs for row in run.rows if row.get("method") is not None]
    others = [Group(name, [row]) for name, row in rows if id(row) not in known]
    once: dict[str, Group] = {}  # learning rates do not change bits
    for part in [*parts, *others]:
        once.setdefault(plain([part.run, *(part.rows[0].get(name) for name in SAME_BITS)]), part)
    return _charts(list(once.values()), lambda part: part.finite("bits_per_element") is not None)


def split(part: Group) -> dict[str, float]:
    """Milliseconds of a step and of the parts that the rows hold; empty if they hold only the step."""
    step, per, unit = part.finite("step_ms"), 1.0, "ms"
    if step is None and (seconds := part.finite("seconds")) is not None and (steps := part.finite("steps")):
        step, per, unit = 1e3 * seconds / steps, 1e3 / steps, "s"
    found = {name: per * v for name in PARTS if (v := part.finite(f"{name}_{unit}")) is not None}
    found |= {name: v for name in MARKS if (v := part.finite(name)) is not None}
    return {"step": step, **found} if found and step is not None else {}


def _charts(parts: Sequence[Group], drawn: Callable[[Group], bool]) -> list[Chart]:
    made: dict[tuple[str, ...], list[Group]] = {}
    for part in filter(drawn, parts):
        made.setdefault((part.run, *(plain(part.rows[0].get(name)) for name in PLACE)), []).append(part)
    return [Chart(_title(key, list(made)), some) for key, some in made.items() if len(some) <= MOST]


def _title(key: tuple[str, ...], keys: Sequence[tuple[str, ...]]) -> str:
    """The file's name, if that is enough; otherwise also every setting that differs."""
    if 1 < len(keys) == len({other[0] for other in keys}):
        return key[0]
    return ", ".join(
        value if name in ("run", "task", "source") else f"{name} {value}"
        for place, (name, value) in enumerate(zip(("run", *PLACE), key, strict=True))
        if value != "-" and len({other[place] for other in keys}) > 1
    )

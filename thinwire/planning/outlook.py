"""Outlook: what each method would make of a step on a link, which of them to take, and why.

Everything in it follows from measurements and from replays of them, so that the same profile gives the same outlook.
It says nothing of accuracy: what was measured of that is in docs/choosing.md.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import torch

from thinwire.core.by_id import method as by_id
from thinwire.core.rates import HIGHEST, LOWEST
from thinwire.planning.choice import MISS, Took, choose, undecided
from thinwire.planning.replay import Place, Replayed, replay

if TYPE_CHECKING:
    from thinwire.planning.computing import Computing
    from thinwire.planning.contestant import Contestant
    from thinwire.planning.link import Link, Sockets

BASE = "ddp"
LEVELS = (0.2, 0.5, 0.8)
HALVINGS = 16
DECADES, PER_DECADE = 2, 8  # of rates around the link, in the picture
TORCHRUN = "--nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint HOST:29500 --no-python thinwire plan"
ACCURACY = (
    "Only speed is forecast. Whether a method keeps the loss of your model, a short run tells: compare it with sgd() "
    "at the step sizes that you would use."
)


@final
@dataclass(frozen=True)
class Row:
    """One method. Times are milliseconds per step; `pays_below` is in bits per second."""

    method: str
    step_ms_p20: float
    step_ms: float
    step_ms_p80: float
    binds: str
    pays_below: float | None  # None: at no rate; infinity: at every rate
    sent_bytes: int  # per rank and step
    memory_bytes: int  # per rank, kept between steps
    codec_ms: float
    busy_ms: float  # all that the processor does besides training: codecs, copies, casts
    speedup: float  # over DDP in float32
    tried_ms: float | None = None  # of real steps between these hosts, where some were taken to choose by
    note: str = ""  # what was assumed of the method
    unsuited: str = ""  # why it is not recommended, however fast: it does not suit the optimizer, say


@final
@dataclass(frozen=True)
class Setting:
    """Where an outlook holds: the hosts and their link, what computing takes, what sending costs."""

    hosts: int
    link: Link
    computing: Computing
    sockets: Sockets
    together: bool = False  # whether the measured steps are those of the slowest of all ranks already
    here: int = 1  # ranks that share this machine

    def __post_init__(self) -> None:
        if self.hosts < 2:
            raise ValueError(f"hosts={self.hosts}: there is nothing to plan below 2; write hosts=4")

    def at(self, rate: float) -> Setting:
        """The same on a link of another rate; a slower one lets as many seconds of its rate through at once."""
        burst = self.link.burst * min(1.0, rate / self.link.rate)
        return replace(self, link=replace(self.link, rate=rate, burst=burst))

    def replay(self, one: Contestant, slower: float = 1.0) -> Replayed:
        """A contestant's steps here."""
        cores = self.computing.share
        sockets = self.sockets.at_most(cores)
        place = Place(self.hosts, self.link, sockets, cores, one.lanes, one.beside, one.disturbed)
        return replay(one.acts(self.computing, slower, again=self.link.burst > 0), place)

    def seconds(self, one: Contestant, slower: float = 1.0) -> float:
        """Of a step; of all kinds of rounds, the mean."""
        return sum(share * self.replay(kind, slower).step / kind.steps for share, kind in one.kinds)

    def binds(self, one: Contestant, slower: float = 1.0) -> str:
        """What takes most of a step, of the kind of rounds that takes most of the time."""
        replays = [(share, self.replay(kind, slower)) for share, kind in one.kinds]
        return max(replays, key=lambda found: found[0] * found[1].step)[1].binds

    def slowness(self) -> list[float]:
        """By how much computing takes longer than its median, at each level, on the slowest of the hosts."""
        times = torch.tensor(self.computing.steps, dtype=torch.float64)
        ranks = 1 if self.together else self.hosts
        return [float(times.quantile(level ** (1 / ranks))) / self.computing.step for level in LEVELS]


@final
@dataclass(frozen=True)
class Outlook:
    """Rows by method, the fastest first. `str()` is the table, `json()` the same for programs, `plot` a picture."""

    rows: tuple[Row, ...]
    recommended: str
    reason: str
    hosts: int
    rate: float
    latency: float
    computing_ms: float
    parameters: int
    curves: dict[str, tuple[tuple[float, float], ...]]  # (bits per second, milliseconds) by method
    here: int = 1  # ranks that shared the machine that measured
    met: bool = False  # whether there were hosts that could take real steps
    disturbed: str = ""  # what other programs did to the measurements, and what that leaves open

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Outlook:
        """What `asdict` made of one, and JSON of that: tuples have become lists."""
        rows = tuple(Row(**row) for row in fields["rows"])
        curves = {name: tuple((rate, ms) for rate, ms in points) for name, points in fields["curves"].items()}
        return cls(**{**fields, "rows": rows, "curves": curves})

    def row(self, method: str) -> Row:
        """The row of a method, by its id, or by the name that DDP or one of its hooks has here."""
        known = {row.method: row for row in self.rows}
        with suppress(ValueError):  # "qsgd:bits=4" is "qsgd"
            method = method if method in known else by_id(method).id
        if method not in known:
            raise ValueError(f"there is no row of {method!r}; write one of {', '.join(map(repr, known))}")
        return known[method]

    @property
    def tried(self) -> bool:
        """Whether real steps were taken to choose by."""
        return any(row.tried_ms is not None for row in self.rows)

    def after(self, times: Mapping[str, float]) -> Outlook:
        """The same forecasts with the seconds of real steps, by which the recommendation is then chosen."""
        rows = tuple(
            replace(row, tried_ms=1e3 * times[row.method]) if row.method in times else row for row in self.rows
        )
        chosen, reason = recommend(rows)
        return replace(self, rows=rows, recommended=chosen, reason=reason, met=True)

    @property
    def notes(self) -> list[str]:
        """What was assumed of single methods, a sentence each."""
        return [f"{row.method} {row.note}." for row in self.rows if row.note]

    @property
    def doubt(self) -> str:
        """Which methods forecasts cannot tell from the recommended one, and what can; empty where nothing is open."""
        forecasts = {row.method: row.step_ms for row in self.rows if not row.unsuited}
        others = [] if self.tried else undecided(forecasts, self.recommended)
        if not others:
            return ""
        *most, last = others
        names = f"{', '.join(most)} and {last} are" if most else f"{last} is"
        within = f"{names} forecast within {MISS:.0%} of it"
        if self.met:
            return f"{within}, and no real steps were taken, which would tell them apart."
        return (
            f"{within}; real steps between the hosts tell them apart: tw.plan in a process group, without link, or "
            f"torchrun --nnodes {self.hosts} {TORCHRUN}"
        )

    @property
    def title(self) -> str:
        """What it is about."""
        link = pays(self.rate) if self.rate < HIGHEST else "a link that is faster than they are"
        shared = f", {self.here} of them on this machine" if self.here > 1 else ""
        return (
            f"{self.hosts} hosts{shared}, {link}, {1e3 * self.latency:.3g} ms one way; "
            f"{self.parameters:,} parameters, {self.computing_ms:,.1f} ms of computing per step."
        )

    def json(self, **more: object) -> str:
        """One JSON document, with what else is given; where a rate is null, "pays" says whether always or never."""
        rows = [
            {**asdict(row), "pays_below": _finite(row.pays_below), "pays": pays(row.pays_below)} for row in self.rows
        ]
        whole = {**asdict(self), "rows": rows, "doubt": self.doubt, "note": ACCURACY, **more}
        return json.dumps(whole, indent=1)

    def plot(self, path: str | Path) -> None:
        """Step time against the rate of the link, with a line per method; a .png, .svg or .pdf file."""
        from thinwire.planning.picture import draw  # noqa: PLC0415  (matplotlib is an extra)

        draw(self, Path(path))

    def __str__(self) -> str:
        head = (
            *("method", "p20", "step ms", "p80", "binds", "pays below", "MB sent", "MB kept", "codec ms", "x DDP"),
            *(("tried ms",) if self.tried else ()),
        )
        body = [
            (
                row.method,
                *(f"{ms:,.1f}" for ms in (row.step_ms_p20, row.step_ms, row.step_ms_p80)),
                row.binds,
                "-" if row.method == BASE else pays(row.pays_below),
                f"{row.sent_bytes / 1e6:,.2f}",
                f"{row.memory_bytes / 1e6:,.1f}",
                f"{row.codec_ms:,.1f}",
                f"{row.speedup:.2f}",
                *((f"{row.tried_ms:,.1f}" if row.tried_ms is not None else "-",) if self.tried else ()),
            )
            for row in self.rows
        ]
        widths = [max(len(line[at]) for line in (head, *body)) for at in range(len(head))]
        lines = [self.title]
        for line in (head, *body):
            cells = [line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))]
            lines.append("  ".join(cells).rstrip())
        return "\n".join([*lines, *self.sentences])

    @property
    def sentences(self) -> list[str]:
        """What stands below the table."""
        take = f"Take {self.recommended}: {self.reason}"
        return [*self.notes, *filter(None, (self.disturbed, take, self.doubt, ACCURACY))]


def outlook(setting: Setting, contestants: Sequence[Contestant]) -> Outlook:
    """Replay every contestant; DDP in float32 must be among them."""
    base = next(one for one in contestants if one.name == BASE)
    slowness = setting.slowness()
    times = {one.name: [setting.seconds(one, slower) for slower in slowness] for one in contestants}
    rows = []
    for one in contestants:
        low, middle, high = (1e3 * s for s in times[one.name])
        rows.append(
            Row(
                one.name,
                low,
                middle,
                high,
                setting.binds(one, slowness[1]),
                None if one is base else pays_below(setting, one, base),
                round(one.sent(setting.hosts)),
                one.memory,
                1e3 * one.codec,
                1e3 * one.busy,
                times[BASE][1] / times[one.name][1],
                note=one.note,
                unsuited=one.unsuited,
            )
        )
    rows.sort(key=lambda row: row.step_ms)
    chosen, reason = recommend(rows)
    return Outlook(
        tuple(rows),
        chosen,
        reason,
        setting.hosts,
        setting.link.rate,
        setting.link.latency,
        1e3 * setting.computing.step,
        setting.computing.elements,
        {one.name: _curve(setting, one) for one in contestants},
        setting.here,
    )


def pays_below(setting: Setting, one: Contestant, base: Contestant) -> float | None:
    """The highest rate at which a step is shorter than DDP's: by bisection, where it pays on slow links."""

    def wins(rate: float) -> bool:
        there = setting.at(rate)
        return there.seconds(one) < there.seconds(base)

    low, high = math.log(LOWEST), math.log(HIGHEST)
    if wins(HIGHEST):
        return math.inf
    if not wins(LOWEST):
        return None
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if wins(math.exp(middle)) else (low, middle)
    return math.exp(low)


def recommend(rows: Sequence[Row]) -> tuple[str, str]:
    """What `choose` says of those that suit, and why."""
    suited = [row for row in rows if not row.unsuited]
    found = choose({row.method: Took(row.step_ms, row.busy_ms, row.tried_ms) for row in suited})
    chosen, times = found.method, found.times
    first, one = min(times, key=lambda name: times[name]), next(row for row in rows if row.method == chosen)
    base = next((row for row in rows if row.method == BASE), one)
    left_out = _left_out([row for row in rows if row.unsuited and row.step_ms < one.step_ms])
    if one is base:
        why = (
            f"{_NAMED[base.binds]} binds its step, and no method is more than {found.close:.0%} faster; "
            f"nothing is lost.{left_out}"
        )
        return chosen, why
    less = base.sent_bytes / max(1, one.sent_bytes)
    why = (
        f"{_NAMED[base.binds]} binds DDP's step of {base.step_ms:,.1f} ms; with {less:,.1f} times fewer bytes "
        f"it takes {times[chosen]:,.1f} ms{' in real steps' if found.tried else ''}, and {_BOUND[one.binds]}"
    )
    if first != chosen:
        took = "took" if found.tried else "is forecast to take"
        why += f" {first} {took} {times[first]:,.1f} ms, but asks more of the processor."
    return chosen, why + left_out


def _left_out(rows: Sequence[Row]) -> str:
    """The faster methods that are not recommended, by the reason."""
    sentences = []
    for reason in dict.fromkeys(row.unsuited for row in rows):
        names = [f"{row.method} ({row.step_ms:,.1f} ms)" for row in rows if row.unsuited == reason]
        subject = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
        sentences.append(f" Faster by forecast, but {reason}: {subject}.")
    return "".join(sentences)


_NAMED = {"computing": "computing", "link": "the link", "processor": "the processor", "latency": "latency"}
_BOUND = {
    "computing": "computing binds it: no method can be much faster.",
    "link": "the link still binds it: fewer bits or a faster link would help.",
    "processor": "the processor binds it: encoding, decoding and copying take what is left.",
    "latency": "latency binds it: fewer and larger buckets, or local steps, would help.",
}


def pays(rate: float | None) -> str:
    """A rate in words.

    >>> pays(2.5e9), pays(None), pays(float("inf"))
    ('2.5 Gbit/s', 'never', 'always')
    """
    if rate is None:
        return "never"
    if rate == math.inf:
        return "always"
    for name, unit in (("Gbit/s", 1e9), ("Mbit/s", 1e6)):
        if rate >= unit:
            return f"{rate / unit:.3g} {name}"
    return f"{rate / 1e3:.3g} kbit/s"


def _finite(rate: float | None) -> float | None:
    return None if rate is None or rate == math.inf else rate


def _curve(setting: Setting, one: Contestant) -> tuple[tuple[float, float], ...]:
    count = 2 * DECADES * PER_DECADE
    rates = [setting.link.rate * 10 ** (at / PER_DECADE - DECADES) for at in range(count + 1)]
    inside = [rate for rate in rates if LOWEST <= rate <= HIGHEST]
    return tuple((rate, 1e3 * setting.at(rate).seconds(one)) for rate in inside)

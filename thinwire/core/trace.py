"""Traces: spans as a file in the trace-event format, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

A worker is a process, with threads for computing, for its processor's passes and for its link. Spans that overlap in
one of them stand in rows of their own: "link", "link 2", ... A mark without length is an instant. Workers of two
files, of a real run and a simulated one, say, stand beside each other in one view if one file is written `beside` the
other.

Reference: "Trace event format", the Chromium project: events of phase X (complete), i (instant) and M (metadata),
with times in microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

from thinwire.core.clock import Span

THREADS = {
    **dict.fromkeys(("compute", "update", "wait", "launch", "backward ends"), "compute"),
    **dict.fromkeys(("encode", "decode"), "processor"),
    "wire": "link",
}
ORDER = ("compute", "processor", "link", "other")
FIELDS: dict[str, Any] = {
    "name": str,
    "ph": str,
    "pid": int,
    "tid": int,
    "ts": int | float,
    "args": dict,
}  # that every event has
PROCESS = "process_name"
ROWS = 100  # of one thread, at most
SIMULATED = ", simulated"
WRITE = "write beside= and the name of a file that thinwire has written, with wire.trace(path) for example"

Events: TypeAlias = list[dict[str, Any]]


def write_trace(
    path: Path | str, spans: Mapping[int, Iterable[Span]], beside: Path | str | None = None, kind: str = ""
) -> int:
    """Write the spans of workers, by rank; returns how many events there are. The first span begins at 0.

    Workers are called "worker 0", and so on, followed by `kind`. The workers of the trace file `beside` are copied
    from there; both begin their first pass or message at the same time. Folders of the path are made.
    """
    events = trace_events(spans, kind)
    if beside is not None:
        events = side_by_side(events, read_trace(beside), f" ({Path(beside).stem})")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
    return len(events)


def read_trace(path: Path | str) -> Events:
    """The events of a file that `write_trace` has written."""
    try:
        found = json.loads(Path(path).read_text())["traceEvents"]
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}); {WRITE}") from error
    except (ValueError, KeyError, TypeError):
        found = None
    if not isinstance(found, list) or not all(map(_is_event, found)):
        raise ValueError(f"{path} is no trace of thinwire; {WRITE}")
    return found


def side_by_side(events: Events, others: Events, mark: str) -> Events:
    """Both, in one time, with no process of `others` mistaken for one of `events`; `mark` tells equal names apart."""
    late = _first_exchange(events) - _first_exchange(others)
    theirs = dict.fromkeys(one["pid"] for one in others)
    taken = {one["pid"] for one in events}
    free = count(1 + max(taken | theirs.keys(), default=-1))
    moved = {pid: next(free) if pid in taken else pid for pid in theirs}
    names = {one["args"]["name"] for one in events if one["name"] == PROCESS}
    both = [_later(one, max(0.0, -late)) for one in events]
    for one in others:
        copy = {**_later(one, max(0.0, late)), "pid": moved[one["pid"]]}
        if one["name"] == PROCESS:
            name = one["args"]["name"]
            while name in names:
                name += mark
            names.add(name)
            copy["args"] = {"name": name}
        both.append(copy)
    return both


def _is_event(one: Any) -> bool:
    """Whether it is as `trace_events` makes them: profilers write other traces, whose processes may be words."""
    if not isinstance(one, dict) or not all(isinstance(one.get(name), kind) for name, kind in FIELDS.items()):
        return False
    if one["ph"] == "M":
        return isinstance(one["args"].get("name"), str)
    return one["ph"] == "i" or (one["ph"] == "X" and isinstance(one.get("dur"), int | float))


def _first_exchange(events: Events) -> float:
    """When the first pass or message begins; the first of all events where there is none."""
    timed = [one for one in events if one["ph"] != "M"]
    exchanged = [one["ts"] for one in timed if THREADS.get(one["name"]) in ("processor", "link")]
    return min(exchanged or [one["ts"] for one in timed], default=0.0)


def _later(event: dict[str, Any], by: float) -> dict[str, Any]:
    return event if event["ph"] == "M" else {**event, "ts": event["ts"] + by}


def trace_events(spans: Mapping[int, Iterable[Span]], kind: str = "") -> Events:
    """The events of a trace file."""
    found = {rank: sorted(some, key=lambda span: (span.start, -span.stop)) for rank, some in spans.items()}
    zero = min((some[0].start for some in found.values() if some), default=0.0)
    events: Events = []
    for rank, some in sorted(found.items()):
        events.append(_named(PROCESS, rank, 0, f"worker {rank}{kind}"))
        free: dict[int, float] = {}  # until when a row is taken, by its thread
        for span in some:
            thread = THREADS.get(span.what, "other")
            tid = _row(free, ROWS * ORDER.index(thread), span)
            if tid not in free:
                number = tid % ROWS
                events.append(_named("thread_name", rank, tid, thread if not number else f"{thread} {number + 1}"))
            free[tid] = max(span.stop, free.get(tid, span.stop))
            events.append(_event(span, rank, tid, zero))
    return events


def _row(free: Mapping[int, float], first: int, span: Span) -> int:
    """The first row of a thread that is free when the span starts."""
    tid = first
    while free.get(tid, span.start) > span.start and tid < first + ROWS - 1:
        tid += 1
    return tid


def _event(span: Span, rank: int, tid: int, zero: float) -> dict[str, Any]:
    args = {name: value for name, value in (("bucket", span.bucket), ("chunk", span.chunk)) if value >= 0}
    event = {"name": span.what, "pid": rank, "tid": tid, "ts": (span.start - zero) * 1e6, "args": args}
    if span.stop > span.start:
        return {**event, "ph": "X", "dur": (span.stop - span.start) * 1e6}
    return {**event, "ph": "i", "s": "t"}


def _named(what: str, rank: int, tid: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "ts": 0, "pid": rank, "tid": tid, "args": {"name": name}}

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
from pathlib import Path
from typing import Any, TypeAlias

from thinwire.core.clock import Span

THREADS = {
    **dict.fromkeys(("compute", "update", "wait", "launch", "backward ends"), "compute"),
    **dict.fromkeys(("encode", "decode"), "processor"),
    "wire": "link",
}
ORDER = ("compute", "processor", "link", "other")
KEYS = {"name", "ph", "pid", "ts"}  # that every event has
ROWS = 100  # of one thread, at most
SIMULATED = ", simulated"

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
    except (ValueError, KeyError, TypeError):
        found = None
    if not isinstance(found, list) or not all(isinstance(one, dict) and one.keys() >= KEYS for one in found):
        raise ValueError(f"{path} is no trace; write beside= and the name of a file that a trace() has written")
    return found


def side_by_side(events: Events, others: Events, mark: str) -> Events:
    """Both, in one time, with no process of `others` mistaken for one of `events`; `mark` tells equal names apart."""
    late = _first_exchange(events) - _first_exchange(others)
    pids, names = {one["pid"] for one in events}, {one["args"]["name"] for one in events if one["ph"] == "M"}
    moved: dict[Any, int] = {}
    for pid in dict.fromkeys(one["pid"] for one in others):
        moved[pid] = pid if pid not in pids else 1 + max(*pids, *(one["pid"] for one in others), *moved.values())
    both = [_later(one, max(0.0, -late)) for one in events]
    for one in others:
        copy = {**_later(one, max(0.0, late)), "pid": moved[one["pid"]]}
        if one["name"] == "process_name" and one["args"]["name"] in names:
            copy["args"] = {"name": one["args"]["name"] + mark}
        both.append(copy)
    return both


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
        events.append(_named("process_name", rank, 0, f"worker {rank}{kind}"))
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
